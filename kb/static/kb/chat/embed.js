(({ words: byLanguage, colour, ink }) => {
  // A button that opens a chat in a frame, on any website: <script src="https://HOST/chat/NAME/embed.js" async></script>
  // All styles are set through the CSSOM, so that a page whose policy allows no inline styles needs no exception for it.
  const script = document.currentScript;
  const { origin, pathname, searchParams } = new URL(script.src);
  const { position, greeting, context, language: asked } = script.dataset;
  const wanted = asked || document.documentElement.lang || navigator.language;
  const language = wanted.toLowerCase().startsWith("zh") ? "zh-hans" : "en";
  const words = byLanguage[language];
  const side = position === "left" ? "left" : "right";
  const small = matchMedia("(width < 30rem), (height < 30rem)");

  const element = (tag, properties = {}, attributes = {}) => {
    const made = Object.assign(document.createElement(tag), properties);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    :host { all: initial; }
    [hidden] { display: none !important; }
    .open { position: fixed; bottom: max(1rem, env(safe-area-inset-bottom)); ${side}: 1rem; z-index: 2147483000; width: 56px; height: 56px; padding: 0;
      border: 0; border-radius: 50%; background: ${colour}; color: ${ink}; cursor: pointer; box-shadow: 0 4px 16px rgb(0 0 0 / .25); }
    .open:focus-visible, .greeting button:focus-visible { outline: 3px solid ${colour}; outline-offset: 3px; box-shadow: 0 0 0 3px #fff; }
    .open svg { width: 28px; height: 28px; display: block; margin: auto; fill: none; stroke: currentColor; stroke-width: 1.75; stroke-linecap: round; stroke-linejoin: round; }
    .greeting { position: fixed; bottom: calc(max(1rem, env(safe-area-inset-bottom)) + 68px); ${side}: 1rem; z-index: 2147483000; display: flex; gap: 8px; max-width: min(280px, calc(100vw - 2rem));
      padding: 10px 8px 10px 16px; border-radius: 16px; background: #fff; color: #1c1b22; font: 15px/1.5 system-ui, sans-serif; box-shadow: 0 4px 16px rgb(0 0 0 / .2); }
    .greeting button { border: 0; background: none; color: inherit; font: inherit; text-align: start; cursor: pointer; padding: 0; }
    .greeting .away { width: 28px; height: 28px; flex: none; text-align: center; font-size: 18px; line-height: 1; color: #5a5866; border-radius: 50%; }
    .panel { position: fixed; bottom: calc(max(1rem, env(safe-area-inset-bottom)) + 68px); ${side}: 1rem; z-index: 2147483001; width: 400px; height: min(640px, calc(100dvh - 7rem));
      border-radius: 16px; overflow: hidden; background: #fff; box-shadow: 0 8px 40px rgb(0 0 0 / .3); }
    .panel.whole { inset: 0; width: auto; height: auto; border-radius: 0; }
    iframe { display: block; width: 100%; height: 100%; border: 0; color-scheme: normal; }
    .edge { position: absolute; width: 1px; height: 1px; overflow: hidden; }
  `);

  const place = element("div");
  const root = place.attachShadow({ mode: "open" });
  root.adoptedStyleSheets = [sheet];

  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("viewBox", "0 0 24 24");
  drawing.setAttribute("aria-hidden", "true");
  const line = drawing.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  line.setAttribute("d", "M5 5h14a1.500 1.500 0 0 1 1.500 1.500v9A1.500 1.500 0 0 1 19 17h-6.500L8 20.500V17H5a1.500 1.500 0 0 1-1.500-1.500v-9A1.500 1.500 0 0 1 5 5zM8 9.500h8M8 12.500h5");

  const button = element("button", { className: "open", type: "button" }, { "aria-haspopup": "dialog", "aria-expanded": "false" });
  button.append(drawing);
  const panel = element("div", { className: "panel", hidden: true }, { role: "dialog", "aria-label": words.title });
  // Before and behind the frame: where the chat covers the page, the focus goes round within it.
  const edges = [0, 1].map(() => element("div", { className: "edge" }));
  let frame = null;
  let port = null;

  const page = () => (context === "page" ? { url: location.href, title: document.title } : null);
  const tell = (message) => port?.postMessage(message);

  const connect = () => {
    const channel = new MessageChannel();
    port = channel.port1;
    port.onmessage = ({ data }) => {
      if (data?.type === "close") show(false);
      if (data?.type === "ready") {
        tell({ type: "page", page: page() });
        if (!panel.hidden) tell({ type: "focus" });
      }
    };
    frame.contentWindow.postMessage({ type: "zhiku:hello" }, origin, [channel.port2]);
  };

  const load = () => {
    const query = new URLSearchParams({ language });
    if (searchParams.has("key")) query.set("key", searchParams.get("key")); // of a link that opens the chat
    frame = element("iframe", { title: words.title, src: `${origin}${pathname.replace(/embed\.js$/, "frame/")}?${query}` }, {
      // It runs its own script as its own origin, opens links in new windows, sends its form and saves an answer: no more.
      sandbox: "allow-scripts allow-same-origin allow-forms allow-popups allow-popups-to-escape-sandbox allow-downloads",
      allow: "clipboard-write",
      referrerpolicy: "no-referrer",
    });
    frame.addEventListener("load", connect);
    panel.append(edges[0], frame, edges[1]);
  };

  const fit = () => {
    panel.classList.toggle("whole", small.matches);
    for (const edge of edges) small.matches ? edge.setAttribute("tabindex", "0") : edge.removeAttribute("tabindex");
    if (small.matches) panel.setAttribute("aria-modal", "true");
    else panel.removeAttribute("aria-modal");
    button.hidden = small.matches && !panel.hidden;
  };

  const show = (isOpen) => {
    bubble?.remove();
    if (isOpen && !frame) load();
    panel.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
    button.setAttribute("aria-label", isOpen ? words.close : words.open);
    button.title = isOpen ? words.close : words.open;
    fit();
    if (!isOpen) return button.focus();
    frame.focus();
    tell({ type: "page", page: page() });
    tell({ type: "focus" });
  };

  for (const edge of edges) edge.addEventListener("focus", () => { frame.focus(); tell({ type: "focus" }); });
  button.addEventListener("click", () => show(panel.hidden));
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !panel.hidden) show(false);
  });
  small.addEventListener("change", fit);

  let bubble = null;
  if (greeting) {
    bubble = element("div", { className: "greeting" });
    const open = element("button", { type: "button", textContent: greeting.slice(0, 200) });
    const away = element("button", { type: "button", className: "away", textContent: "×", title: words.close }, { "aria-label": words.close });
    open.addEventListener("click", () => show(true));
    away.addEventListener("click", () => { bubble.remove(); button.focus(); });
    bubble.append(open, away);
  }
  button.setAttribute("aria-label", words.open);
  button.title = words.open;
  root.append(...(bubble ? [bubble] : []), panel, button);
  const put = () => document.body.append(place);
  if (document.body) put();
  else document.addEventListener("DOMContentLoaded", put);
})
