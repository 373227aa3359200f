// On a narrow screen the groups of settings that are inherited whole are folded away.
if (window.matchMedia("(width < 48rem)").matches) {
    for (const group of document.querySelectorAll(".rp-group:not([data-given])")) group.open = false;
}
