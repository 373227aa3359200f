"use strict";

// A passage in its document: its mark is brought into view once it is there, and where there is no room for two sides one is chosen.
(() => {
  const MARKS = ".kd-place, [data-chunks], mark";

  const reveal = (side) => {
    const mark = side?.querySelector(MARKS);
    if (!mark) return;
    const isLong = mark.getBoundingClientRect().height > side.closest("[data-passage]").parentElement.clientHeight / 2;
    mark.scrollIntoView({ block: isLong ? "start" : "center", inline: "start" });
  };

  const sides = (passage) => passage.querySelectorAll(".kp-pages, .kp-text");

  document.addEventListener("zhiku:passage", ({ target }) => {
    for (const passage of target.querySelectorAll("[data-passage]")) sides(passage).forEach(reveal);
  });
  document.addEventListener("htmx:afterSettle", ({ target }) => {
    const side = target.closest?.("[data-passage] > .kp-pages, [data-passage] > .kp-text");
    // Of several pages the first that is drawn is the one to look at; a later one is drawn because it came into view.
    if (side && (side.matches(".kp-text") || side.querySelector("img") === target.querySelector("img"))) reveal(side);
  });

  document.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-passage-side]");
    if (!button) return;
    const passage = button.closest("[data-passage]");
    passage.dataset.side = button.dataset.passageSide;
    for (const each of passage.querySelectorAll("[data-passage-side]")) each.ariaPressed = String(each === button);
    sides(passage).forEach(reveal);
  });

  for (const name of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(name, ({ target }) => {
      const loading = target.querySelector?.("[data-passage-loading]");
      if (!loading) return;
      loading.className = "kb-notice warning kd-page-problem";
      loading.textContent = loading.closest("[data-passage]").dataset.lost;
    });
  }
})();
