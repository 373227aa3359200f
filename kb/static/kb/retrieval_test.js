"use strict";

(() => {
  const root = document.querySelector("[data-rt]");
  const form = document.querySelector("[data-sd-form]");

  // -- The cut: results are split again in the page -------------------------------------------------------------------
  const lists = Object.fromEntries([...(root?.querySelectorAll("[data-rt-list]") ?? [])].map((list) => [list.dataset.rtList, list]));
  const hits = () => [...(root?.querySelectorAll(".rt-hit") ?? [])];
  const cut = root?.querySelector("[data-rt-cut]");
  const unlisted = root ? Number(root.querySelector("[data-rt-others]").textContent) - lists.others.children.length : 0;

  const place = (list, rows) => {
    lists[list].append(...rows);
    (list === "near" ? lists.near.parentElement : lists.others.parentElement).hidden =
      list !== "results" && !lists[list].children.length;
  };

  const split = (threshold) => {
    const most = Number(cut.dataset.most);
    const rows = hits().sort((a, b) => a.dataset.number - b.dataset.number);
    const scored = rows.filter((row) => row.dataset.score !== undefined);
    const passed = scored.filter((row) => Number(row.dataset.score) >= threshold);
    const results = passed.slice(0, most);
    const below = scored.filter((row) => Number(row.dataset.score) < threshold && Number(row.dataset.score) > 0);
    const near = below.slice(0, Math.max(0, Math.min(Number(cut.dataset.mostNear), most - results.length)));
    const reasons = new Map([...below.map((row) => [row, root.dataset.gate]), ...passed.slice(most).map((row) => [row, root.dataset.topK])]);
    return { results, near, others: rows.filter((row) => !results.includes(row) && !near.includes(row)), reasons };
  };

  const reasonOf = (row) => {
    let said = row.querySelector("[data-rt-reason]");
    if (!said) {
      said = Object.assign(document.createElement("span"), { className: "rt-why" });
      said.dataset.rtReason = "";
      row.querySelector(".rt-name").after(said);
    }
    return said;
  };

  const apply = ({ results, near, others, reasons }) => {
    for (const [list, rows] of Object.entries({ results, near, others })) place(list, rows);
    for (const row of hits()) {
      const rank = results.indexOf(row);
      row.querySelector("[data-rt-rank]").textContent = rank < 0 ? "–" : rank + 1;
      if (rank >= 0) row.querySelector("[data-rt-reason]")?.remove();
      else if (reasons.has(row)) reasonOf(row).textContent = reasons.get(row);
    }
    document.querySelector("[data-rt-count]").textContent = results.length;
    root.querySelector("[data-rt-others]").textContent = others.length + unlisted;
    const empty = document.querySelector("[data-rt-empty]");
    if (empty) empty.hidden = results.length > 0;
  };

  if (cut) {
    const slider = cut.querySelector("input");
    const value = cut.querySelector("[data-rt-value]");
    const said = cut.querySelector("[data-rt-moved]");
    const undo = cut.querySelector("[data-rt-undo]");
    const save = cut.querySelector("[data-rt-save]");
    const draft = root.querySelector("[data-rt-draft]");
    const at = cut.dataset.at;
    const names = ["results", "near", "others"];
    // As the server has split them, which knows more than the scores.
    const original = Object.fromEntries(names.map((name) => [name, [...lists[name].children]]));
    const reasonsThen = new Map(hits().map((row) => [row, row.querySelector("[data-rt-reason]")?.textContent]));
    original.reasons = new Map([...reasonsThen].filter(([, reason]) => reason));
    const drafted = draft?.querySelector("[name$=threshold]");
    const wasHidden = draft?.hidden;

    const move = (threshold) => {
      const isMoved = Number(threshold) !== Number(at);
      slider.value = threshold;
      value.textContent = isMoved ? Number(slider.value).toFixed(3) : at;
      const found = isMoved ? split(Number(slider.value)) : original;
      apply(found);
      cut.classList.toggle("is-moved", isMoved);
      undo.hidden = !isMoved;
      if (save) save.hidden = !isMoved;
      if (drafted) drafted.value = isMoved ? slider.value : "";
      if (!isMoved && draft && wasHidden) draft.hidden = true;
      said.textContent = said.dataset.words.replace("{count}", found.results.length).replace("{threshold}", value.textContent);
    };
    slider.addEventListener("input", () => move(slider.value));
    slider.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      move((Math.min(1, Math.max(0, Number(slider.value) + step * (event.shiftKey ? 0.001 : 0.01)))).toFixed(3));
    });
    undo.addEventListener("click", () => { move(at); slider.focus(); });
    save?.addEventListener("click", () => {
      draft.hidden = false;
      draft.open = true;
      draft.querySelector("input:not([type=hidden])").focus();
    });
    slider.value = at;
    if (drafted?.value) move(drafted.value);  // a draft that was refused
  }

  // -- Rows that show one line ------------------------------------------------------------------------------------------
  const open = (row, isOpen) => {
    row.classList.toggle("is-open", isOpen);
    row.querySelector("[data-rt-open]").setAttribute("aria-expanded", String(isOpen));
  };
  root?.addEventListener("click", (event) => {
    const button = event.target.closest("[data-rt-open]");
    if (button) open(button.closest(".rt-hit"), button.getAttribute("aria-expanded") !== "true");
    const cancel = event.target.closest("[data-rt-cancel]");
    if (cancel) {
      const row = cancel.closest(".rt-hit");
      row.querySelector(".rt-slot").replaceChildren();
      row.focus();
    }
  });
  document.addEventListener("htmx:afterSettle", ({ target }) => {
    if (target.classList?.contains("rt-slot")) target.querySelector("textarea, input:not([type=hidden])")?.focus();
  });
  const reveal = () => {
    const row = document.getElementById(location.hash.slice(1));
    if (!row?.matches?.(".rt-hit")) return;
    row.closest("details.rt-others")?.setAttribute("open", "");
    open(row, true);
    row.scrollIntoView({ block: "center" });
  };
  window.addEventListener("hashchange", reveal);
  window.addEventListener("load", reveal);

  // -- Keys --------------------------------------------------------------------------------------------------------------
  const help = document.querySelector("[data-rt-keys]");
  const isOn = help?.querySelector("[data-rt-keys-on]");
  const STORED = "zhiku.retrieval-test.keys";
  if (isOn) {
    try { isOn.checked = localStorage.getItem(STORED) !== "off"; } catch { /* no storage: on */ }
    isOn.addEventListener("change", () => {
      try { localStorage.setItem(STORED, isOn.checked ? "on" : "off"); } catch { /* for this page only */ }
    });
  }

  const shown = () => hits().filter((row) => row.offsetParent);
  const current = () => document.activeElement?.closest?.(".rt-hit") ?? root?.querySelector(".rt-hit.is-current");
  const step = (by) => {
    const rows = shown();
    if (!rows.length) return;
    const at = rows.indexOf(current());
    const row = rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))];
    for (const each of hits()) each.classList.toggle("is-current", each === row);
    row.focus();
    row.scrollIntoView({ block: "nearest" });
  };
  const press = (selector) => {
    const row = current() ?? shown()[0];
    if (!row) return;
    if (row.closest(".rt-others")) open(row, true);
    row.querySelector(selector)?.click();
  };
  const keys = {
    "/": () => { form?.elements.q.focus(); form?.elements.q.select(); },
    j: () => step(1),
    k: () => step(-1),
    1: () => press("[data-grade='2']"),
    2: () => press("[data-grade='1']"),
    3: () => press("[data-grade='0']"),
    e: () => press("[data-rt-edit]"),
    w: () => press("[data-rt-why]"),
    "?": () => { help.open = !help.open; help.querySelector("summary").focus(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || !isOn?.checked) return;
    if (event.target.closest("input, textarea, select, [contenteditable], dialog, [role=dialog]")) return;
    const act = Object.hasOwn(keys, event.key) && keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
})();
