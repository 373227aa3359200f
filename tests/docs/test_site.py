"""The site as `make docs` builds it: whole, in both languages, and asking no other host for anything."""

import functools
import re
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from lxml import html
from playwright.sync_api import expect

from tests.browser.accessibility import OPTIONS
from tests.docs import site
from tests.docs.pages import DOCS, Page

PAGES = sorted({Page(path).name for path in DOCS.glob("*.md")})
FOLDERS = tuple(site.FOLDERS.values())
LOADED = "//script/@src | //img/@src | //iframe/@src | //source/@src | //link[not(@rel='prev' or @rel='next')]/@href"
LONGEST_DESCRIPTION = 220
FOUND = {
    "zh": {"阈值": "relevance-threshold", "密钥": "access", "Milvus": "stores"},
    "en": {"threshold": "relevance-threshold", "revoked": "access", "知识库": "glossary"},
}
"""By language: a page by words that it holds."""
SHOWN = ("index", "start", "security", "stores")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    to = tmp_path_factory.mktemp("site")
    site.build(to)
    return to


@pytest.fixture(scope="module")
def documents(built):
    """The tree of every page, by its path."""
    return {path: html.parse(path).getroot() for path in sorted(built.rglob("*.html"))}


@pytest.fixture(scope="module", params=["served", "from disk"])
def address(built, request):
    if request.param == "from disk":
        yield built.as_uri()
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=built))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments):
        pass


@pytest.fixture
def visit(chromium, address):
    """Opens pages, none of which may ask another host or meet an error."""
    troubles, windows = [], []

    def visit(path, **settings):
        windows.append(chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | settings)))
        page = windows[-1].new_page()
        page.on(
            "request", lambda request: troubles.append(request.url) if _is_elsewhere(request.url, address) else None
        )
        page.on(
            "response",
            lambda answer: troubles.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None,
        )
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(f"{address}/{path}")
        return page

    yield visit
    for window in windows:
        window.close()
    assert troubles == []


def _is_elsewhere(url, address):
    return not url.startswith((address, "data:", "blob:", "about:"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_page_is_in_the_navigation(built, documents, folder):
    links = documents[built / folder / "index.html"].xpath("//nav[contains(@class, 'md-nav--primary')]//a/@href")

    assert {f"{name}.html" for name in PAGES} <= {link.removeprefix("./") for link in links}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_page_has_a_title_and_a_description(built, documents, folder):
    for name in (*PAGES, "index"):
        document = documents[built / folder / f"{name}.html"]
        descriptions = document.xpath("//meta[@name='description']/@content")
        assert len(document.xpath("//h1")) == 1, name
        assert [1 <= len(each) <= LONGEST_DESCRIPTION for each in descriptions] == [True], (name, descriptions)


def test_every_link_and_anchor_leads_somewhere(documents):
    anchors = {path: set(document.xpath("//@id")) for path, document in documents.items()}
    dead, followed = [], 0
    for path, document in documents.items():
        for link in document.xpath("//a/@href | //link/@href | //script/@src | //img/@src"):
            if urlsplit(link).scheme:
                continue
            target, anchor = urldefrag(link)
            to = (path.parent / unquote(target)).resolve() if target else path
            followed += 1
            if not to.is_file() or (anchor and unquote(anchor) not in anchors[to]):
                dead.append(f"{path.name}: {link}")
    assert dead == []
    assert followed > 1_000


def test_nothing_is_loaded_from_another_host(built, documents):
    loaded = [url for document in documents.values() for url in document.xpath(LOADED)]
    for sheet in built.rglob("*.css"):
        loaded += re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", sheet.read_text(encoding="utf-8"))

    assert [url for url in loaded if urlsplit(url).scheme not in {"", "data"} or url.startswith("//")] == []
    assert any(url.startswith("data:") for url in loaded)


def test_code_in_tables_reads_as_on_a_code_host(documents):
    codes = [code.text_content() for document in documents.values() for code in document.xpath("//td//code")]

    assert [code for code in codes if "\\|" in code] == []
    assert any("import|export" in code for code in codes)


def test_both_languages_have_the_same_pages_and_as_many_headings(built, documents):
    headings = {
        folder: {
            path.name: [
                heading.tag for heading in document.xpath("//article//*[self::h1 or self::h2 or self::h3 or self::h4]")
            ]
            for path, document in documents.items()
            if path.parent == built / folder and path.stem in {*PAGES, "index"}
        }
        for folder in FOLDERS
    }

    assert headings["en"] == headings["zh"]


@pytest.mark.browser
@pytest.mark.parametrize("folder", FOUND)
def test_the_search_of_a_language_finds_chinese_and_english_words(visit, folder):
    page = visit(f"{folder}/start.html")

    page.keyboard.press("/")
    for words, found in FOUND[folder].items():
        page.get_by_role("combobox").fill(words)
        expect(page.locator(f"a[role=option][href*='{folder}/{found}.html']").first).to_be_visible()


@pytest.mark.browser
def test_the_other_language_shows_the_same_page_as_light_or_dark_as_it_was(visit):
    page = visit("zh/quality.html", color_scheme="light")

    page.get_by_title("切换到深色").click()
    page.get_by_role("link", name="English").click()

    assert page.url.endswith("/en/quality.html")
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")


@pytest.mark.browser
@pytest.mark.parametrize(("language", "folder"), [("zh-CN", "zh"), ("en-GB", "en"), ("de", "en")])
def test_the_first_page_is_in_the_language_of_the_browser(visit, language, folder):
    page = visit("index.html", locale=language)

    page.wait_for_url(f"**/{folder}/index.html")


@pytest.mark.browser
@pytest.mark.parametrize("address", ["from disk"], indirect=True)
@pytest.mark.parametrize(("folder", "scheme", "width"), [("en", "light", 1280), ("zh", "dark", 390)])
def test_nothing_is_inaccessible_or_too_wide(visit, folder, scheme, width):
    wrong = []
    for name in SHOWN:
        page = visit(
            f"{folder}/{name}.html",
            color_scheme=scheme,
            viewport={"width": width, "height": 900},
            reduced_motion="reduce",
        )
        found = Axe().run(page, {"exclude": [[".md-search"]]}, OPTIONS).response["violations"]
        wrong += [f"{name}: {each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"][:3]]
        if page.evaluate("document.scrollingElement.scrollWidth > document.documentElement.clientWidth"):
            wrong.append(f"{name} is too wide")
    assert wrong == []
