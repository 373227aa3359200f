"use strict";

// Talks to the server: the token of the visit, errors with their remedy, and answers that go on after a lost connection.
const Client = (() => {
  const setup = JSON.parse(document.getElementById("setup").textContent);
  const { words, address } = setup;
  const WAITS = [1, 2, 4, 8, 15, 30];
  const MOST_FAULTS = 3;

  // A browser may forbid a frame of another website to keep anything: then it is kept until the page is closed.
  const kept = (area) => {
    const memory = new Map();
    const key = (name) => `zhiku-chat:${setup.slug}:${name}`;
    const tried = (use, otherwise) => {
      try {
        return use(window[area]);
      } catch {
        return otherwise();
      }
    };
    return {
      get: (name) => JSON.parse(tried((store) => store.getItem(key(name)), () => memory.get(name)) ?? "null"),
      set: (name, value) => {
        const text = JSON.stringify(value);
        tried((store) => store.setItem(key(name), text), () => memory.set(name, text));
      },
      remove: (name) => tried((store) => store.removeItem(key(name)), () => memory.delete(name)),
    };
  };
  const browser = kept("localStorage");
  const tab = kept("sessionStorage");

  class Refused extends Error {
    constructor(told, response) {
      super(told.detail);
      Object.assign(this, told);
      this.status = response.status;
      this.wait = Number(response.headers.get("Retry-After")) || 1;
    }
  }
  class Lost extends Error {}

  const send = async (path, { method = "GET", body, signal } = {}) => {
    const headers = { [setup.visit_header]: browser.get("visit") ?? "", [setup.language_header]: setup.language };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(address + path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Lost(words.unreachable);
    }
    if (response.ok) return response;
    const told = await response.json().catch(() => null);
    if (!told?.code) throw new Lost(words.unreachable); // a proxy answers for a server that is away
    throw new Refused(told, response);
  };

  // `entering` is asked for once more where a visit holds no longer, as after a new password.
  let entering = null;
  const call = async (path, options) => {
    try {
      return await send(path, options);
    } catch (error) {
      if (error.code !== "not_let_in" || !entering) throw error;
      await entering();
      return send(path, options);
    }
  };

  const json = async (path, options) => (await call(path, options)).json();

  const pause = (seconds, signal) =>
    new Promise((resolve, reject) => {
      const done = (settle) => () => {
        clearTimeout(timer);
        window.removeEventListener("online", wake);
        signal?.removeEventListener("abort", leave);
        settle();
      };
      const wake = done(resolve);
      const leave = done(() => reject(new DOMException("", "AbortError")));
      const timer = setTimeout(wake, seconds * 1000);
      window.addEventListener("online", wake);
      signal?.addEventListener("abort", leave);
    });

  // Asks, or with `asked.message_id` takes an answer up again; goes on until it is whole, or the server has failed too often at one
  // that has begun. The same `sending_id` makes sure that what is sent twice is asked once.
  const answer = async (asked, { sources, delta, waiting, signal }) => {
    let seen = 0;
    let attempt = 0;
    let faults = 0;
    let isAway = false;
    for (;;) {
      try {
        const response = asked.message_id
          ? await call(`answers/${asked.message_id}/?seen=${seen}`, { signal })
          : await call("ask/", { method: "POST", body: asked.body, signal });
        for await (const { name, data } of eventsOf(response, () => new Lost(words.lost))) {
          if (name === "error") {
            faults += 1;
            if (asked.message_id && faults < MOST_FAULTS) throw new Lost(words.restart);
            throw Object.assign(new Error(data.detail), data, { hasBegun: Boolean(asked.message_id) });
          }
          if (isAway) waiting(null);
          isAway = false;
          if (name === "sources") {
            asked.message_id = data.message_id;
            sources(data);
          } else if (name === "delta") {
            seen += [...data.text].length; // the server counts characters, not halves of them
            attempt = 0;
            delta(data.text);
          } else if (name === "done") {
            return data;
          }
        }
        throw new Lost(words.restart); // the stream ended before the answer did
      } catch (error) {
        const isBusy = error.code === "in_progress" || (asked.message_id && [429, 503].includes(error.status));
        if (!(error instanceof Lost) && !isBusy) throw error;
        const seconds = isBusy ? error.wait : WAITS[Math.min(attempt, WAITS.length - 1)];
        attempt += 1;
        if (!isBusy) {
          isAway = true;
          waiting(seconds);
        }
        await pause(seconds, signal);
      }
    }
  };

  return { setup, words, browser, tab, call, json, answer, Refused, Lost, onExpired: (enter) => { entering = enter; } };
})();
