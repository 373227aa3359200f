"use strict";

// Answers in pages of the admin as the chat page shows them: a number opens what its source does; where that is not listed, no number
// stands.
const AnswerText = (() => {
  const mark = (place, number) => {
    if (!place.dataset.cites?.split(" ").includes(String(number))) return undefined; // no source has this number: it is text
    const source = place.parentElement.querySelector(`[data-source="${number}"]`);
    if (!source) return null;
    const opens = source.querySelector("a")?.cloneNode(false) ?? document.createElement("span");
    Object.assign(opens, { textContent: number, className: "", title: source.title, ariaLabel: opens.href ? source.title : null });
    return Markdown.element("sup", [opens], { className: "answer-cite" });
  };

  const write = (place, text) => {
    const linkWords = place.closest("[data-link-words]").dataset.linkWords;
    Markdown.render(place, text, { cite: (number) => mark(place, number), linkWords });
  };

  // Each once: what is on the page, and what comes into it.
  const show = (page) => {
    for (const place of page.querySelectorAll("[data-answer-text]")) {
      delete place.dataset.answerText;
      write(place, place.textContent);
    }
  };

  document.addEventListener("htmx:load", ({ target }) => show(target.parentElement ?? target));
  show(document);
  return { show, write };
})();
