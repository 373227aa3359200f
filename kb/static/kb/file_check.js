"use strict";
// Says why a file will not be read, by its name and its first bytes, before it is sent; blank: nothing tells. The kinds are
// those of kb/ingest/services/file_kinds.py, by which the server refuses what is sent all the same.
globalThis.kbFileCheck = (() => {
    const HEAD = 8192;
    let known = null;

    function kinds() {
        known ??= JSON.parse(document.getElementById("file-kinds")?.textContent || '{"kinds": []}');
        return known;
    }

    const begins = (head, bytes) => bytes.every((byte, place) => head[place] === byte);

    function holds(kind, extension, head) {
        if (kind.extensions.length && !kind.extensions.includes(extension)) return false;
        if (kind.beginnings.length && !kind.beginnings.some((bytes) => begins(head, bytes))) return false;
        if (kind.bit && !(head[kind.bit[0]] & kind.bit[1])) return false;
        return !kind.binary || head.includes(0);
    }

    return async (file, path = file.name) => {
        if (!file.size) return kinds().empty || "";
        const name = path.split("/").pop();
        const extension = (name.toLowerCase().match(/\.[a-z0-9]+$/) || [""])[0];
        const head = new Uint8Array(await file.slice(0, HEAD).arrayBuffer());
        const found = kinds().kinds.find((kind) => holds(kind, extension, head));
        return found ? found.message.replace("{name}", name) : "";
    };
})();
