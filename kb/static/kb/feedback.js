"use strict";

// Thumbs, also those of answers that come in later; a thumb that is pressed again is taken back.
(() => {
  const say = async (group, value) => {
    const token = document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";
    const response = await fetch(group.dataset.feedback, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRFToken": token },
      body: JSON.stringify({ value }),
    });
    if (response.ok) return;
    const expired = response.status === 401 || response.status === 403;
    const detail = expired ? group.dataset.expired : (await response.json().catch(() => ({}))).detail;
    throw new Error(detail ?? group.dataset.lost);
  };

  const show = (group, value) => {
    for (const thumb of group.querySelectorAll("[data-value]")) {
      thumb.setAttribute("aria-pressed", String(Number(thumb.dataset.value) === value));
    }
  };

  document.addEventListener("click", async (event) => {
    const thumb = event.target.closest("[data-feedback] [data-value]");
    if (!thumb) return;
    const group = thumb.closest("[data-feedback]");
    const said = group.querySelector("[data-said]");
    const value = thumb.getAttribute("aria-pressed") === "true" ? null : Number(thumb.dataset.value);
    if (group.ariaBusy === "true") return;
    group.ariaBusy = "true";
    try {
      await say(group, value);
      show(group, value);
      said.className = "fb-said";
      said.textContent = value === null ? group.dataset.takenBack : value > 0 ? group.dataset.kept : group.dataset.noted;
    } catch (failure) {
      said.className = "fb-said bad";
      said.textContent = failure.name === "TypeError" ? group.dataset.lost : failure.message;
    } finally {
      group.ariaBusy = "false";
    }
  });
})();
