"""What axe-core finds on every page by WCAG 2.2 AA, and what it has no rule for: pages wider than their window, text below
12 px, focus that is not seen, and what only a mouse reaches.

`python -m tests.browser.accessibility` opens every page in every setting, prints what was found, and ends with 1 where
anything was. Names as arguments choose pages. It takes an hour.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import django
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

if __name__ == "__main__":
    # Beside the addresses of pages stands what they are opened for, which is made of models.
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()

from tests.browser import chromium
from tests.browser.conftest import Visitor
from tests.kb.admin.pages import ALL_PAGES, PAGES as PAGES_OF_CURATORS, needed_by, url_of
from tests.serving import ROOT, environment, free_port, serving

OPTIONS = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]},
    "rules": {"target-size": {"enabled": True}},
    "resultTypes": ["violations"],
    "iframes": False,
}
LEFT_OUT = ["#swagger-ui", ".kd-chunk:has(details[open]) ~ .kd-chunk"]
"""Swagger UI's own, of whose operations axe-core finds that they nest buttons; and what an open menu may cover."""
CHECKS = (Path(__file__).parent / "page_checks.js").read_text()
NOTE_LISTENERS = """
window.clickListeners = new WeakSet();
const listen = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, ...rest) {
    if (type === "click" && this instanceof Element && this !== document.documentElement && this !== document.body) window.clickListeners.add(this);
    return listen.call(this, type, ...rest);
};
"""
SETTLED = """() => !document.querySelector('.htmx-request, [aria-busy=true]') && document.fonts.status === 'loaded'
    && document.getAnimations().every(each => each.playState !== 'running' || each.effect.getComputedTiming().iterations === Infinity)"""


def _click(*selectors):
    def act(page):
        for selector in selectors:
            page.locator(selector).locator("visible=true").first.click()

    return act


def _send(**fields):
    """Sends a form with such values past the browser's own checks; the server refuses it and shows why."""

    def act(page):
        for name, value in fields.items():
            page.fill(f"[name={name}]", value)
        form = page.locator("form[method=post]:not(.kb-languages)").locator("visible=true").last
        with page.expect_navigation():
            form.evaluate("form => HTMLFormElement.prototype.submit.call(form)")

    return act


def _press(key):
    return lambda page: page.keyboard.press(key)


def _preview(page):
    page.fill("#as-question", "违约金过高怎么办")
    page.press("#as-question", "Enter")
    page.wait_for_selector(".as-answer[aria-busy=false]")


def _ask(page):
    page.fill("#id_query", "违约金过高怎么办")
    page.keyboard.press("Enter")
    page.locator("[data-ask-answer][aria-busy=false]").last.wait_for()


def _ask_and_open(page):
    _ask(page)
    _click(".ask-where a")(page)


def _operations(page):
    page.locator(".opblock").first.wait_for()


def _menu(page):
    _click("#menu-button" if page.locator("#menu-button").is_visible() else "#account-button")(page)


