"use strict";
// Says what was chosen beside a file field that is drawn as a button of ours: a browser's own speaks the browser's language.
(() => {
    function tell(input) {
        const words = input.parentElement.querySelector(".kb-file-name"), files = input.files;
        if (files.length > 1) words.textContent = words.dataset.many.replace("{count}", files.length.toLocaleString());
        else words.textContent = files.length ? files[0].name : words.dataset.none;
    }
    // The theme writes a chosen file's name into the next text field that it finds, as its own widget has one; ours has
    // none, so that it would write into the title. A field that is marked so is left alone.
    const leaveAlone = () => document.querySelectorAll(".kb-file-input, #drop-zone input").forEach((input) => {
        input.hasChangeListener = true;
    });
    leaveAlone();
    document.addEventListener("readystatechange", leaveAlone);
    document.addEventListener("change", (event) => {
        if (event.target.matches?.(".kb-file-input")) tell(event.target);
    });
    addEventListener("pageshow", () => document.querySelectorAll(".kb-file-input").forEach(tell));
})();
