"use strict";

// The page: who is let in, the conversation, the composer, the list of conversations.
(() => {
  const { setup, words, browser, tab } = Client;
  const { element, render } = Markdown;
  const { fill, icon, iconButton, wordButton } = Turn;
  const $ = (id) => document.getElementById(id);
  const [field, send, stop, scroller, entry, welcome, list] = ["question", "send", "stop", "scroller", "entry", "welcome", "list"].map($);
  const NARROW = matchMedia("(width < 64rem)");
  const hasMouse = matchMedia("(pointer: fine)").matches;
  const MOST = setup.question_characters;

  let entered = null; // what the server told when it let the visitor in
  let conversation = null; // its id
  let turns = [];
  let running = null; // { turn, asked, controller, wantsStop }
  let host = null; // the port to the website that this is a frame of
  let hostPage = null;

  const say = (text) => { $("status").textContent = text; };
  const complain = (text, remedy = "") => {
    $("trouble").textContent = [text, remedy].filter(Boolean).join(" ");
    $("trouble").hidden = !text;
  };
  const guarded = async (work) => {
    try {
      return await work();
    } catch (error) {
      complain(error.message, error.remedy ?? (error instanceof Client.Lost ? words.unreachable_remedy : ""));
      throw error;
    }
  };
  const quietly = (work) => guarded(work).catch(() => null);

  // -- Entering ----------------------------------------------------------------------------------------------------

  // A link's key is taken out of the address bar, so that it is not handed on with it.
  const takeKey = () => {
    const address = new URL(location);
    const key = address.searchParams.get("key") ?? new URLSearchParams(address.hash.slice(1)).get("key") ?? "";
    if (!key) return "";
    address.searchParams.delete("key");
    address.hash = "";
    history.replaceState(history.state, "", address);
    return key;
  };
  // One that let this browser in is kept for the next time that it is asked for, as with a new password, and tried before that of
  // the address: whatever link is opened, it takes nothing away.
  const keys = [browser.get("key"), takeKey()].filter((key) => key && key.length <= setup.credential_characters);
  const keepKey = () => keys.length && browser.set("key", keys[0]);

  const enter = async (password = "") => {
    const body = { key: keys[0] ?? "", password, visit: browser.get("visit") ?? "" };
    try {
      entered = await Client.json("enter/", { method: "POST", body });
    } catch (error) {
      if (error.requirement === "password") keepKey(); // the link was right
      if (error.requirement !== "link") throw error;
      browser.remove("key");
      keys.shift();
      if (!keys.length) throw error;
      return enter(password);
    }
    browser.set("visit", entered.visit);
    keepKey();
  };
  Client.onExpired(() => enter());

  const shut = (...parts) => {
    for (const each of [$("composer"), welcome, $("new"), $("open-list")]) each.hidden = true;
    $("turns").replaceChildren();
    entry.hidden = false;
    entry.replaceChildren(...parts);
  };

  const passwordForm = (error) => {
    const input = element("input", [], { type: "password", id: "password", autocomplete: "current-password", required: true });
    const label = element("label", [words.password], { htmlFor: "password" });
    const form = element("form", [label, input, element("button", [words.enter], { className: "primary" })]);
    if (error.wasTried) input.setAttribute("aria-invalid", "true");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      open(input.value);
    });
    return form;
  };

  const showRequirement = (error) => {
    const heading = element("h2", [error.message], { tabIndex: -1 });
    const remedy = error.remedy ? [element("p", [error.remedy], { className: "quiet" })] : [];
    const retry = wordButton(words.retry, () => open(), "primary");
    const ways = {
      password: () => [passwordForm(error)],
      sign_in: () => [element("a", [words.sign_in], { href: error.login, className: "primary" })],
      link: () => [],
      closed: () => [retry],
    };
    const way = (ways[error.requirement] ?? (() => [retry]))();
    shut(heading, ...remedy, ...way);
    (entry.querySelector("input") ?? heading).focus();
  };

  const open = async (password) => {
    complain("");
    if (!setup.is_embeddable) {
      const link = element("a", [words.own_page], { href: setup.address, target: "_blank", rel: "noopener", className: "primary" });
      return shut(element("h2", [words.not_embeddable]), link);
    }
    try {
      await enter(password);
    } catch (error) {
      if (error instanceof Client.Lost) error.remedy = words.unreachable_remedy;
      return showRequirement(Object.assign(error, { wasTried: Boolean(password) }));
    }
    entry.hidden = true;
    for (const each of [$("composer"), $("new"), $("open-list")]) each.hidden = false;
    $("forget").hidden = !entered.keeps;
    await begin();
  };

  const begin = async () => {
    listConversations();
    const pending = tab.get("pending");
    const current = tab.get("conversation");
    field.value = tab.get("draft") ?? "";
    grow();
    if (current && entered.keeps) await quietly(() => load(current));
    if (!turns.length) showWelcome();
    if (pending && !running) resume(pending);
    if (hasMouse && !running) field.focus({ preventScroll: true });
  };

  // -- A conversation ------------------------------------------------------------------------------------------------

  const showWelcome = () => {
    const opening = element("div", [], { className: "opening" });
    render(opening, entered.opening || words.nothing_asked, { linkWords: words.link_of_answer });
    const questions = entered.suggested_questions.map((each) => element("li", [wordButton(each, () => ask(each), "suggestion")]));
    const picture = document.querySelector(".bar .picture").cloneNode(true);
    const note = entered.keeps ? [] : [element("p", [words.not_kept], { className: "quiet" })];
    welcome.replaceChildren(picture, opening, ...(questions.length ? [element("ul", questions)] : []), ...note);
    welcome.hidden = false;
  };

  const settle = () => turns.forEach((turn, at) => turn.answer.status !== "writing" && turn.finish(at === turns.length - 1));

  const actions = {
    ask: (question, insteadOf) => ask(question, insteadOf),
    isBusy: () => running !== null,
    keeps: () => entered.keeps,
    isEnter: (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229,
    say, complain, guarded,
  };

  const clear = () => {
    running?.controller.abort();
    [conversation, turns] = [null, []];
    $("turns").replaceChildren();
    $("export").hidden = true;
    complain("");
  };

  const remember = (id) => {
    conversation = id;
    if (id) tab.set("conversation", id);
    else tab.remove("conversation");
    markCurrent();
  };

  const restored = ({ question, answer }) => {
    const turn = Turn.create(question, actions);
    turn.text = answer.answer;
    turn.answer = answer;
    return turn;
  };

  const load = async (id) => {
    let told;
    try {
      told = await Client.json(`conversations/${id}/`);
    } catch (error) {
      if (error.status === 404) return remember(null);
      throw error;
    }
    clear();
    welcome.hidden = true;
    remember(id);
    turns = told.turns.map(restored);
    $("turns").append(...turns.map((turn) => turn.element));
    offerEarlier(told);
    settle();
    $("export").hidden = !turns.length;
    const last = turns.at(-1);
    if (last?.answer.status === "writing") {
      tab.remove("pending");
      run(last, { message_id: last.answer.message_id });
    }
    scroller.scrollTop = scroller.scrollHeight;
  };

  const offerEarlier = ({ id, earlier }) => {
    if (!earlier) return;
    const button = wordButton(words.earlier, () => quietly(async () => {
      const told = await Client.json(`conversations/${id}/?before=${earlier}`);
      const before = told.turns.map(restored);
      button.replaceWith(...before.map((turn) => turn.element));
      turns.unshift(...before);
      settle();
      offerEarlier(told);
    }), "plain earlier");
    $("turns").prepend(button);
  };

  const startOver = () => {
    clear();
    remember(null);
    tab.remove("pending");
    showWelcome();
    closeList();
    field.focus();
  };

  // -- Asking ----------------------------------------------------------------------------------------------------------

  const ask = (words_, replaced = null) => {
    const question = words_.trim();
    complain("");
    if (running || !question || !entered) return field.focus();
    if ([...question].length > MOST) return complain(fill(words.too_long, { most: MOST }));
    const body = { question, sending_id: newId(), conversation_id: conversation };
    if (replaced) body.instead_of = replaced.answer.message_id;
    if (!entered.keeps && entered.remembers) {
      const said = turns.filter((turn) => turn !== replaced).slice(-setup.turns / 2).flatMap((turn) => [
        { role: "user", text: turn.question.slice(0, setup.turn_characters) },
        { role: "assistant", text: turn.text.slice(0, setup.turn_characters) },
      ]);
      // More than the model is given, and less than what a request may hold.
      while (said.reduce((sum, { text }) => sum + text.length, 0) > 8000) said.splice(0, 2);
      body.history = said;
    }
    if (hostPage) body.page = hostPage;
    if (field.value.trim() === question) write("");
    if (!hasMouse) field.blur(); // no keyboard stays above the answer
    const turn = Turn.create(question, actions);
    run(turn, { body }, replaced);
  };

  const newId = () => crypto.randomUUID?.() ?? "10000000-1000-4000-8000-100000000000".replace(/[018]/g, (digit) =>
    (digit ^ (crypto.getRandomValues(new Uint8Array(1))[0] & (15 >> (digit / 4)))).toString(16));

  // After a reload: the question that no stored conversation holds yet is asked again, as the same one.
  const resume = ({ question, asked, insteadOf }) => {
    const replaced = turns.find((turn) => turn.answer.message_id === insteadOf) ?? null;
    run(Turn.create(question, actions), asked, replaced);
  };

  const run = async (turn, asked, replaced = null) => {
    const controller = new AbortController();
    running = { turn, asked, controller, wantsStop: false };
    welcome.hidden = true;
    if (!turns.includes(turn)) {
      for (const each of turns) each.finish(false);
      if (replaced) replaced.element.hidden = true;
      turns.push(turn);
      $("turns").append(turn.element);
      for (const each of document.querySelectorAll(".turn.current")) each.classList.remove("current");
      turn.element.classList.add("current");
      turn.element.scrollIntoView({ block: "start" });
      tab.set("pending", { question: turn.question, asked, insteadOf: replaced?.answer.message_id });
    }
    send.hidden = true;
    stop.hidden = false;
    say(words.searching);
    try {
      const answer = await Client.answer(asked, {
        signal: controller.signal,
        waiting,
        sources: (found) => {
          turn.found(found);
          say(words.writing);
          if (replaced) {
            replaced.element.remove();
            turns = turns.filter((each) => each !== replaced);
          }
          if (found.conversation_id) remember(found.conversation_id);
          tab.set("pending", { question: turn.question, asked: { message_id: found.message_id } });
          if (running?.wantsStop) stopAnswer();
        },
        delta: (text) => {
          turn.grow(text);
          if (isAtEnd()) follow();
        },
      });
      if (running?.turn !== turn) return;
      finish();
      turn.end(answer, true);
      if (answer.conversation_id) remember(answer.conversation_id);
      say(turn.said());
      listConversations();
    } catch (error) {
      if (turn.answer.status === "stopped") return;
      if (running?.turn === turn) finish();
      failed(turn, error, replaced);
    }
  };

  const isAtEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
  const follow = () => { scroller.scrollTop = scroller.scrollHeight; };

  const finish = () => {
    running = null;
    tab.remove("pending");
    waiting(null);
    const wasOnStop = document.activeElement === stop;
    send.hidden = false;
    stop.hidden = true;
    $("export").hidden = !turns.length;
    if (hasMouse && (wasOnStop || document.activeElement === document.body)) field.focus({ preventScroll: true });
  };

  // Of an answer that has begun, what was written stays. Of any other nothing was stored: the question is in the composer again, with
  // what was wrong.
  const failed = (turn, error, replaced) => {
    if (error.hasBegun) {
      turn.end({ ...turn.answer, status: "broken" }, true);
      return complain(error.message, error.remedy);
    }
    turn.element.remove();
    turns = turns.filter((each) => each !== turn);
    if (replaced) replaced.element.hidden = false;
    say("");
    if (error.name === "AbortError") return;
    settle();
    if (!turns.length && entered) showWelcome();
    if (!field.value) write(turn.question);
    if (error.requirement) return showRequirement(error);
    complain(error.message, error.remedy ?? "");
    field.focus();
  };

  let counting = 0;
  const waiting = (seconds) => {
    clearInterval(counting);
    const place = $("network");
    place.hidden = seconds === null;
    if (seconds === null) {
      if (place.textContent) say(words.back);
      place.textContent = "";
      return;
    }
    const end = Date.now() + 1000 * seconds;
    const tell = () => {
      const left = Math.ceil((end - Date.now()) / 1000);
      place.textContent = left > 0 ? fill(words.lost_retry, { seconds: left }) : words.lost;
    };
    tell();
    counting = setInterval(tell, 1000);
  };

  // What its writer is at ends by itself: nobody waits for that.
  const stopAnswer = async () => {
    if (!running) return;
    running.wantsStop = true;
    const { turn, asked, controller } = running;
    if (asked.message_id) {
      const told = await quietly(() => Client.json(`answers/${asked.message_id}/stop/`, { method: "POST", body: {} }));
      if (!told || running?.turn !== turn) return;
      finish();
      turn.end({ ...turn.answer, status: "stopped" }, true);
      controller.abort();
      say(turn.said());
      listConversations();
    } else if (!$("network").hidden) running.controller.abort(), write(turn.question), finish();
  };

  // -- The composer ----------------------------------------------------------------------------------------------------

  const grow = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
    send.disabled = !field.value.trim();
    tab.set("draft", field.value);
  };
  const write = (text) => {
    field.value = text;
    grow();
  };

  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(field.value);
  });
  // Enter also ends the choice of a character in an input method (229 in some browsers): that sends nothing.
  field.addEventListener("keydown", (event) => {
    if (!actions.isEnter(event)) return;
    event.preventDefault();
    ask(field.value);
  });
  field.addEventListener("input", grow);
  stop.addEventListener("click", stopAnswer);
  $("new").addEventListener("click", startOver);

  // -- The list of conversations ---------------------------------------------------------------------------------------

  const listConversations = async () => {
    if (!entered.keeps) return void $("conversations").replaceChildren(element("p", [words.not_kept], { className: "quiet" }));
    let rows;
    try {
      rows = await Client.json("conversations/");
    } catch {
      return; // the list stays as it was
    }
    if (!rows.length) return void $("conversations").replaceChildren(element("p", [words.no_conversations], { className: "quiet" }));
    $("conversations").replaceChildren(element("ul", rows.map(row)));
    markCurrent();
  };

  const row = ({ id, title }) => {
    const shown = title || words.untitled;
    const choose = wordButton(shown, () => quietly(async () => {
      await load(id);
      tab.remove("pending");
      closeList();
    }), "choose");
    choose.dataset.conversation = id;
    const rename = iconButton("edit", fill(words.rename_of, { title: shown }), () => renameConversation(id, shown));
    const remove = iconButton("delete", fill(words.delete_of, { title: shown }), () => deleteConversation(id));
    return element("li", [choose, rename, remove]);
  };

  const markCurrent = () => {
    for (const each of document.querySelectorAll("[data-conversation]")) {
      if (each.dataset.conversation === conversation) each.setAttribute("aria-current", "true");
      else each.removeAttribute("aria-current");
    }
  };

  const confirmed = (text, yes, value) => new Promise((resolve) => {
    const dialog = $("confirm");
    $("confirm-words").textContent = text;
    $("confirm-words").hidden = !text;
    $("confirm-yes").textContent = yes;
    $("confirm-field").hidden = value === undefined;
    $("confirm-input").value = value ?? "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? $("confirm-input").value.trim() || true : null), { once: true });
    dialog.showModal();
    if (value === undefined) $("confirm-no").focus();
    else $("confirm-input").select();
  });
  // Enter in the field means yes, although the first button of the form is another.
  $("confirm-input").addEventListener("keydown", (event) => {
    if (!actions.isEnter(event)) return;
    event.preventDefault();
    $("confirm").close("yes");
  });

  const renameConversation = async (id, before) => {
    const title = await confirmed(words.rename, words.save, before);
    if (typeof title !== "string") return;
    await quietly(() => Client.json(`conversations/${id}/`, { method: "PATCH", body: { title } }));
    await listConversations();
    document.querySelector(`[data-conversation="${id}"]`)?.focus();
  };

  const deleteConversation = async (id) => {
    if (!(await confirmed(words.delete_sure, words.delete))) return;
    await quietly(async () => {
      await Client.json(`conversations/${id}/`, { method: "DELETE" });
      if (id === conversation) startOver();
    });
    await listConversations();
    (document.querySelector("[data-conversation]") ?? $("close-list")).focus();
  };

  $("forget").addEventListener("click", async () => {
    if (!(await confirmed(words.forget_sure, words.delete))) return;
    await quietly(async () => {
      await Client.json("visitor/", { method: "DELETE" });
      startOver();
      complain(words.yours);
      await listConversations();
    });
  });

  $("export").addEventListener("click", () => {
    const title = document.querySelector(".choose[aria-current]")?.textContent ?? turns[0]?.question ?? entered.name;
    const text = [`# ${title}`, ...turns.map((turn) => turn.markdown())].join("\n\n");
    const address = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/markdown" }));
    element("a", [], { href: address, download: `${title.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "chat"}.md` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  });

  const openList = () => {
    list.inert = false;
    list.classList.add("open");
    $("backdrop").hidden = false;
    $("open-list").ariaExpanded = "true";
    $("main").inert = NARROW.matches;
    $("close-list").focus();
  };
  const closeList = () => {
    if (!list.classList.contains("open")) return;
    list.classList.remove("open");
    list.inert = NARROW.matches;
    $("backdrop").hidden = true;
    $("main").inert = false;
    $("open-list").ariaExpanded = "false";
    $("open-list").focus();
  };
  const fit = () => {
    list.inert = NARROW.matches && !list.classList.contains("open");
    $("main").inert = NARROW.matches && list.classList.contains("open");
  };
  NARROW.addEventListener("change", fit);
  fit();
  $("open-list").addEventListener("click", openList);
  $("close-list").addEventListener("click", closeList);
  $("backdrop").addEventListener("click", closeList);
  $("language").addEventListener("click", () => tab.set("draft", field.value));

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
    if (list.classList.contains("open")) closeList();
    else host?.postMessage({ type: "close" });
  });

  // -- In a frame of another website -------------------------------------------------------------------------------------

  // The website's script hands a port to this frame; only one whose origin the assistant names is listened to.
  if (setup.is_frame) {
    window.addEventListener("message", ({ source, origin, data, ports }) => {
      if (source !== window.parent || !setup.origins.includes(origin) || data?.type !== "zhiku:hello" || !ports[0]) return;
      host = ports[0];
      host.onmessage = ({ data: told }) => {
        if (told?.type === "focus") (entered ? field : entry.querySelector("input, a, button") ?? $("close")).focus();
        if (told?.type === "page") {
          hostPage = told.page && { url: String(told.page.url ?? "").slice(0, 4000), title: String(told.page.title ?? "").slice(0, 4000) };
        }
      };
      host.postMessage({ type: "ready" });
    });
    $("close").addEventListener("click", () => host?.postMessage({ type: "close" }));
  }

  open();
})();
