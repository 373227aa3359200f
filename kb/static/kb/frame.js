// The theme hides the page until its own scripts have begun. Those of the page come after them, and so does htmx: until then
// what one presses would do nothing.
document.documentElement.classList.add("kb-waits");
document.addEventListener("DOMContentLoaded", () => document.documentElement.classList.remove("kb-waits"));

// The page is hidden, until its scripts have begun, when the browser would do this.
window.addEventListener("load", () => {
    if (document.activeElement === document.body) document.querySelector("main [autofocus]")?.focus();
});

// Tabs that do not fit beside each other are scrolled to the chosen one.
document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll(".kb-tabs").forEach(tabs => {
        const chosen = tabs.querySelector("[aria-current]");
        if (chosen) tabs.scrollLeft = Math.max(0, chosen.offsetLeft + chosen.offsetWidth - tabs.offsetLeft - tabs.clientWidth);
    });
});

// The theme's rows of forms and its fields that search have no names of their own: the columns' and the labels' are theirs.
const nameFields = () => {
    document.querySelectorAll("td[data-label] :is(input:not([type=hidden]), select, textarea)").forEach(field => {
        if (!field.labels?.length && !field.ariaLabel) field.ariaLabel = field.closest("td").dataset.label;
    });
    document.querySelectorAll("select.select2-hidden-accessible").forEach(field => {
        const name = field.labels?.[0]?.textContent.trim() || field.ariaLabel;
        const shown = field.parentElement.querySelector(".select2-selection");
        if (name && shown) [shown, ...shown.querySelectorAll("input, [role=textbox]")].forEach(each => each.setAttribute("aria-label", name));
    });
};
window.addEventListener("load", () => setTimeout(nameFields));  // after those that make the fields

// The names of the theme's symbols are texts, which are read out unless they are hidden; what holds nothing else is named after
// the field beside it.
const hideSymbols = ({target}) => {
    (target.parentElement ?? document).querySelectorAll(".material-symbols-outlined:not([aria-hidden])").forEach(symbol => {
        const control = symbol.closest("a, button");
        if (control && !control.ariaLabel && !control.title && control.textContent.trim() === symbol.textContent.trim()) {
            control.ariaLabel = control.parentElement.querySelector("input")?.placeholder ?? document.getElementById("page").dataset.more;
        }
        symbol.ariaHidden = "true";
    });
};
document.addEventListener("DOMContentLoaded", hideSymbols);
document.addEventListener("htmx:load", hideSymbols);

// Ctrl + Enter saves what is written, as Enter does in a field of one line.
document.addEventListener("keydown", event => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.defaultPrevented) return;
    if (event.target.matches("form[method=post] textarea, form[hx-post] textarea")) event.target.form.requestSubmit();
});
document.addEventListener("formset:added", () => setTimeout(nameFields));

// What htmx puts into the page works at once: in the 20 ms that it waits otherwise, Enter would send a form to the page's address.
document.addEventListener("DOMContentLoaded", () => { if (window.htmx) htmx.config.defaultSettleDelay = 0; });

// A refusal that is made for a place of the page is shown there; htmx shows nothing of an answer that failed.
document.addEventListener("htmx:beforeSwap", ({detail}) => {
    if (detail.xhr.getResponseHeader("HX-Reswap")) detail.shouldSwap = true;
});

// The palette: finds knowledge bases, documents and pages as one types; the server says what there is.
(() => {
    const PAUSE_MS = 150;
    let waiting, asked, opener, at;

    const dialog = () => document.getElementById("palette");
    const input = () => document.getElementById("palette-input");
    const found = () => document.getElementById("palette-found");
    const status = () => document.getElementById("palette-status");
    const options = () => [...found().querySelectorAll("[role=option]")];
    const chosen = () => found().querySelector("[aria-selected=true]");

    const choose = option => {
        chosen()?.setAttribute("aria-selected", "false");
        option?.setAttribute("aria-selected", "true");
        option?.scrollIntoView({block: "nearest"});
        if (option) input().setAttribute("aria-activedescendant", option.id);
        else input().removeAttribute("aria-activedescendant");
    };

    const ask = async () => {
        asked?.abort();
        asked = new AbortController();
        const url = new URL(dialog().dataset.url, location.href);
        url.search = new URLSearchParams({s: input().value, of: dialog().dataset.of, at});
        try {
            const answer = await fetch(url, {signal: asked.signal, headers: {"X-Requested-With": "XMLHttpRequest"}});
            // A login page where the session has ended, or a sentence on too many requests: the page itself shows it.
            if (answer.redirected) return location.reload();
            found().innerHTML = answer.ok ? await answer.text() : "";
            const said = found().querySelector("[data-status]");
            status().textContent = said ? said.textContent : (await answer.json()).detail;
            status().classList.toggle("kb-hidden", options().length > 0);
            said?.remove();
            choose(options()[0]);
        } catch (error) {
            if (error.name !== "AbortError") status().textContent = String(error.message);
        }
    };

    const open = (of, from) => {
        const box = dialog();
        if (!box) return;
        opener = from;
        at = from?.dataset.at || "";
        box.dataset.of = of;
        box.setAttribute("aria-label", box.dataset[of]);
        input().setAttribute("aria-label", box.dataset[of]);
        input().placeholder = box.dataset[of];
        input().value = "";
        found().replaceChildren();
        if (!box.open) box.showModal();
        input().focus();
        ask();
    };

    const close = () => {
        dialog().close();
        opener?.focus();
    };

    const step = by => {
        const all = options();
        if (all.length) choose(all[(all.indexOf(chosen()) + by + all.length) % all.length]);
    };

    document.addEventListener("click", event => {
        const button = event.target.closest("[data-palette]");
        if (button) open(button.dataset.palette, button);
        else if (event.target === dialog() || event.target.closest("#palette [data-close]")) close();
    });
    document.addEventListener("input", event => {
        if (event.target !== input()) return;
        clearTimeout(waiting);
        waiting = setTimeout(ask, PAUSE_MS);
    });
    document.addEventListener("keydown", event => {
        if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k" && dialog()) {
            event.preventDefault();
            if (dialog().open) close();
            else open("all", document.activeElement);
            return;
        }
        if (!dialog()?.open || event.isComposing) return;
        if (event.key === "ArrowDown") step(1);
        else if (event.key === "ArrowUp") step(-1);
        else if (event.key === "Escape") close();
        else if (event.key === "Enter" && event.target === input()) {
            const option = chosen();
            if (option && (event.ctrlKey || event.metaKey)) window.open(option.href, "_blank", "noopener");
            else if (option) location.assign(option.href);
        } else return;
        event.preventDefault();
        event.stopPropagation();
    });
    document.addEventListener("mousemove", event => {
        const option = event.target.closest?.("#palette-found [role=option]");
        if (option && option !== chosen()) choose(option);
    });
})();
