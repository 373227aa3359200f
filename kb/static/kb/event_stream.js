"use strict";

// The events of a streamed answer as they come in; a piece of the stream may end anywhere. `lost` makes the error of a connection
// that breaks.
globalThis.eventsOf = async function* eventsOf(response, lost = (error) => error) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => { throw error.name === "AbortError" ? error : lost(error); });
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
};
