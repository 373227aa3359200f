"use strict";

// The sheet that a citation opens: the passage at once as the answer rested on it, then as it stands in its document now.
const Passage = (() => {
  const { words } = Client;
  const { element, outward } = Markdown;
  const dialog = document.getElementById("passage");
  const title = document.getElementById("passage-title");
  const body = document.getElementById("passage-body");
  let opened = 0; // counts openings, so that what arrives late is not shown in another one
  let images = [];

  const note = (text) => element("p", [text], { className: "quiet" });
  const marked = (text) => element("p", [element("mark", [text])], { className: "around" });
  const around = (text) => (text ? [element("p", [text], { className: "around" })] : []);

  const onWeb = ({ url }) => {
    if (!URL.canParse(url)) return []; // also where there is none
    const text = words.open_web.replace("{host}", new URL(url).host);
    return [element("p", [outward(text, url, words.link_of_answer)])];
  };

  const reveal = () => body.querySelector(".place, mark, [data-chunks]")?.scrollIntoView({ block: "center" });

  // What is being prepared is asked for again until it is there, or the sheet is closed: then null.
  const prepared = async (path, told) => {
    const mine = opened;
    for (;;) {
      const found = await Client.json(path);
      if (mine !== opened || !found.is_awaited) return mine === opened ? found : null;
      told.textContent = words.preparing;
      await new Promise((resolve) => setTimeout(resolve, 2000));
      if (mine !== opened) return null;
    }
  };

  const showPage = async (base, [number, label], place) => {
    const told = note(words.loading);
    place.replaceChildren(told);
    const page = await prepared(`${base}pages/${number}/`, told);
    if (!page) return;
    if (page.problem) return void place.replaceChildren(note(`${page.label}: ${page.problem}`));
    const mine = opened;
    const data = await (await Client.call(`${base}pages/${number}/image/`)).blob();
    if (mine !== opened) return;
    const address = URL.createObjectURL(data);
    images.push(address);
    const image = element("img", [], { src: address, alt: label, width: page.width, height: page.height });
    image.dataset.testid = "page-image";
    const sheet = element("div", [image], { className: "page" });
    for (const [left, top, width, height] of page.places) {
      const box = element("span", [], { className: "place" });
      Object.assign(box.style, { left: `${left}%`, top: `${top}%`, width: `${width}%`, height: `${height}%` });
      sheet.append(box);
    }
    place.replaceChildren(sheet, ...(page.places.length ? [] : [note(words.unplaced)]));
    await image.decode().catch(() => {});
    reveal();
  };

  // Until the text of the file is there, or where it is not, the passage's own stays.
  const showText = async (base, place) => {
    const told = note("");
    place.prepend(told);
    const found = await prepared(`${base}text/`, told);
    told.textContent = found?.problem ?? "";
    if (!found?.html) return;
    // The server made this of the text of a file, with all of it escaped; its links are marked as those of answers are.
    place.innerHTML = found.html;
    place.classList.add("original");
    for (const link of place.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener nofollow ugc", className: "out" });
    reveal();
  };

  const sides = (base, passage, text) => {
    if (!passage.pages.length) return [text];
    const pages = element("div", passage.pages.map(() => element("div")), { className: "pages", tabIndex: 0, ariaLabel: words.page });
    pages.setAttribute("role", "region");
    passage.pages.forEach((page, at) => guarded(showPage(base, page, pages.children[at]), pages.children[at]));
    const button = (name, shown, hidden) => {
      const made = element("button", [words[name]], { type: "button" });
      made.addEventListener("click", () => {
        [shown.hidden, hidden.hidden] = [false, true];
        for (const each of made.parentElement.children) each.ariaPressed = String(each === made);
        reveal();
      });
      return made;
    };
    const choice = element("div", [button("page", pages, text), button("text", text, pages)], { className: "choice" });
    choice.setAttribute("role", "group");
    choice.firstChild.ariaPressed = "true";
    choice.lastChild.ariaPressed = "false";
    text.hidden = true;
    return [choice, pages, text];
  };

  const guarded = (work, place) => work.catch((error) => {
    if (place.isConnected) place.prepend(note(error instanceof Client.Lost ? words.passage_lost : error.message));
  });

  const load = async (base, source) => {
    const mine = opened;
    let passage;
    try {
      passage = await Client.json(base);
    } catch (error) {
      if (mine === opened) body.prepend(note(error.status === 404 ? error.message : words.passage_lost));
      return;
    }
    if (mine !== opened) return;
    const place = [passage.title, ...passage.headings].join(" › ");
    const text = element("div", [...around(passage.before), marked(passage.text), ...around(passage.after)]);
    body.replaceChildren(element("p", [place], { className: "quiet" }), ...onWeb(source), ...sides(base, passage, text));
    if (passage.has_original_text) guarded(showText(base, text), text);
    reveal();
  };

  // `place` is the number of a source, or "n" and that of a near miss.
  const open = (messageId, source, place, heading) => {
    opened += 1;
    title.textContent = heading;
    body.replaceChildren(...onWeb(source), ...(source.text ? [marked(source.text)] : []));
    if (!dialog.open) dialog.showModal();
    title.focus();
    if (source.has_page) load(`passages/${messageId}/${place}/`, source);
  };

  dialog.addEventListener("close", () => {
    opened += 1;
    images.forEach(URL.revokeObjectURL);
    images = [];
  });
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close());
  document.getElementById("passage-close").addEventListener("click", () => dialog.close());

  return { open };
})();
