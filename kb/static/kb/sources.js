// The form of a source shows the fields of its kind.
const WEB = ["page", "sitemap", "crawl", "feed"];
const OF_WEB = ["url", "live", "max_pages", "max_depth", "include", "exclude"];
const kind = document.getElementById("id_kind");

function toggle(input, isShown) {
    input?.closest(".form-row")?.toggleAttribute("hidden", !isShown);
}

function show() {
    for (const name of OF_WEB) toggle(document.getElementById(`id_${name}`), WEB.includes(kind.value));
    for (const input of document.querySelectorAll("[name^=setting_]")) {
        toggle(input, input.name.startsWith(`setting_${kind.value}_`));
    }
    for (const group of document.querySelectorAll("fieldset.module")) {
        const rows = [...group.querySelectorAll(".form-row")];
        group.toggleAttribute("hidden", rows.length > 0 && rows.every((row) => row.hidden));
    }
}

if (kind) {
    kind.addEventListener("change", show);
    show();
}
