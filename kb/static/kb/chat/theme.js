"use strict";

// Light, dark or as the device says, which is kept by the browser for all chats of this server. Runs before the page is painted.
(() => {
  const NAME = "zhiku-chat:theme";
  const root = document.documentElement;
  const kept = () => {
    try {
      return localStorage.getItem(NAME) ?? "";
    } catch {
      return root.dataset.theme ?? ""; // a browser may forbid a frame of another website to keep anything
    }
  };
  const show = (theme) => {
    root.dataset.theme = theme;
    for (const meta of document.querySelectorAll("meta[name=theme-color]")) {
      meta.media = theme ? (meta.dataset.theme === theme ? "all" : "not all") : `(prefers-color-scheme: ${meta.dataset.theme})`;
    }
  };

  show(kept());
  window.addEventListener("storage", ({ key }) => key === NAME && show(kept()));
  document.addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    if (!choice) return;
    choice.elements.theme.value = kept();
    choice.addEventListener("change", () => {
      const { value } = choice.elements.theme;
      show(value);
      try {
        if (value) localStorage.setItem(NAME, value);
        else localStorage.removeItem(NAME);
      } catch {
        // it holds until the page is closed
      }
    });
  });
})();
