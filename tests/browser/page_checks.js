// What axe-core has no rule for; each returns what is wrong, as short HTML.
window.pageChecks = (() => {
    const FOCUSABLE = "a[href], area[href], button, input, select, textarea, summary, iframe, [contenteditable], [tabindex]:not([tabindex='-1'])";
    const LEAST_PIXELS = 12;
    // Charts, which only show more where the mouse is, and what lies behind an open menu, which Escape closes too.
    const NOT_ALONE = "canvas, .kb-shade, #changelist-filter-close";
    const short = (element) => element.cloneNode(false).outerHTML.slice(0, 160);
    const isShown = (element) => {
        const box = element.getBoundingClientRect();
        return box.width > 1 && box.height > 1 && element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    };

    function smallTexts() {
        const found = new Set();
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            const element = texts.currentNode.parentElement;
            if (!texts.currentNode.data.trim() || element.closest("script, style, template, noscript, .material-symbols-outlined")) continue;
            if (parseFloat(getComputedStyle(element).fontSize) >= LEAST_PIXELS || !isShown(element)) continue;
            const range = document.createRange();
            range.selectNodeContents(texts.currentNode);
            if (range.getBoundingClientRect().height > 1) found.add(element);
        }
        for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
            if (parseFloat(getComputedStyle(field).fontSize) < LEAST_PIXELS && isShown(field)) found.add(field);
        }
        return [...found].map((element) => `${getComputedStyle(element).fontSize} ${short(element)} ${element.textContent.trim().slice(0, 40)}`);
    }

    // Elements that a click does something to, and that Tab does not reach. One that holds or stands in what can be focused only listens there.
    function onlyByMouse() {
        const asks = (element) =>
            element.matches("[onclick], [x-on\\:click], [\\@click]") || window.clickListeners?.has(element) ||
            (element.matches("[hx-get], [hx-post], [hx-put], [hx-patch], [hx-delete]") && !element.matches("form") &&
                /(^|[\s,])click/.test(element.getAttribute("hx-trigger") ?? "click") && !/from:/.test(element.getAttribute("hx-trigger") ?? ""));
        const points = (element) => getComputedStyle(element).cursor === "pointer" && getComputedStyle(element.parentElement).cursor !== "pointer";
        return [...document.body.querySelectorAll("*")]
            .filter((element) => !element.matches(NOT_ALONE))
            .filter((element) => (asks(element) || points(element)) && isShown(element))
            .filter((element) => !element.closest(`${FOCUSABLE}, label, option`) && !element.querySelector(FOCUSABLE))
            .map(short);
    }

    const LOOKS = ["outline-style", "outline-width", "outline-color", "box-shadow", "border-color", "background-color", "color", "text-decoration-line", "opacity", "stroke"];
    const ringed = (element) => {
        const style = getComputedStyle(element);
        return LOOKS.map((name) => (name.startsWith("outline") && style.outlineStyle === "none" ? "" : style.getPropertyValue(name))).join();
    };
    const look = (element) => {
        const around = [element, element.parentElement, element.parentElement?.parentElement, element.nextElementSibling, element.previousElementSibling, ...(element.labels ?? []), ...(element.ownerSVGElement ? element.children : [])];
        return around.filter(Boolean).map(ringed).join(";");
    };

    // Elements that look the same with the focus as without it; of those that are alike, one.
    function unseenFocus() {
        const still = new CSSStyleSheet();
        still.replaceSync("*, ::before, ::after { transition: none !important; animation: none !important; }");
        document.adoptedStyleSheets = [...document.adoptedStyleSheets, still];
        const kinds = new Map();
        for (const element of document.querySelectorAll(FOCUSABLE)) {
            if (!element.disabled && element.checkVisibility({ visibilityProperty: true })) kinds.set(`${element.tagName} ${element.type} ${element.className} ${element.closest("nav, aside, header, main, dialog")?.className}`, element);
        }
        const found = [];
        for (const element of kinds.values()) {
            document.activeElement.blur();
            const before = look(element);
            element.focus({ preventScroll: true, focusVisible: true });
            if (document.activeElement === element && look(element) === before) found.push(short(element));
        }
        document.activeElement.blur();
        return found;
    }

    // To be called after each Tab: what is wrong with where the focus is now, blank where nothing is, null where it has gone round.
    let stops = [];
    function nextStop() {
        const element = document.activeElement;
        if (element === document.body || element === document.documentElement || (stops.length > 1 && element === stops[0])) {
            stops = [];
            return null;
        }
        const before = stops.at(-1);
        const seen = stops.includes(element);
        stops.push(element);
        if (seen) return `the focus comes back to ${short(element)}`;
        if (before && !(before.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING)) return `the focus goes back from ${short(before)} to ${short(element)}`;
        const shown = isShown(element) ? element : element.labels?.[0] ?? element.parentElement;
        const points = [...shown.getClientRects()].flatMap((box) =>
            [[0.5, 0.5], [0.1, 0.5], [0.9, 0.5], [0.5, 0.1], [0.5, 0.9]].map(([x, y]) => document.elementFromPoint(box.x + x * box.width, box.y + y * box.height)));
        const inSight = points.some((at) => at && (shown.contains(at) || at.contains(shown) && at !== document.body && at !== document.documentElement));
        return inSight ? "" : `the focus is out of sight at ${short(element)}`;
    }

    return { nextStop, smallTexts, onlyByMouse, unseenFocus };
})();
