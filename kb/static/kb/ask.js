"use strict";

// Asking: the composer, and answers as they come in.
(() => {
  const form = document.querySelector("[data-ask-form]");
  if (!form) return;
  const query = form.elements.query;
  const send = form.querySelector("[data-ask-send]");
  const stop = form.querySelector("[data-ask-stop]");
  const error = form.querySelector("[data-ask-error]");
  const status = form.querySelector("[data-ask-status]");
  const turns = document.querySelector("[data-ask-turns]");
  const DRAFT = "ask-draft";
  let running = null;

  class Expired extends Error {}
  class Refused extends Error {}

  const complain = (words, isExpired = false) => {
    error.querySelector("span").textContent = words;
    error.querySelector("[data-ask-login]").hidden = !isExpired;
    error.hidden = !words;
  };

  const grow = () => {
    query.style.height = "auto";
    query.style.height = `${query.scrollHeight}px`;
  };

  const write = (words) => {
    query.value = words;
    grow();
  };

  // A question that was not sent is there again after a login, or on the way back.
  const keepDraft = () => {
    if (query.value.trim()) sessionStorage.setItem(DRAFT, query.value);
    else sessionStorage.removeItem(DRAFT);
  };

  // It has the height of the window, so that the answer grows into free space and nothing moves.
  const newTurn = (words) => {
    document.querySelector("[data-ask-empty]")?.remove();
    for (const former of turns.querySelectorAll(".running")) former.classList.remove("running");
    const turn = document.getElementById("ask-turn").content.firstElementChild.cloneNode(true);
    turn.classList.add("running");
    turn.querySelector("[data-ask-query]").textContent = words;
    turn.querySelector("[data-ask-answer]").ariaBusy = "true";
    turns.append(turn);
    turn.scrollIntoView({ block: "start" });
    return turn;
  };

  const show = (place, html) => {
    place.innerHTML = html;
    AnswerText.show(place);
    window.htmx?.process(place);
  };

  // A conversation keeps the knowledge bases that it began with.
  const fixBases = () => {
    const bases = form.querySelector("[data-ask-bases]");
    if (!bases) return;
    const scope = document.createElement("p");
    scope.className = "ask-scope";
    scope.append(...bases.querySelectorAll("summary > :not(:last-child)"));
    bases.replaceWith(scope);
  };

  // The conversation is known before the answer is written, which goes on without this page.
  const keep = (turn, { conversation, url, answer }) => {
    if (!conversation) return;
    turn.dataset.askKept = answer;
    form.elements.conversation.value = conversation;
    fixBases();
    form.dataset.url = url;
    history.replaceState(history.state, "", url);
  };

  // The server writes on what this page has lost, or holds what it has written; false where it cannot be reached either.
  const takeUp = async (turn) => {
    const response = await fetch(turn.dataset.askKept).catch(() => null);
    if (!response?.ok || response.redirected) return false;
    show(turn.querySelector("[data-ask-answer]"), await response.text());
    return true;
  };

  // At most once a frame.
  const draw = (turn) => {
    const place = turn.querySelector("[data-ask-text]");
    if (!place || turn.written === turn.drawn) return;
    turn.drawn = turn.written;
    AnswerText.write(place, turn.written);
  };

  const handlers = (turn) => ({
    sources: ({ html, ...kept }) => {
      keep(turn, kept);
      if (html) show(turn.querySelector("[data-ask-answer]"), html);
      else turn.querySelector("[data-ask-waiting]").textContent = form.dataset.writing;
    },
    delta: ({ text }) => {
      turn.querySelector("[data-ask-waiting]")?.remove();
      turn.written = (turn.written ?? "") + text;
      requestAnimationFrame(() => draw(turn));
    },
    done: (data) => {
      show(turn.querySelector("[data-ask-answer]"), data.html);
      show(document.querySelector("[data-ask-conversations]"), data.conversations);
      keep(turn, data);
    },
    error: ({ detail }) => { throw new Error(detail); },
  });

  const refusal = async (response) => {
    if (response.redirected || response.status === 403) return new Expired(form.dataset.expired);
    const told = await response.json().catch(() => ({ detail: form.dataset.lost }));
    return response.status === 400 ? new Refused(told.detail) : new Error(told.detail);
  };

  const ask = async (turn, body) => {
    const response = await fetch(form.action, { method: "POST", body, signal: running.signal });
    if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) throw await refusal(response);
    const handle = handlers(turn);
    let finished = false;
    for await (const event of eventsOf(response)) {
      handle[event.name]?.(event.data);
      finished ||= event.name === "done";
    }
    if (!finished) throw new Error(form.dataset.lost);
  };

  // What was written stays, below it what happened, and a way to ask again.
  const fail = (turn, failure, words) => {
    if (failure instanceof Expired || failure instanceof Refused) {
      turn.remove();
      if (!query.value) write(words);
      keepDraft();
      return complain(failure.message, failure instanceof Expired);
    }
    const lost = failure.name === "TypeError"; // what fetch and the reader throw when the connection fails
    const told = document.getElementById("ask-failure").content.firstElementChild.cloneNode(true);
    const reason = failure.name === "AbortError" ? form.dataset.stopped : lost ? form.dataset.lost : failure.message;
    told.querySelector("[data-ask-reason]").textContent = reason;
    turn.querySelector("[data-ask-waiting]")?.remove();
    turn.querySelector("[data-ask-answer]").append(told);
  };

  const submit = async (words) => {
    complain("");
    if (running || !words) return query.focus();
    if (!form.elements.conversation.value && !form.querySelector('[name="kb"]:checked')) return complain(form.dataset.noKb);
    const body = new FormData(form);
    body.set("query", words);
    const turn = newTurn(words);
    running = new AbortController();
    send.hidden = true;
    stop.hidden = false;
    if (query.value.trim() === words) write("");
    status.textContent = form.dataset.searching;
    try {
      await ask(turn, body);
      const told = turn.querySelector("[data-ask-answer] > :is(h3, .ask-failure)"); // where no answer was written
      status.textContent = told?.firstElementChild?.textContent ?? told?.textContent ?? form.dataset.finished;
    } catch (failure) {
      const isKept = turn.dataset.askKept && failure.name !== "AbortError";
      if (!isKept || !(await takeUp(turn))) fail(turn, failure, words);
      status.textContent = "";
    } finally {
      running = null;
      const wasOnStop = document.activeElement === stop;
      send.hidden = false;
      stop.hidden = true;
      turn.querySelector("[data-ask-answer]").ariaBusy = "false";
      keepDraft();
      const isIdle = wasOnStop || document.activeElement === document.body;
      if (isIdle && matchMedia("(pointer: fine)").matches) query.focus({ preventScroll: true }); // no keyboard rises over the answer
    }
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(query.value.trim());
  });
  // Enter also ends the choice of a character in an input method (229 in some browsers): that sends nothing.
  query.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    submit(query.value.trim());
  });
  query.addEventListener("input", grow);
  stop.addEventListener("click", () => {
    const kept = turns.querySelector(".running")?.dataset.askKept;
    if (kept) {
      const body = new URLSearchParams({ csrfmiddlewaretoken: form.elements.csrfmiddlewaretoken.value });
      fetch(kept, { method: "POST", body, keepalive: true });
    }
    running?.abort();
  });

  document.addEventListener("click", (event) => {
    const suggested = event.target.closest("[data-ask-question]");
    if (suggested) return void submit(suggested.textContent.trim());
    const again = event.target.closest("[data-ask-again]");
    if (!again || running) return;
    const turn = again.closest("[data-ask-turn]");
    const words = again.dataset.askAgain || turn.querySelector("[data-ask-query]").textContent;
    if (again.closest("[data-testid='failure']") && !turn.dataset.askKept) turn.remove(); // it was not kept
    submit(words);
  });

  form.querySelector("[data-ask-bases]")?.addEventListener("change", ({ currentTarget }) => {
    const names = [...currentTarget.querySelectorAll('[name="kb"]:checked')].map((box) => box.labels[0].textContent.trim());
    const separator = document.documentElement.lang.startsWith("zh") ? "、" : ", ";
    currentTarget.querySelector("[data-ask-chosen]").textContent = names.join(separator) || form.dataset.none;
    if (names.length) complain("");
  });

  window.addEventListener("pagehide", keepDraft);
  if (!query.value) query.value = sessionStorage.getItem(DRAFT) ?? "";
  grow();
  turns.querySelector("[data-ask-turn]:last-of-type")?.scrollIntoView({ block: "start" });
  document.addEventListener("DOMContentLoaded", () => { // the page is hidden until then
    if (matchMedia("(pointer: fine)").matches) query.focus({ preventScroll: true });
  });
})();
