"use strict";

// Copying an address, from the field or the attribute that holds it.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-as-copy]");
  if (!button) return;
  const around = button.closest("[data-as-copied]");
  const field = around.querySelector("[data-as-text]");
  const said = around.querySelector("[data-as-said]");
  try {
    await navigator.clipboard.writeText(button.dataset.asCopy || field.value);
    said.textContent = around.dataset.asCopied;
  } catch {
    // Without https the browser has no clipboard for pages: the text is selected, and copied where that still works.
    field?.select();
    said.textContent = field && document.execCommand("copy") ? around.dataset.asCopied : around.dataset.asNotCopied;
  }
});
document.addEventListener("focusin", (event) => event.target.matches("[data-as-text]") && event.target.select());

// The last day of a link is asked for where a day is chosen.
(() => {
  const expiry = document.querySelector("[data-testid=new-link] [name=expiry]");
  const day = document.querySelector("[data-testid=new-link] [name=day]")?.closest(".as-field");
  if (!expiry || !day) return;
  const show = () => { day.hidden = expiry.value !== "date"; };
  expiry.addEventListener("change", show);
  show();
})();

// The preview: what visitors see, under what the form says now.
(() => {
  const preview = document.querySelector("[data-as-preview]");
  const settings = document.getElementById("settings");
  if (!preview || !settings) return;
  const of = (name) => preview.querySelector(`[data-as-${name}]`);
  const [opening, suggested, turns, chat, ask, send, stop] = ["opening", "suggested", "turns", "chat", "ask", "send", "stop"].map(of);
  const question = preview.querySelector("textarea");
  let history = [];
  let running = null;

  const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

  const greet = () => {
    const words = settings.elements.opening.value;
    AnswerText.write(opening, words);
    opening.hidden = !words.trim();
    const own = lines(settings.elements.suggested_questions.value);
    suggested.replaceChildren(...(own.length ? own : lines(suggested.dataset.questions)).map((words) => {
      const item = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = words;
      item.append(button);
      return item;
    }));
    suggested.hidden = turns.childElementCount > 0 || !suggested.childElementCount;
  };

  const begin = () => {
    running?.abort();
    history = [];
    turns.replaceChildren();
    greet();
  };

  const newTurn = (words) => {
    const turn = of("turn").content.firstElementChild.cloneNode(true);
    turn.querySelector("[data-as-words]").textContent = words;
    turns.append(turn);
    suggested.hidden = true;
    return turn.querySelector("[data-as-answer]");
  };

  const below = (place, words, name) => {
    const line = document.createElement("p");
    line.className = name;
    line.textContent = words;
    place.append(line);
    return line;
  };

  const refusal = async (response) => {
    if (response.redirected || response.status === 403) return preview.dataset.expired;
    return (await response.json().catch(() => ({}))).detail || preview.dataset.lost;
  };

  const answer = async (place, words) => {
    const body = new FormData(settings);
    body.delete("picture");
    body.set("question", words);
    body.set("history", JSON.stringify(settings.elements.remembers.checked ? history : []));
    const response = await fetch(preview.dataset.url, { method: "POST", body, signal: running.signal });
    if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) throw new Error(await refusal(response));
    const text = place.querySelector(".answer-text");
    let written = "";
    let done = null;
    for await (const { name, data } of eventsOf(response)) {
      if (name === "error") throw new Error(data.detail);
      if (name === "delta") {
        place.querySelector(".as-waiting")?.remove();
        written += data.text;
        AnswerText.write(text, written);
        chat.scrollTop = chat.scrollHeight;
      }
      if (name === "done") done = data;
    }
    if (!done) throw new Error(preview.dataset.lost);
    place.innerHTML = done.html;
    AnswerText.show(place);
    history.push({ role: "user", text: words }, { role: "assistant", text: done.text });
  };

  const submit = async (words) => {
    if (running || !words) return question.focus();
    const place = newTurn(words);
    below(place, preview.dataset.searching, "as-hint as-waiting");
    place.append(Markdown.element("div", [], { className: "answer-text" }));
    place.ariaBusy = "true";
    running = new AbortController();
    [send.hidden, stop.hidden] = [true, false];
    question.value = "";
    chat.scrollTop = chat.scrollHeight;
    try {
      await answer(place, words);
    } catch (failure) {
      place.querySelector(".as-waiting")?.remove();
      const lost = failure.name === "TypeError"; // what fetch and the reader throw when the connection fails
      below(place, failure.name === "AbortError" ? preview.dataset.stopped : lost ? preview.dataset.lost : failure.message, "as-error");
    } finally {
      running = null;
      place.ariaBusy = "false";
      [send.hidden, stop.hidden] = [false, true];
      chat.scrollTop = chat.scrollHeight;
    }
  };

  ask.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(question.value.trim());
  });
  // Enter also ends the choice of a character in an input method (229 in some browsers): that sends nothing.
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    submit(question.value.trim());
  });
  stop.addEventListener("click", () => running?.abort());
  of("again").addEventListener("click", begin);
  suggested.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) submit(button.textContent);
  });
  settings.addEventListener("input", greet);
  begin();
})();
