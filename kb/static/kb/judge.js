"use strict";
// The buttons post a form: without this script the page loads again after each click.
(() => {
    const form = document.querySelector("[data-jd-form]");
    if (!form) return;
    const rows = () => [...document.querySelectorAll("[data-jd-chunk]")];

    const press = (button, isPressed, value) => {
        button.setAttribute("aria-pressed", String(isPressed));
        button.value = value;
    };

    // A grade above 2 comes from an imported set.
    const show = (row, grade) => {
        for (const button of row.querySelectorAll("button")) {
            const isPressed = grade !== undefined && button.dataset.grade === String(Math.min(grade, 2));
            press(button, isPressed, `${row.dataset.jdChunk}:${isPressed ? "none" : button.dataset.grade}`);
        }
    };

    const choose = (name) => {
        const select = form.elements.eval_set;
        if (![...select.options].some((option) => option.value === name)) select.add(new Option(name));
        select.value = name;
        form.elements.new_eval_set.value = "";
        form.querySelector("[data-jd-set]").textContent = select.selectedOptions[0].textContent;
    };

    const update = (state) => {
        choose(state.eval_set);
        for (const row of rows()) show(row, state.grades[row.dataset.jdChunk]);
        const unanswerable = form.querySelector("[data-jd-unanswerable]");
        press(unanswerable, state.unanswerable, String(!state.unanswerable));
        form.querySelector("[data-jd-judged]").textContent = state.judged;
    };

    const post = async (button) => {
        const data = new FormData(form);
        if (button?.name) data.append(button.name, button.value);
        for (const row of rows()) data.append("shown", row.dataset.jdChunk);
        let response;
        try {
            response = await fetch(form.action, { method: "POST", body: data, headers: { Accept: "application/json" } });
        } catch {
            return form.dataset.failed;
        }
        if (response.redirected || !response.headers.get("Content-Type")?.includes("json")) {
            return response.status < 500 ? form.dataset.signedOut : form.dataset.failed;
        }
        const answer = await response.json();
        if (!response.ok) return answer.detail;
        update(answer);
        return "";
    };

    let isBusy = false;
    const send = async (button) => {
        if (isBusy) return;
        isBusy = true;
        for (const said of document.querySelectorAll("[data-jd-error]")) said.textContent = "";
        button?.setAttribute("aria-busy", "true");
        const error = await post(button);
        (button?.closest("[data-jd-chunk]") ?? form).querySelector("[data-jd-error]").textContent = error;
        button?.removeAttribute("aria-busy");
        isBusy = false;
    };

    form.addEventListener("submit", (event) => {
        event.preventDefault();
        send(event.submitter);
    });
    form.elements.eval_set.addEventListener("change", () => send(null));
})();
