"use strict";

(() => {
  const form = document.querySelector("[data-cp-form]");
  if (!form) return;

  // Empty fields are inherited: they stay out of the URL.
  form.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
  });

  form.addEventListener("submit", () => {
    const button = form.querySelector(".sd-submit");
    if (!button) return;
    button.setAttribute("aria-busy", "true");
    button.textContent = form.dataset.busy;
  });

  const inheritable = JSON.parse(document.getElementById("cp-inheritable").textContent);
  const distinct = (sources, name) => [...new Set(sources.map((source) => source[name]))].join(" | ");
  const optionText = (select, value) => {
    const option = select.querySelector('option[value=""]');
    option.textContent = option.textContent.replace(/([(（]).*([)）])/s, (_, open, close) => open + value + close);
  };

  // What an empty field of a side stands for depends on the chosen knowledge bases and the side's profile.
  const showInherited = () => {
    const checked = [...form.querySelectorAll('[name="kb"]:checked')].map((box) => inheritable.kbs[box.value]);
    const bases = checked.length ? checked : Object.values(inheritable.kbs);
    for (const { dataset } of form.querySelectorAll("[data-cp-side]")) {
      const own = (name) => form.querySelector(`[name="${dataset.cpSide}_${name}"]`);
      const profile = inheritable.profiles[own("profile").value];
      const sources = profile ? [profile] : bases;
      for (const name of Object.keys(sources[0])) {
        if (!own(name)) continue;
        const value = distinct(name === "profile" ? bases : sources, name);
        if (own(name).tagName === "SELECT") optionText(own(name), value);
        else own(name).placeholder = value;
      }
    }
  };
  form.addEventListener("change", showInherited);

  // The same chunk on the other side is lit.
  const light = (chunk, isLit) => {
    for (const card of document.querySelectorAll(`.cp-card[data-chunk-id="${chunk}"]`)) card.classList.toggle("lit", isLit);
  };
  for (const card of document.querySelectorAll(".cp-card")) {
    card.addEventListener("mouseenter", () => light(card.dataset.chunkId, true));
    card.addEventListener("mouseleave", () => light(card.dataset.chunkId, false));
    card.addEventListener("focusin", () => light(card.dataset.chunkId, true));
    card.addEventListener("focusout", () => light(card.dataset.chunkId, false));
  }

  // A page that comes back from the browser's cache must not stay busy.
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
})();
