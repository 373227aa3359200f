"use strict";

// The text of an answer as elements. Each is made here by its name: no HTML of a model is ever parsed, nothing is loaded, and
// links lead out of the page only when they are clicked.
const Markdown = (() => {
  // An address in a text ends before Chinese punctuation, a bracket that was opened ahead of it, and the end of a sentence.
  const ADDRESS = /^https?:\/\/(?:[^\s()<>\u2018-\u201d\u3000-\u303f\uff00-\uffef]|\([^\s()<>]*\))+(?<![?!.,:;*_~'"])/i;
  const parser = new marked.Marked({
    gfm: true,
    breaks: true,
    // Answers have no HTML, no images, and no links with other words than their address.
    tokenizer: {
      html: () => undefined, tag: () => undefined, def: () => undefined, reflink: () => undefined,
      url: (text) => {
        const [raw] = ADDRESS.exec(text) ?? [];
        return raw ? { type: "link", raw, text: raw, href: raw } : false;
      },
    },
  });
  // As the server's own: lists and ranges of numbers in brackets of either script.
  const CITATION = /\s?[[［【](\d{1,3}(?:\s*[,，、;；~–—～-]\s*\d{1,3})*)[\]］】]/g;
  const RANGE = /(\d+)(?:\s*[~–—～-]\s*(\d+))?/g;
  const TAGS = { strong: "strong", em: "em", del: "del", paragraph: "p", blockquote: "blockquote", list_item: "li" };

  const element = (tag, children = [], properties = {}) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };

  const numbersOf = (written) =>
    [...written.matchAll(RANGE)].flatMap(([, first, last]) =>
      last ? Array.from({ length: Math.min(99, Math.max(0, last - first)) + 1 }, (_, at) => Number(first) + at) : [Number(first)],
    );

  const withCitations = (text, cite) => {
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(CITATION)) {
      const marks = numbersOf(match[1]).map(cite);
      if (marks.some((mark) => mark === undefined)) continue; // no source has this number: it is text
      parts.push(text.slice(end, match.index), ...marks.filter(Boolean));
      end = match.index + match[0].length;
    }
    parts.push(text.slice(end));
    return parts.filter((part) => part !== "");
  };

  // A link that leaves the page, and says so.
  const outward = (text, href, words) => {
    const said = element("span", [` (${words})`], { className: "unseen" });
    return element("a", [text, said], { href, target: "_blank", rel: "noopener nofollow ugc", className: "out" });
  };

  const link = (token, words) => {
    let address;
    try {
      address = new URL(token.href);
    } catch {
      return token.raw;
    }
    if (!["http:", "https:", "mailto:"].includes(address.protocol)) return token.raw;
    return outward(token.text, address.href, words);
  };

  const table = (token, inline) => {
    const row = (cells, tag) => element("tr", cells.map((cell) => element(tag, inline(cell.tokens))));
    const rows = [element("thead", [row(token.header, "th")]), element("tbody", token.rows.map((each) => row(each, "td")))];
    const box = element("div", [element("table", rows)], { className: "wide", tabIndex: 0 });
    box.setAttribute("role", "group");
    return box;
  };

  const build = (tokens, options) => tokens.flatMap((token) => one(token, options));

  const one = (token, options) => {
    const inside = () => build(token.tokens ?? [], options);
    switch (token.type) {
      case "space": return [];
      case "heading": return [element(`h${Math.min(6, token.depth + 2)}`, inside())];
      case "code": return [element("pre", [element("code", [token.text])], { tabIndex: 0 })];
      case "codespan": return [element("code", [token.text])];
      case "br": return [element("br")];
      case "hr": return [element("hr")];
      case "list": {
        const list = element(token.ordered ? "ol" : "ul", build(token.items, options));
        if (token.ordered && token.start > 1) list.start = token.start;
        return [list];
      }
      case "table": return [table(token, (inner) => build(inner, options))];
      case "link": return [link(token, options.linkWords)];
      case "escape": return [token.text];
      case "text": return token.tokens ? inside() : withCitations(token.text, options.cite);
      default: return TAGS[token.type] ? [element(TAGS[token.type], inside())] : [token.raw];
    }
  };

  // `cite` returns the mark of a number: an element, null for none to be shown, or undefined where nothing has that number.
  const render = (place, text, { cite = () => undefined, linkWords = "" } = {}) =>
    place.replaceChildren(...build(parser.lexer(text), { cite, linkWords }));

  return { render, element, outward };
})();
