"use strict";

// A question with its answer on the page; what its buttons do is told by `actions`: ask, edit, regenerate.
const Turn = (() => {
  const { setup, words } = Client;
  const { element, render } = Markdown;
  const NOTES = { stopped: words.stopped, broken: words.broken, unwritten: words.unwritten, listed: words.listed };
  const REASONS = ["wrong", "incomplete", "other", "sources"].map((each) => words[`reason_${each}`]);

  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

  const icon = (name) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("aria-hidden", "true");
    svg.append(document.createElementNS("http://www.w3.org/2000/svg", "use"));
    svg.firstChild.setAttribute("href", `#i-${name}`);
    return svg;
  };

  const iconButton = (name, words, act) => {
    const made = element("button", [icon(name)], { type: "button", className: "icon", title: words, ariaLabel: words });
    made.dataset.act = name;
    made.addEventListener("click", act);
    return made;
  };

  const wordButton = (text, act, className = "plain") => {
    const made = element("button", [text], { type: "button", className });
    made.addEventListener("click", act);
    return made;
  };

  // Those that the text cites, in their order; of an answer that cites none, or that no model wrote, all.
  const cited = (answer, numbers) => {
    const found = answer.sources.filter(({ number }) => numbers.has(number));
    return found.length ? found : answer.sources;
  };

  const create = (question, actions) => {
    const turn = {
      question,
      text: "",
      answer: { message_id: null, conversation_id: null, status: "writing", sources: [], near_misses: [], follow_ups: [], feedback: 0, feedback_text: "" },
    };
    const heading = element("h2", [element("span", [`${words.you_asked}: `], { className: "unseen" }), question]);
    const asked = element("div", [heading], { className: "asked" });
    const text = element("div", [], { className: "text" });
    const below = element("div", [], { className: "below" });
    const waiting = element("p", [element("span", [], { className: "dots" }), words.searching], { className: "quiet waiting" });
    const answered = element("div", [waiting, text, below], { className: "answer" });
    const article = element("article", [asked, answered], { className: "turn" });
    turn.element = article;
    article.dataset.testid = "turn";
    answered.setAttribute("aria-busy", "true");
    let numbers = new Set();
    let frame = 0;

    const heads = (source) => (source.label ? fill(words.source, source) : "");
    const show = (source, place, title) => Passage.open(turn.answer.message_id, source, place, title);

    const mark = (number) => {
      const source = turn.answer.sources.find((each) => each.number === number);
      if (!source) return undefined;
      numbers.add(number);
      if (!source.label) return null;
      const button = element("button", [String(number)], { type: "button", title: source.label, ariaLabel: heads(source) });
      button.addEventListener("click", () => show(source, String(number), heads(source)));
      return element("sup", [button], { className: "cite" });
    };

    const draw = () => {
      frame = 0;
      numbers = new Set();
      render(text, turn.text, { cite: mark, linkWords: words.link_of_answer });
    };

    // What no answer stands above has its passages' beginnings.
    const chips = (heading, sources, prefix, title, isAlone) => {
      const rows = sources.filter((each) => each.label).map((source) => {
        const number = prefix ? [] : [element("span", [String(source.number)], { className: "number" })];
        const excerpt = isAlone ? [element("span", [source.text.slice(0, 200)], { className: "excerpt" })] : [];
        const button = element("button", [...number, element("span", [source.label]), ...excerpt], { type: "button" });
        button.addEventListener("click", () => show(source, prefix + source.number, title(source)));
        return element("li", [button]);
      });
      return rows.length ? [element("section", [element("h3", [heading]), element("ul", rows)], { className: "sources" })] : [];
    };

    const copy = async ({ currentTarget }) => {
      try {
        await navigator.clipboard.writeText(turn.text);
        actions.say(words.copied);
        currentTarget.dataset.done = "";
        setTimeout(() => delete currentTarget.dataset.done, 1500);
      } catch {
        actions.complain(words.not_copied);
      }
    };

    const judge = async (value, reason = "") => {
      const { message_id } = turn.answer;
      await actions.guarded(() => Client.json(`answers/${message_id}/feedback/`, { method: "POST", body: { value, text: reason } }));
      Object.assign(turn.answer, { feedback: value, feedback_text: reason });
    };

    const reasons = () => {
      const name = `reason-${turn.answer.message_id}`;
      const choices = REASONS.map((each) => {
        const input = element("input", [], { type: "checkbox", name, value: each });
        return element("label", [input, element("span", [each])], { className: "chip" });
      });
      const maxLength = setup.feedback_characters - [...REASONS, ""].join("; ").length;
      const more = element("textarea", [], { rows: 2, maxLength, ariaLabel: words.why_more, placeholder: words.why_more });
      const form = element("form", [
        element("fieldset", [element("legend", [words.why]), ...choices]),
        more,
        element("div", [wordButton(words.cancel, () => form.remove()), element("button", [words.send], { className: "primary" })], { className: "buttons" }),
      ], { className: "why" });
      form.addEventListener("submit", async (event) => {
        event.preventDefault();
        const chosen = [...form.querySelectorAll("input:checked")].map((each) => each.value);
        await judge(-1, [...chosen, more.value.trim()].filter(Boolean).join("; "));
        const thanks = element("p", [words.thanks], { className: "quiet", tabIndex: -1 });
        form.replaceWith(thanks);
        thanks.focus();
      });
      below.querySelector(".why")?.remove();
      below.querySelector(".acts").after(form);
      form.scrollIntoView({ block: "nearest" });
      form.querySelector("input").focus({ preventScroll: true });
    };

    const thumbs = () => {
      const button = (name, value) => {
        const made = iconButton(name, words[name], async () => {
          const chosen = turn.answer.feedback === value ? 0 : value;
          below.querySelector(".why")?.remove();
          await judge(chosen);
          for (const each of made.parentElement.querySelectorAll("[aria-pressed]")) each.ariaPressed = String(each === made && chosen !== 0);
          if (chosen === -1 && actions.keeps()) reasons();
          else if (chosen !== 0) actions.say(words.thanks);
        });
        made.ariaPressed = String(turn.answer.feedback === value);
        return made;
      };
      return [button("good", 1), button("bad", -1)];
    };

    const edit = () => {
      if (actions.isBusy()) return;
      const field = element("textarea", [], { value: question, rows: 2, maxLength: setup.question_characters, ariaLabel: words.edit });
      const done = () => asked.replaceChildren(heading, pen);
      const pen = asked.querySelector("[data-act=edit]");
      const again = () => {
        const changed = field.value.trim();
        done();
        if (changed) actions.ask(changed, turn);
      };
      field.addEventListener("keydown", (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          done();
          pen.focus();
        } else if (actions.isEnter(event)) {
          event.preventDefault();
          again();
        }
      });
      const buttons = element("div", [wordButton(words.cancel, () => { done(); pen.focus(); }), wordButton(words.send, again, "primary")], { className: "buttons" });
      asked.replaceChildren(element("div", [field, buttons], { className: "editing" }));
      field.focus();
      field.setSelectionRange(question.length, question.length);
    };

    // What only the last turn offers; called again when another one comes below.
    turn.finish = (isLast) => {
      const { answer } = turn;
      answered.setAttribute("aria-busy", "false");
      waiting.remove();
      draw();
      const isOver = answer.message_id !== null;
      const isUnwritten = ["unwritten", "listed"].includes(answer.status); // no model has written anything
      const note = NOTES[answer.status];
      const again = () => !actions.isBusy() && actions.ask(question, turn);
      const acts = element("div", [], { className: "acts" });
      if (turn.text && !isUnwritten) acts.append(iconButton("copy", words.copy, copy));
      if (isLast && isOver) acts.append(iconButton("again", words.regenerate, again));
      if (isOver) acts.append(...thumbs());
      const parts = [];
      if (note) {
        const told = element("p", [note], { className: "note" });
        if (isLast && isOver && answer.status !== "listed") told.append(wordButton(words.again, again));
        told.dataset.testid = `note-${answer.status}`;
        parts.push(told);
      }
      parts.push(...chips(isUnwritten ? words.passages : words.sources, answer.near_misses.length ? [] : cited(answer, numbers), "", heads, isUnwritten));
      parts.push(...chips(words.near_misses, answer.near_misses, "n", (source) => fill(words.near_miss, source), true));
      parts.push(acts);
      if (isLast && answer.follow_ups.length) {
        const rows = answer.follow_ups.map((each) => element("li", [wordButton(each, () => !actions.isBusy() && actions.ask(each), "follow")]));
        const list = element("section", [element("h3", [words.next]), element("ul", rows)], { className: "next" });
        list.dataset.testid = "follow-ups";
        parts.push(list);
      }
      below.replaceChildren(...parts);
      asked.replaceChildren(heading, ...(isLast && isOver ? [iconButton("edit", words.edit, edit)] : []));
    };

    turn.found = ({ message_id, conversation_id, sources }) => {
      Object.assign(turn.answer, { message_id, conversation_id, sources: sources.length ? sources : turn.answer.sources });
      waiting.lastChild.data = words.writing;
    };
    turn.grow = (piece) => {
      turn.text += piece;
      waiting.remove();
      frame ||= requestAnimationFrame(draw);
    };
    turn.end = (answer, isLast) => {
      const { feedback, feedback_text, sources } = turn.answer;
      cancelAnimationFrame(frame);
      turn.answer = { ...answer, feedback: answer.feedback || feedback, feedback_text: answer.feedback_text || feedback_text };
      // Of one that is not finished the server may have kept less than was sent, or nothing: what was seen stays.
      const isDone = answer.status === "done";
      if (["unwritten", "listed"].includes(answer.status)) turn.text = ""; // what came was in the language of the knowledge base
      if (!isDone && !answer.sources.length) turn.answer.sources = sources;
      if (answer.answer && (isDone || answer.answer.length > turn.text.length)) turn.text = answer.answer;
      turn.finish(isLast);
    };

    turn.said = () => [NOTES[turn.answer.status] ?? words.finished, turn.text].join(" ");

    turn.markdown = () => {
      const rows = turn.answer.sources.filter((each) => each.label && numbers.has(each.number)).map((each) => `${each.number}. ${each.label}`);
      return [`## ${question}`, turn.text || NOTES[turn.answer.status], rows.length ? `${words.sources}:\n\n${rows.join("\n")}` : ""].filter(Boolean).join("\n\n");
    };
    return turn;
  };

  return { create, fill, icon, iconButton, wordButton };
})();
