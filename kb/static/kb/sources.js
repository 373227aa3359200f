// The form of a source shows the fields of its kind.
const WEB = ["page", "sitemap", "crawl", "feed"];
const OF_WEB = ["url", "live", "max_pages", "max_depth", "include", "exclude"];
const kind = document.getElementById("id_kind");

function rowOf(name) {
    const row = document.querySelector(`.field-${name}`);
    return row && (row.closest(".form-row") || row);
}

function show() {
    const isWeb = WEB.includes(kind.value);
    for (const name of OF_WEB) rowOf(name)?.toggleAttribute("hidden", !isWeb);
    for (const input of document.querySelectorAll("[name^=setting_]")) {
        rowOf(input.name)?.toggleAttribute("hidden", !input.name.startsWith(`setting_${kind.value}_`));
    }
    for (const group of document.querySelectorAll("fieldset")) {
        const rows = [...group.querySelectorAll(".form-row")];
        if (rows.length) group.toggleAttribute("hidden", rows.every((row) => row.hidden));
    }
}

if (kind) {
    kind.addEventListener("change", show);
    show();
}
