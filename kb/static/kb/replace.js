"use strict";
// Sends the new file of a document as soon as it is chosen or dropped; one that will not be read is refused at once.
(() => {
    const form = document.getElementById("replace-form");
    if (!form) return;
    const zone = document.getElementById("drop-zone");
    const input = zone.querySelector("input[type=file]");
    const words = document.getElementById("replace-name");
    const trouble = document.getElementById("replace-trouble");

    async function check() {
        const [file] = input.files;
        if (!file) return null;
        const message = await kbFileCheck(file);
        trouble.hidden = !message;
        trouble.textContent = message;
        if (message) {
            input.value = "";
            return null;
        }
        words.textContent = file.name;
        return file;
    }

    async function take() {
        const file = await check();
        if (!file) return;
        words.textContent = `${file.name} · ${words.dataset.busy}`;
        zone.classList.add("busy");
        form.submit();
    }

    input.addEventListener("change", take);
    // One that was chosen before this script had come, or that the browser put back: the button sends it.
    addEventListener("pageshow", check);
    for (const type of ["dragenter", "dragover"]) {
        zone.addEventListener(type, (event) => {
            event.preventDefault();
            zone.classList.add("over");
        });
    }
    for (const type of ["dragleave", "drop"]) zone.addEventListener(type, () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
        event.preventDefault();
        if (event.dataTransfer.files.length !== 1) return;
        input.files = event.dataTransfer.files;
        take();
    });
})();
