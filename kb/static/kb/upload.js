"use strict";
// The drop zone is a label of the file field: without this script a click on it still works.
(() => {
    const zone = document.getElementById("drop-zone");
    if (!zone) return;
    const input = zone.querySelector("input[type=file]");
    const list = document.getElementById("chosen-files");
    const tooMany = document.getElementById("too-many-files");
    const submit = document.getElementById("upload-submit");
    const button = submit.querySelector("button");

    function show() {
        list.replaceChildren(...Array.from(input.files, (file) => {
            const item = document.createElement("li");
            const name = document.createElement("span");
            const size = document.createElement("span");
            name.textContent = file.name;
            size.textContent = `${Math.max(1, Math.round(file.size / 1024)).toLocaleString()} KB`;
            item.append(name, size);
            return item;
        }));
        button.disabled = input.files.length > Number(submit.dataset.maxFiles);
        tooMany.hidden = !button.disabled;
    }

    input.addEventListener("change", show);
    for (const type of ["dragenter", "dragover"]) {
        zone.addEventListener(type, (event) => { event.preventDefault(); zone.classList.add("over"); });
    }
    for (const type of ["dragleave", "drop"]) zone.addEventListener(type, () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
        event.preventDefault();
        const all = new DataTransfer();
        for (const file of [...input.files, ...event.dataTransfer.files]) all.items.add(file);
        input.files = all.files;
        show();
    });
    document.getElementById("upload-form").addEventListener("submit", () => {
        button.disabled = true;
        button.lastChild.textContent = submit.dataset.busy;
    });
    addEventListener("pageshow", show);
})();
