"use strict";

// Hides the knowledge bases whose names do not have what is typed; a chosen one stays.
for (const field of document.querySelectorAll("[data-sd-filter]")) {
  field.addEventListener("input", () => {
    const sought = field.value.trim().toLowerCase();
    for (const pill of field.closest("[data-sd-bases]").querySelectorAll(".sd-pill")) {
      pill.hidden = !pill.textContent.toLowerCase().includes(sought) && !pill.querySelector("input").checked;
    }
  });
}
