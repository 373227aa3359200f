"use strict";

(() => {
  const form = document.querySelector("[data-sd-form]");

  const copy = async (text) => {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    // Without HTTPS there is no clipboard API.
    const field = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  };

  for (const button of document.querySelectorAll("[data-sd-copy]")) {
    const label = button.querySelector("[data-sd-label]");
    const words = label.textContent;
    button.addEventListener("click", async () => {
      await copy(location.href);
      label.textContent = button.dataset.done;
      setTimeout(() => { label.textContent = words; }, 2000);
    });
  }

  // A row that is folded away cannot be jumped to.
  const unfold = () => {
    const row = location.hash.startsWith("#chunk-") && document.getElementById(location.hash.slice(1));
    if (!row || row.offsetParent) return;
    document.querySelector("[data-testid='show-all']")?.click();
    const show = () => (row.offsetParent ? row.scrollIntoView() : requestAnimationFrame(show));
    show();
  };
  window.addEventListener("hashchange", unfold);
  window.addEventListener("load", unfold);

  if (!form) return;

  // Empty fields are inherited: they stay out of the URL.
  form.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
  });

  form.addEventListener("submit", () => {
    const button = form.querySelector(".sd-submit");
    button.setAttribute("aria-busy", "true");
    button.textContent = form.dataset.busy;
  });

  const inheritable = JSON.parse(document.getElementById("sd-inheritable").textContent);
  const own = (name) => form.querySelector(`[name="${name}"]`);
  const distinct = (sources, name) => [...new Set(sources.map((source) => source[name]))].join(" | ");
  const optionText = (select, value) => {
    const option = select.querySelector('option[value=""]');
    option.textContent = option.textContent.replace(/([(（]).*([)）])/s, (_, open, close) => open + value + close);
  };

  // What an empty field stands for depends on the chosen knowledge bases and profile (inherited_settings does the same).
  const showInherited = () => {
    const checked = [...form.querySelectorAll('[name="kb"]:checked')].map((box) => inheritable.kbs[box.value]);
    const bases = checked.length ? checked : Object.values(inheritable.kbs);
    const profile = inheritable.profiles[own("profile").value];
    const sources = profile ? [profile] : bases;
    for (const name of Object.keys(sources[0])) {
      const value = distinct(name === "profile" ? bases : sources, name);
      if (own(name).tagName === "SELECT") optionText(own(name), value);
      else own(name).placeholder = value;
    }
  };
  form.addEventListener("change", showInherited);

  form.querySelector("[data-sd-reset]")?.addEventListener("click", () => {
    for (const field of form.querySelectorAll(".sd-field input, .sd-field select")) field.value = "";
    showInherited();
  });

  // A page that comes back from the browser's cache must not stay busy.
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
})();
