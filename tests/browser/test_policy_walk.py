"""The content security policy in a real browser: it stops nothing that the pages need, and it stops what they do not."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.steps import make_base, search, upload, wait_until_ready

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

PAGES = (
    "",
    "ask/",
    "search-debug/",
    "search-debug/history/",
    "why-not/",
    "compare/",
    "compare/runs/",
    "compare/runs/start/",
    "calibration/",
    "keyword-cache/",
    "retrieval-profiles/",
    "retrieval-profiles/add/",
    "kb/knowledgebase/",
    "kb/knowledgebase/add/",
    "kb/knowledgebase/import/",
    "kb/document/",
    "kb/document/upload/",
    "kb/chunk/",
    "kb/chunk/duplicates/",
    "kb/concept/",
    "kb/concept/add/",
    "kb/entity/",
    "kb/entity/add/",
    "kb/entity/import/",
    "kb/graphfact/",
    "kb/graphfact/add/",
    "kb/graphextraction/",
    "kb/ingestbatch/",
    "kb/source/",
    "kb/source/add/",
    "kb/sourceitem/",
    "kb/searchprovider/",
    "kb/searchprovider/add/",
    "kb/evalset/",
    "kb/evalset/add/",
    "kb/evalset/import/",
    "kb/evalrun/",
    "kb/evalrun/add/",
    "kb/failedquery/",
    "kb/searchlog/",
    "kb/auditentry/",
    "kb/apikey/",
    "kb/apikey/add/",
    "kb/user/",
    "kb/user/add/",
    "password_change/",
)
WINDOWS = 6
NOTE = {"name": "差旅.txt", "mimeType": "text/plain", "buffer": "住宿费每晚不超过四百五十元，凭发票报销。".encode()}


def test_every_page_of_the_menu_opens_without_a_violation(visit, admin_session):
    """Each violation is an error on the console, which `visit` collects and refuses."""
    windows = [visit(storage_state=admin_session) for _ in range(WINDOWS)]
    for first in range(0, len(PAGES), WINDOWS):
        opened = list(zip(PAGES[first:], windows, strict=False))
        for path, admin in opened:
            policy = admin.open(path).headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy, path
            assert "script-src 'self'" in policy, path
        for path, admin in opened:  # half a second without a request, for which one waits no longer than for all
            admin.page.wait_for_load_state("networkidle")
            assert admin.troubles == [], path


def test_the_theme_works(admin):
    """Its menus are Alpine's, its charts Chart.js's, the progress of an upload HTMX's."""
    page = admin.page
    kb_id = make_base(admin, "政策")
    upload(admin, kb_id, NOTE)
    wait_until_ready(page, 1)
    search(admin, kb_id, "住宿费")
    expect(page.get_by_text("住宿费每晚不超过四百五十元").first).to_be_visible()

    admin.open("system/")
    expect(page.locator("[data-chart] canvas").first).to_be_visible()
    page.wait_for_function("Object.keys(Chart.instances).length >= 1")
    assert page.evaluate("typeof htmx.ajax") == "function"
    leave = page.locator("form[action$='/logout/'] button, #logout-form button").first
    expect(leave).to_be_hidden()
    page.click("#account-button")
    expect(leave).to_be_visible()


@pytest.mark.parametrize("path", ["ask/", "search-debug/", "why-not/", "compare/"])
def test_among_many_knowledge_bases_one_is_found_by_its_name(admin, path):
    page = admin.page
    admin.open("ask/")
    many = {f"制度 {number}" for number in range(9)}
    there = {each["name"] for each in admin.call("GET", "knowledge-bases/?page_size=100").json()["results"]}
    for name in many - there:
        assert admin.call("POST", "knowledge-bases/", {"name": name, "language": "zh"}).status == 201
    admin.open(path)
    if path == "ask/":
        page.click("[data-ask-bases] summary")
    pills = page.locator(".sd-pill:visible")
    chosen = pills.filter(has_text="制度 7")
    chosen.click()

    page.locator("[data-sd-filter]").fill("度 3")
    expect(pills.filter(has_not=page.locator("input:checked"))).to_have_text(["制度 3"])
    expect(chosen).to_be_visible()
    page.locator("[data-sd-filter]").fill("")
    expect(pills.filter(has_text="制度")).to_have_count(len(many))


def test_the_documentation_of_the_api_works_under_a_stricter_policy(admin):
    page = admin.page
    response = page.goto(f"{admin.url}/api/v1/docs/")

    assert "unsafe" not in response.headers["content-security-policy"]
    expect(page.locator(".swagger-ui .opblock").first).to_be_visible()


def test_a_script_in_a_page_does_not_run(admin):
    """What an injection would leave behind, written into a page as the server sent it."""
    page = admin.page

    def inject(route):
        response = route.fetch()
        hostile = "<script>window.injected = 1</script><img src='data:,' onerror='window.injected = 1'>"
        route.fulfill(response=response, body=response.text().replace("</main>", hostile + "</main>") + hostile)

    page.route(re.compile(r"/admin/$"), inject)
    admin.open("")
    page.wait_for_load_state("networkidle")

    assert page.evaluate("window.injected") is None
    assert any("Content Security Policy" in trouble for trouble in admin.troubles)
    admin.troubles.clear()


def test_no_other_site_is_reached(admin):
    admin.open("")

    refused = admin.page.evaluate("fetch('https://example.org/').then(() => 'sent', () => 'refused')")

    assert refused == "refused"
    assert any("Content Security Policy" in trouble for trouble in admin.troubles)
    admin.troubles.clear()
