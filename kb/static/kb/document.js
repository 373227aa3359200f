"use strict";
// A document beside its chunks: what is chosen on one side is marked on the other and comes into view; text that was not
// saved is not lost without a question; on a narrow screen one side is shown at a time.
(() => {
    const panes = document.getElementById("document-panes");
    if (!panes) return;
    const original = document.getElementById("kd-original");
    const chunks = document.getElementById("kd-chunks");
    const said = document.getElementById("kd-said");
    const narrow = matchMedia("(max-width: 63.99rem)");
    let current = panes.dataset.current || "";
    let wanted = null;  // the side on which the chosen chunk is still to come into view, once it is loaded

    const card = (id) => chunks.querySelector(`.kd-chunk[data-chunk="${id}"]`);
    const places = (id) => original.querySelectorAll(`[data-chunk="${id}"], [data-chunks~="${id}"]`);

    function scroll(pane, element) {
        const box = element.getBoundingClientRect(), frame = pane.getBoundingClientRect();
        if (box.top < frame.top || box.bottom > frame.bottom) {
            pane.scrollTop += box.top - frame.top - Math.max(16, (frame.height - box.height) / 3);
        }
        const now = element.getBoundingClientRect();
        if (now.bottom > innerHeight || now.top < 0) element.scrollIntoView({block: narrow.matches ? "center" : "nearest"});
    }

    function mark() {
        for (const each of panes.querySelectorAll(".current")) each.classList.remove("current");
        if (!current) return;
        card(current)?.classList.add("current");
        for (const each of places(current)) if (!each.matches(".kd-mark")) each.classList.add("current");
    }

    function show(side) {
        panes.dataset.side = side;
        for (const each of document.querySelectorAll(".kd-sides [data-side]")) {
            each.setAttribute("aria-pressed", String(each.dataset.side === side));
        }
    }

    const load = (url, target) => htmx.ajax("GET", url, {target, swap: "innerHTML", source: target});

    // Brings the chosen chunk into view in the original: its place, else its page, which is drawn once it is in view, else
    // what the server has around it.
    function toOriginal() {
        const [found] = places(current);
        const page = card(current)?.dataset.page;
        const sheet = page && original.querySelector(`.kd-page[data-page="${page}"]`);
        if (found || sheet) {
            scroll(original, found || sheet);
            const isDrawn = sheet?.querySelector("img, .kb-notice");
            if (found || isDrawn) wanted = null;
            if (!found && isDrawn) said.textContent = panes.dataset.unplaced;
        } else if (wanted !== "asked") {
            wanted = "asked";
            load(`${panes.dataset.original}?chunk=${current}`, original);
        } else if (!original.querySelector("[data-testid=original-awaited]")) {
            wanted = null;
            said.textContent = panes.dataset.unplaced;
        }
    }

    function choose(id, from) {
        current = id;
        said.textContent = "";
        mark();
        if (from === "chunks") {
            wanted = "original";
            if (narrow.matches) show("original");
            toOriginal();
            return;
        }
        if (narrow.matches) show("chunks");
        const found = card(id);
        if (found) {
            scroll(chunks, found);
            found.querySelector(".kd-number").focus({preventScroll: true});
        } else if (mayLeave()) {
            load(`${panes.dataset.chunks}?chunk=${id}`, chunks);
        }
    }

    // -- Text that was not saved -----------------------------------------------------------------------------------------
    const isChanged = (field) => field.type === "checkbox" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;
    const unsaved = (within) => [...within.querySelectorAll("form[data-unsaved] textarea")].some(isChanged);
    const mayLeave = (within = chunks) => !unsaved(within) || confirm(panes.dataset.unsaved);

    addEventListener("beforeunload", (event) => {
        if (unsaved(chunks)) event.preventDefault();
    });

    panes.addEventListener("click", (event) => {
        const button = event.target.closest("button, a, summary, input, textarea, label, form");
        if (button?.matches("[data-cancel]") && !mayLeave(button.closest("article"))) {
            event.preventDefault();
            event.stopPropagation();
            return;
        }
        const element = event.target.closest("#kd-original [data-chunk], #kd-original [data-chunks]");
        if (element && (!button || button === element)) {
            // Where chunks overlap, the one after the chosen one
            const ids = (element.dataset.chunk || element.dataset.chunks).split(" ");
            choose(ids[(ids.indexOf(current) + 1) % ids.length], "original");
            return;
        }
        const chosen = event.target.closest("#kd-chunks .kd-chunk");
        if (!chosen) return;
        if (button?.matches("[data-show]") || (!button && !getSelection().toString())) {
            choose(chosen.dataset.chunk, "chunks");
        } else if (event.target.closest(".kd-actions button") && !narrow.matches) {
            choose(chosen.dataset.chunk, "chunks");  // what is worked on is looked at
        }
    }, true);

    for (const each of document.querySelectorAll(".kd-sides [data-side]")) {
        each.addEventListener("click", () => {
            show(each.dataset.side);
            if (each.dataset.side === "original" && current && wanted) toOriginal();
        });
    }

    // Another menu, a click beside it, and Escape close a menu.
    document.addEventListener("click", (event) => {
        for (const each of chunks.querySelectorAll(".kd-actions details[open]")) {
            if (!each.contains(event.target)) each.open = false;
        }
    });
    chunks.addEventListener("keydown", (event) => {
        const menu = event.target.closest?.("details[open]");
        if (event.key === "Escape" && menu) {
            menu.open = false;
            menu.querySelector("summary").focus();
        }
    });

    // A document that was being read is shown as it is then.
    const isRead = () => "unfinished" in panes.dataset && document.querySelector(".kd-state [data-status=ready], .kd-state [data-status=failed]");

    // -- What was loaded ---------------------------------------------------------------------------------------------------
    document.addEventListener("htmx:afterSettle", (event) => {
        if (isRead() && !unsaved(chunks)) {
            delete panes.dataset.unfinished;
            location.reload();
        }
        mark();
        if (wanted && current) toOriginal();
        const fresh = chunks.querySelector(".kd-chunk[data-fresh]");
        if (fresh) {
            fresh.removeAttribute("data-fresh");
            fresh.querySelector(".kd-buttons")?.scrollIntoView({block: "nearest"});
            (fresh.querySelector("textarea, form input:not([type=hidden])") || fresh.querySelector(".kd-number")).focus();
        } else if (event.detail.target === chunks && card(current)) {
            scroll(chunks, card(current));
        }
    });
    document.addEventListener("zhiku:renumbered", () => {
        const url = `${panes.dataset.original}?chunk=${current}`;
        load(url, original);
    });

    if (current) {
        wanted = "asked";  // what is loaded first is where it stands
        mark();
        if (card(current)) scroll(chunks, card(current));
    }
})();
