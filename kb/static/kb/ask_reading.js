"use strict";

// Reading answers: passages in a drawer, copies, and the list of conversations.
(() => {
  const drawer = document.querySelector("[data-ask-drawer]");
  if (!drawer) return;
  const form = document.querySelector("[data-ask-form]");
  const title = document.getElementById("ask-drawer-title");
  const body = drawer.querySelector("[data-ask-drawer-body]");

  // -- Passages: first what the answer rested on, at once; then the passage in its document. --------------------------
  const excerptOf = (source) => {
    const excerpt = source.querySelector("[data-ask-excerpt]");
    return (excerpt?.content ?? excerpt)?.textContent ?? "";
  };

  const plain = (className, words) => {
    const paragraph = document.createElement("p");
    paragraph.className = className;
    paragraph.textContent = words;
    return paragraph;
  };

  const load = async (link, address) => {
    const response = await fetch(address).catch(() => null);
    if (drawer.dataset.shows !== address) return; // another one was opened meanwhile
    if (response?.ok && !response.redirected) {
      body.innerHTML = await response.text();
      window.htmx?.process(body);
      body.dispatchEvent(new Event("zhiku:passage", { bubbles: true }));
    } else {
      body.prepend(plain("ask-hint", response?.status === 404 ? drawer.dataset.gone : drawer.dataset.lost));
    }
    body.ariaBusy = "false";
  };

  const open = (link) => {
    const answer = link.closest("[data-ask-answer]");
    const source = answer.querySelector(`[data-source="${link.dataset.number}"]`);
    title.textContent = source?.querySelector("[data-ask-label]")?.textContent ?? "";
    body.replaceChildren(plain("kp-marked", source ? excerptOf(source) : ""));
    drawer.dataset.shows = link.dataset.askPassage;
    drawer.showModal();
    title.focus();
    history.pushState({ passage: true }, ""); // so that the way back closes it
    if (link.hasAttribute("data-outside")) {
      const away = document.createElement("a");
      Object.assign(away, { href: link.href, target: "_blank", rel: "noopener noreferrer", className: "ask-link", textContent: link.href });
      body.append(away);
    }
    if (!link.dataset.askPassage) return;
    body.ariaBusy = "true";
    load(link, link.dataset.askPassage);
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-ask-passage]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    open(link);
  });
  drawer.querySelector("[data-ask-drawer-close]").addEventListener("click", () => drawer.close());
  drawer.addEventListener("click", (event) => event.target === drawer && drawer.close());
  drawer.addEventListener("close", () => {
    body.replaceChildren(); // nothing asks on for what nobody looks at
    if (history.state?.passage) history.back();
  });
  window.addEventListener("popstate", () => {
    if (drawer.open) drawer.close();
    if (form.dataset.url) history.replaceState(history.state, "", form.dataset.url); // the conversation began behind it
  });

  // -- Copies ---------------------------------------------------------------------------------------------------------
  const sourcesOf = (answer) =>
    [...answer.querySelectorAll("[data-source]")].map((source) => {
      const link = source.querySelector("a");
      const address = link.getAttribute("href") === "#" ? "" : ` ${link.href}`;
      return `[${source.dataset.source}] ${source.querySelector("[data-ask-label]").textContent}${address}`;
    });

  const copy = async (button) => {
    const answer = button.closest("[data-ask-answer]");
    const said = answer.querySelector("[data-said]");
    const written = answer.querySelector("[data-ask-written]").dataset.askWritten;
    const bare = written.replace(/ ?[[［【][\d ,，、;；~–—～-]{1,40}[\]］】]/g, "");
    const text = button.dataset.askCopy === "cited" ? [written, ...sourcesOf(answer)].join("\n\n") : bare;
    const { copied, notCopied } = button.closest(".ask-actions").dataset;
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = copied;
    } catch {
      said.textContent = notCopied;
    }
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-ask-copy]");
    if (button) copy(button);
    const cancel = event.target.closest("[data-ask-cancel]");
    if (cancel) cancel.closest("[data-ask-write]").replaceChildren();
  });

  // A form that came in is in view, and what is empty in it is to be written.
  document.addEventListener("htmx:afterSwap", ({ target }) => {
    const place = target.closest?.("[data-ask-write]") ?? target.querySelector?.("[data-testid='written']");
    if (!place) return;
    const empty = [...place.querySelectorAll("textarea, input:not([type=hidden])")].find((field) => !field.value);
    (empty ?? place.querySelector("[type=submit], [data-ask-again]"))?.focus();
  });

  // -- What opens over the page closes by Escape and by a click beside it. --------------------------------------------
  document.addEventListener("click", (event) => {
    for (const pop of document.querySelectorAll("[data-ask-pop][open]")) if (!pop.contains(event.target)) pop.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const pop = event.key === "Escape" && document.querySelector("[data-ask-pop][open]");
    if (!pop) return;
    pop.open = false;
    pop.querySelector("summary").focus();
  });

  // -- The list of conversations: beside the page, or over it where there is no room. ------------------------------------
  const aside = document.querySelector("[data-ask-aside]");
  const nav = document.querySelector("[data-ask-nav]");
  const sheet = document.querySelector("[data-ask-sheet]");
  const opener = document.querySelector("[data-ask-list-open]");

  const setList = (isOpen) => {
    aside.hidden = !isOpen;
    opener.ariaExpanded = String(isOpen);
    const kept = isOpen ? "open" : "closed";
    document.cookie = `ask_list=${kept}; path=${location.pathname}; max-age=31536000; samesite=lax`;
  };

  opener.addEventListener("click", () => {
    if (matchMedia("(width < 64rem)").matches) {
      sheet.append(nav);
      sheet.showModal();
      return;
    }
    setList(true);
    nav.querySelector("[data-ask-list-close]").focus();
  });
  nav.querySelector("[data-ask-list-close]").addEventListener("click", () => {
    if (sheet.open) return sheet.close();
    setList(false);
    opener.focus();
  });
  sheet.addEventListener("click", (event) => event.target === sheet && sheet.close());
  sheet.addEventListener("close", () => aside.append(nav));
})();
