"use strict";
// Sends each file in a request of its own, a few at a time, so that ten thousand neither fill the memory of the browser nor
// block the server. The drop zone is a label of the file field: without this script a click on it still works. On the page
// of a knowledge base's documents (data-at-once) the whole page takes what is dropped, and it is sent at once.
(() => {
    const zone = document.getElementById("drop-zone");
    if (!zone) return;
    const AT_ONCE = 4, TRIES = 3, SHOWN = 20, SHOWN_TROUBLES = 100, LONGEST_WAIT = 60;  // seconds
    const LEFT = "kb-upload-troubles";  // what the page that follows an upload has to say of it
    const form = document.getElementById("upload-form");
    const input = zone.querySelector("input[type=file]");
    const folder = document.getElementById("folder-field");
    const list = document.getElementById("chosen-files");
    const more = document.getElementById("more-files");
    const submit = document.getElementById("upload-submit");
    const button = submit.querySelector("button");  // none where files are sent at once
    const isAtOnce = "atOnce" in form.dataset;
    const bar = document.getElementById("upload-progress");
    const troubles = document.getElementById("upload-troubles");
    let chosen = [];  // {file, path}

    function line(...texts) {
        const item = document.createElement("li");
        item.append(...texts.map((text) => {
            const span = document.createElement("span");
            span.textContent = text;
            return span;
        }));
        return item;
    }

    // Says at once what the server would refuse after the upload.
    async function sortOut() {
        const found = await Promise.all(chosen.map(({file, path}) => kbFileCheck(file, path)));
        troubles.replaceChildren();
        found.forEach((message, place) => message && trouble(chosen[place].path, {message}));
        chosen = chosen.filter((_each, place) => !found[place]);
        if (isAtOnce) {
            input.value = folder.value = "";  // so that the same files can be chosen again
            await sendChosen();
        } else {
            show();
        }
    }

    function show() {
        if (isAtOnce) return;
        const size = (file) => `${Math.max(1, Math.round(file.size / 1024)).toLocaleString()} KB`;
        list.replaceChildren(...chosen.slice(0, SHOWN).map(({file, path}) => line(path, size(file))));
        more.hidden = chosen.length <= SHOWN;
        more.textContent = more.dataset.words.replace("{count}", (chosen.length - SHOWN).toLocaleString());
    }

    function choose(entries) {
        const known = new Set(chosen.map(({path, file}) => `${path} ${file.size}`));
        const hidden = (path) => path.split("/").some((part) => part.startsWith("."));
        chosen = chosen.concat(entries.filter((each) => !hidden(each.path) && !known.has(`${each.path} ${each.file.size}`)));
        return sortOut();
    }

    async function walk(entry) {
        if (entry.isFile) {
            const file = await new Promise((found, failed) => entry.file(found, failed));
            return [{file, path: entry.fullPath.replace(/^\//, "")}];
        }
        const reader = entry.createReader(), all = [];
        for (;;) {  // a reader hands out a hundred entries at a time
            const some = await new Promise((found, failed) => reader.readEntries(found, failed));
            if (!some.length) return all;
            for (const each of some) all.push(...await walk(each));
        }
    }

    const filesOf = ({files}) => Array.from(files, (file) => ({file, path: file.webkitRelativePath || file.name}));
    const earlier = () => [...filesOf(input), ...filesOf(folder)];  // than this script, or put back by the browser

    input.addEventListener("change", () => {
        chosen = filesOf(input);
        sortOut();
    });
    folder.addEventListener("change", () => {
        if (folder.files.length) choose(filesOf(folder));
    });
    const target = isAtOnce ? document : zone;
    const bringsFiles = (event) => [...event.dataTransfer.types].includes("Files");
    for (const type of ["dragenter", "dragover"]) {
        target.addEventListener(type, (event) => {
            if (!bringsFiles(event)) return;
            event.preventDefault();
            zone.classList.add("over");
        });
    }
    target.addEventListener("dragleave", (event) => {
        if (target === zone || !event.relatedTarget) zone.classList.remove("over");  // it has left the window
    });
    target.addEventListener("drop", async (event) => {
        zone.classList.remove("over");
        if (!bringsFiles(event)) return;
        event.preventDefault();
        const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
        if (!entries.length) return choose([...event.dataTransfer.files].map((file) => ({file, path: file.name})));
        const walked = [];
        for (const entry of entries) walked.push(...await walk(entry));
        choose(walked);
    });
    if (isAtOnce) {
        document.getElementById("hub-upload")?.addEventListener("click", (event) => {
            event.preventDefault();
            input.click();
        });
        if (location.hash === "#upload") addEventListener("load", () => input.focus());
    }

    async function post(url, values) {
        const body = new FormData();
        for (const [name, value] of Object.entries(values)) if (value) body.append(name, value);
        const token = form.querySelector("[name=csrfmiddlewaretoken]").value;
        const answer = await fetch(url, {method: "POST", body, headers: {"X-CSRFToken": token}});
        const isJson = (answer.headers.get("Content-Type") || "").startsWith("application/json");
        const seconds = Number(answer.headers.get("Retry-After"));
        return {status: answer.status, seconds, ...(isJson ? await answer.json() : {})};
    }

    async function send(url, {file, path}) {
        for (let attempt = 1; ; attempt += 1) {
            let answer = null;
            try {
                answer = await post(url, {file, path, source_type: form.elements.source_type.value});
            } catch (error) {
                if (!(error instanceof TypeError)) throw error;  // what fetch raises when the network fails
            }
            if (answer?.status === 429 && answer.seconds <= LONGEST_WAIT) {
                await new Promise((resume) => setTimeout(resume, 1000 * answer.seconds));
                attempt -= 1;  // the rate limit refuses it now, and not the file
                continue;
            }
            if (answer && answer.status < 500) return answer;
            if (attempt === TRIES) return {status: 0, message: submit.dataset.unreachable};
            await new Promise((resume) => setTimeout(resume, 1000 * attempt));
        }
    }

    function trouble(path, answer) {
        if (troubles.childElementCount >= SHOWN_TROUBLES) return;
        const item = line(path, answer.url ? "" : answer.message || submit.dataset.unreachable);
        if (answer.url) {
            const link = document.createElement("a");
            link.href = answer.url;
            link.className = "kb-link";
            link.textContent = answer.message;
            item.lastChild.append(link);
        }
        troubles.append(item);
    }

    async function sendAll(batch) {
        const waiting = chosen.slice(), total = waiting.length;
        let done = 0, refused = 0;
        const tell = () => {
            bar.querySelector(".kb-progress-bar").style.width = `${100 * done / total}%`;
            bar.setAttribute("aria-valuenow", Math.round(100 * done / total));
            bar.lastElementChild.textContent = `${done.toLocaleString()} / ${total.toLocaleString()}`;
        };
        const worker = async () => {
            for (let next = waiting.shift(); next; next = waiting.shift()) {
                const answer = await send(batch.file, next);
                if (answer.status >= 300 || !answer.status) {
                    refused += 1;
                    trouble(next.path, answer);
                }
                done += 1;
                tell();
            }
        };
        bar.hidden = false;
        tell();
        await Promise.all(Array.from({length: AT_ONCE}, worker));
        return refused;
    }

    function isBusy(busy) {
        if (!button) {
            input.disabled = folder.disabled = busy;
            zone.classList.toggle("busy", busy);
            return;
        }
        button.dataset.words ??= button.lastChild.textContent;
        button.disabled = busy;
        button.lastChild.textContent = busy ? submit.dataset.busy : button.dataset.words;
    }

    // The files that were refused, for the page that is opened next.
    const leftOver = () => [...troubles.children].map((item) => {
        const link = item.querySelector("a");
        return {path: item.firstChild.textContent, message: item.lastChild.textContent, url: link?.getAttribute("href")};
    });

    async function sendChosen() {
        if (!chosen.length || zone.classList.contains("busy")) return;
        const name = chosen.length === 1 ? chosen[0].path : submit.dataset.name.replace("{count}", chosen.length);
        const table = form.elements.table?.files[0];
        const leave = (e) => e.preventDefault();
        isBusy(true);
        addEventListener("beforeunload", leave);
        let batch = null, refused = 0;
        try {
            batch = await post(form.dataset.begin, {knowledge_base: form.elements.knowledge_base.value, folder: form.elements.folder?.value, name, table});
            if (batch.status === 201) refused = await sendAll(batch);
        } catch (error) {
            if (!(error instanceof TypeError)) throw error;
            batch = {status: 0};
        } finally {
            removeEventListener("beforeunload", leave);
        }
        if (batch.status === 201 && (isAtOnce || !refused)) {
            if (troubles.childElementCount) sessionStorage.setItem(LEFT, JSON.stringify(leftOver()));
            location.assign(batch.documents);
            return;
        }
        if (batch.status === 201) {
            const link = document.getElementById("upload-page");
            link.href = batch.page;
            link.hidden = false;
        } else {
            trouble("", batch);
        }
        isBusy(false);
        input.value = folder.value = "";
        chosen = [];
        show();
        folder.dispatchEvent(new Event("change", {bubbles: true}));  // what it says was chosen
    }

    form.addEventListener("submit", (event) => {
        if (!chosen.length) {  // a pasted text goes as the form that it is
            isBusy(true);
            return;
        }
        event.preventDefault();
        sendChosen();
    });
    for (const {path, ...answer} of JSON.parse(sessionStorage.getItem(LEFT) || "[]")) trouble(path, answer);
    sessionStorage.removeItem(LEFT);
    if (isAtOnce) {
        if (earlier().length) choose(earlier());
        return;
    }
    addEventListener("pageshow", () => {
        if (!chosen.length) chosen = earlier();
        show();
    });
})();