Act = Callable[[Page], None]
OPENED: dict[str, tuple[str, Act]] = {
    "palette": ("index", _press("Control+k")),
    "menu": ("index", _menu),
    "choice of a knowledge base": ("ask", _click("header [data-palette=bases]")),
    "menu of a knowledge base": ("documents of a knowledge base", _click(".kb-hub-menu summary")),
    "name of a knowledge base": ("documents of a knowledge base", _click(".kb-hub-name button")),
    "menu of a chunk": ("document", _click("[data-side=chunks]", ".kd-actions summary")),
    "text of a chunk": ("document", _click("[data-side=chunks]", "[data-testid=edit]")),
    "split of a chunk": ("document", _click("[data-side=chunks]", ".kd-actions summary", "[hx-get$='form=split']")),
    "answer": ("ask", _ask),
    "drawer of a passage": ("ask", _ask_and_open),
    "conversations": ("conversation", _click("[data-ask-list-open], [data-ask-list-close]")),
    "previewed answer": ("assistant", _preview),
    "code of a link": ("sharing an assistant", _click(".as-qr summary")),
    "bases to ask": ("ask", _click("[data-ask-bases] summary")),
    "settings of a search": ("search debug", _click("[data-testid=more-settings] summary")),
    "edited hit": ("search debug", _click("[data-rt-edit]")),
    "question of a hit": ("search debug", _click("[data-rt-question]")),
    "keys of a search": ("search debug", _click("[data-testid=keys] summary")),
    "refused knowledge base": ("new knowledge base", _send()),
    "refused source": ("new web source", _send()),
    "refused key": ("new key", _send()),
    "refused concept": ("new concept", _send()),
    "refused profile": ("new profile", _send()),
    "refused evaluation set": ("new evaluation set", _send()),
    "refused external source": ("new external source", _send()),
    "refused model": ("new model", _send()),
    "refused user": ("new user", _send()),
    "refused password": ("password", _send(old_password="wrong", new_password1="1", new_password2="2")),
    "test of a model": ("new model", _click("[data-testid=test]")),
}
"""Pages of the others with something opened in them, or after a form was refused; only where there are rows."""
ELSEWHERE: dict[str, tuple[str, str, Act | None]] = {
    "login": ("", "/admin/login/", None),
    "refused login": ("", "/admin/login/", _send(username="nobody", password="wrong")),
    "not found": ("curator", "/admin/kb/document/2147483647/change/", None),
    "forbidden": ("curator", "/admin/kb/user/", None),
    "documentation of the API": ("curator", "/api/v1/docs/", _operations),
}
"""By who opens them (blank: nobody is logged in) and the address."""
PARTS = {
    "original of a document", "page of a document", "chunks of a document", "card of a chunk", "form of a chunk",
    "earlier turns", "answer of a conversation", "suggested questions", "passage", "write an answer", "rename a conversation",
    "text of a passage", "question of a passage", "search history", "checks",
    "page of a passage", "text of a passage in its document", "badges",
}  # fmt: skip
"""What pages fetch, which is looked at in them."""
PAGES = [*(name for name in ALL_PAGES if name not in PARTS), *OPENED, *ELSEWHERE]
OF_THEIR_OWN = {
    "delete document", "delete chunk", "delete knowledge base", "delete web source", "delete a conversation",
    "history of a chunk",
}  # fmt: skip
ALIKE = {name for name in ALL_PAGES if name.startswith(("delete ", "history"))} - OF_THEIR_OWN
"""Pages of a template that another one of the list has."""


@dataclass(frozen=True)
class Setting:
    language: str
    theme: str
    width: int
    has_rows: bool


ALL = [Setting(*values) for values in itertools.product(("zh-CN", "en"), ("light", "dark"), (1440, 390), (True, False))]


def pairwise() -> list[Setting]:
    """The fewest settings, by greed, that hold every pair of values of two different fields."""
    left = set(itertools.chain.from_iterable(map(_pairs, ALL)))
    chosen: list[Setting] = []
    while left:
        best = max(ALL, key=lambda setting: len(left & set(_pairs(setting))))
        chosen.append(best)
        left -= set(_pairs(best))
    return chosen


def _pairs(setting: Setting) -> Iterator[tuple]:
    yield from itertools.combinations(vars(setting).items(), 2)


