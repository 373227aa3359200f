"use strict";

(() => {
  const form = document.querySelector("[data-ask-form]");
  if (!form) return;
  const query = form.elements.query;
  const send = form.querySelector(".ask-send");
  const stop = form.querySelector("[data-ask-stop]");
  const error = form.querySelector("[data-ask-error]");
  const status = form.querySelector("[data-ask-status]");
  const turns = document.querySelector("[data-ask-turns]");
  let running = null;

  // Events as they come in; a piece of the stream may end anywhere.
  async function* eventsOf(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      buffer += value;
      let end;
      while ((end = buffer.indexOf("\n\n")) >= 0) {
        const lines = buffer.slice(0, end).split("\n");
        buffer = buffer.slice(end + 2);
        const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
        yield { name: field("event"), data: JSON.parse(field("data")) };
      }
    }
  }

  const complain = (words) => {
    error.textContent = words;
    error.hidden = !words;
  };

  const newTurn = (words) => {
    document.querySelector("[data-ask-empty]")?.remove();
    const turn = document.getElementById("ask-turn").content.firstElementChild.cloneNode(true);
    turn.querySelector("[data-ask-query]").textContent = words;
    turns.append(turn);
    turn.scrollIntoView({ block: "start" });
    return turn;
  };

  // Whoever has scrolled away to read is not pulled back.
  const follow = (turn, change) => {
    const follows = form.getBoundingClientRect().bottom >= turn.getBoundingClientRect().bottom - 80;
    change();
    if (follows) form.scrollIntoView({ block: "end" });
  };

  const handlers = (turn) => ({
    sources: ({ html }) => follow(turn, () => {
      turn.querySelector("[data-ask-sources]").innerHTML = html;
      turn.querySelector("[data-ask-waiting]").textContent = form.dataset.writing;
    }),
    delta: ({ text }) => follow(turn, () => {
      turn.querySelector("[data-ask-waiting]").hidden = true;
      turn.querySelector("[data-ask-text]").append(text);
    }),
    done: (data) => follow(turn, () => {
      turn.querySelector("[data-ask-answer]").innerHTML = data.html;
      document.querySelector("[data-ask-conversations]").innerHTML = data.conversations;
      if (!data.conversation) return;
      form.elements.conversation.value = data.conversation;
      const bases = form.querySelector("[data-sd-bases]");
      if (bases) bases.disabled = true; // a conversation keeps the knowledge bases that it began with
      history.replaceState(null, "", data.url);
    }),
    error: ({ detail }) => { throw new Error(detail); },
  });

  const refusal = async (response) => {
    if (response.redirected || response.status === 403) return form.dataset.expired;
    try {
      return (await response.json()).detail;
    } catch {
      return form.dataset.lost;
    }
  };

  const ask = async (turn, body) => {
    const response = await fetch(form.action, { method: "POST", body, signal: running.signal });
    if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) throw new Error(await refusal(response));
    const handle = handlers(turn);
    let finished = false;
    for await (const event of eventsOf(response)) {
      handle[event.name]?.(event.data);
      finished ||= event.name === "done";
    }
    if (!finished) throw new Error(form.dataset.lost);
  };

  const submit = async () => {
    const words = query.value.trim();
    complain("");
    if (running || !words) return query.focus();
    if (!form.elements.conversation.value && !form.querySelector('[name="kb"]:checked')) return complain(form.dataset.noKb);
    const body = new FormData(form);
    const turn = newTurn(words);
    running = new AbortController();
    send.hidden = true;
    stop.hidden = false;
    query.value = "";
    status.textContent = form.dataset.writing;
    try {
      await ask(turn, body);
      status.textContent = form.dataset.finished;
    } catch (failure) {
      const stopped = failure.name === "AbortError";
      const lost = failure.name === "TypeError"; // what fetch and the reader throw when the connection fails
      complain(stopped ? form.dataset.stopped : lost ? form.dataset.lost : failure.message);
      turn.querySelector("[data-ask-waiting]")?.remove();
      if (!turn.querySelector("[data-ask-text]")?.textContent) turn.remove();
      if (!query.value) query.value = words;
      status.textContent = "";
    } finally {
      running = null;
      send.hidden = false;
      stop.hidden = true;
      query.focus();
    }
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  // Enter also ends the choice of a character in an input method: that sends nothing.
  query.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  stop.addEventListener("click", () => running?.abort());
  query.focus();
})();