def furnish(data_dir: Path) -> dict[str, dict]:
    """The ids that pages are opened for: with "rows", and "empty"."""
    command = [sys.executable, "-m", "tests.browser.furnish"]
    done = subprocess.run(command, cwd=ROOT, env=environment(data_dir), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


class Walker:
    """Opens pages: what needs no superuser as a curator, or as one who has nothing but what is empty.

    Args:
        ids: as `furnish` returns them.
        admin: the session of the administrator.
    """

    def __init__(self, browser, url, ids, admin):
        self._browser, self._url, self._ids = browser, url, ids
        self._axe = Axe()
        self._sessions = {"admin": admin, "": None} | {name: self._log_in(name) for name in ("curator", "newcomer")}

    def _log_in(self, name):
        context = self._browser.new_context()
        Visitor(context.new_page(), self._url).log_in(name, "correct horse")
        state = context.storage_state()
        context.close()
        return state

    def has_empty(self, name: str) -> bool:
        """Whether a page can be opened by one who has nothing."""
        return name in PAGES_OF_CURATORS and needed_by(name) <= self._ids["empty"].keys()

    def walk(self, setting: Setting, names) -> Iterator[tuple[str, list[str]]]:
        """The names of pages with what is wrong with each; those that have no empty state are opened with rows."""
        windows = {}
        for name in names:
            who, address, act = self._where(name, setting)
            if who not in windows:
                context = self._browser.new_context(
                    storage_state=self._sessions[who],
                    locale=setting.language,
                    color_scheme=setting.theme,
                    viewport={"width": setting.width, "height": 900},
                    reduced_motion="reduce",
                )
                context.add_init_script(NOTE_LISTENERS)
                windows[who] = context.new_page()
            page, expected = windows[who], {"not found": {404}, "forbidden": {403}}.get(name, {200})
            yield name, self._look_at(page, address, act, expected if setting.has_rows else {*expected, 400})
            if act:  # a window with something in it may ask before it leaves
                windows[who] = page.context.new_page()
                page.close()
        for page in windows.values():
            page.context.close()

    def open(self, name: str, **settings) -> Page:
        """A page with rows, in a window of its own, for whoever may see it; `settings` are the window's."""
        who, address, _act = self._where(name, ALL[0])
        asked = {"locale": "en", "viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **settings}
        page = self._browser.new_context(storage_state=self._sessions[who], **asked).new_page()
        page.goto(self._url + address)
        page.wait_for_function(SETTLED)
        return page

    def _where(self, name, setting):
        """Who opens a page, its address, and what is then done there."""
        if name in ELSEWHERE:
            return ELSEWHERE[name]
        page, act = OPENED.get(name, (name, None))
        if page not in PAGES_OF_CURATORS:
            return "admin", url_of(self._ids["rows"], page), act
        if setting.has_rows or act or not self.has_empty(page):
            return "curator", url_of(self._ids["rows"], page), act
        return "newcomer", url_of(self._ids["empty"], page), None

    def _look_at(self, page, address, act, expected):
        answer = page.goto(self._url + address)
        page.wait_for_function(SETTLED)
        if act:
            act(page)
            page.wait_for_function(SETTLED)
        wrong = [] if answer.status in expected else [f"HTTP {answer.status}"]
        wide = page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
        wrong += [f"{wide} px too wide"] if wide > 0 else []
        found = self._axe.run(page, {"exclude": [[each] for each in LEFT_OUT]}, OPTIONS).response["violations"]
        wrong += [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"][:3]]
        page.evaluate(CHECKS)
        wrong += [f"text below 12 px: {each}" for each in page.evaluate("pageChecks.smallTexts()")[:5]]
        wrong += [f"only by mouse: {each}" for each in page.evaluate("pageChecks.onlyByMouse()")[:5]]
        if not act:  # for what is open may close when it loses the focus
            page.keyboard.press("Shift")  # so that the browser takes its user for one of the keyboard
            wrong += [f"focus is not seen: {each}" for each in page.evaluate("pageChecks.unseenFocus()")[:5]]
        return wrong


def main() -> int:
    root = Path(tempfile.mkdtemp(prefix="zhiku-accessibility-"))
    root.chmod(0o711)
    port, found, runs = free_port(), 0, 0
    names = sys.argv[1:] or PAGES
    with serving(port, environment(root / "data"), "--no-mcp") as (_process, printed), sync_playwright() as playwright:
        password = next(line.split()[-1] for line in printed.splitlines() if "password:" in line)
        browser = playwright.chromium.launch(executable_path=chromium.path(), args=chromium.SWITCHES)
        visitor = Visitor(browser.new_context().new_page(), f"http://127.0.0.1:{port}")
        visitor.log_in("admin", password)
        walker = Walker(browser, visitor.url, furnish(root / "data"), visitor.page.context.storage_state())
        for setting in ALL:
            shown = [name for name in names if setting.has_rows or walker.has_empty(name)]
            for name, wrong in walker.walk(setting, shown):
                found += len(wrong)
                runs += 1
                for each in wrong:
                    place = f"{setting.language}, {setting.theme}, {setting.width}, {'rows' if setting.has_rows else 'empty'}"
                    print(f"{name} ({place}): {each}", flush=True)
        browser.close()
    shutil.rmtree(root, ignore_errors=True)
    print(f"{len(names)} pages in {len(ALL)} settings, {runs} runs: {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
