"""Signing in at a real provider, in a real browser, on a server where nobody logs in with a password."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.accessibility import OPTIONS
from tests.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider

pytestmark = pytest.mark.browser
OWN_SERVER = True  # nobody logs in with a password


@pytest.fixture(scope="module")
def provider():
    with OidcProvider("http://127.0.0.1/admin/oidc/callback/") as provider:
        yield provider


@pytest.fixture(scope="module")
def variables(provider):
    return {
        "OIDC_ISSUER": provider.issuer,
        "OIDC_CLIENT_ID": CLIENT_ID,
        "OIDC_CLIENT_SECRET": CLIENT_SECRET,
        "OIDC_NAME": "Example ID",
        "OIDC_ADMIN_GROUPS": "chiefs",
        "PASSWORD_LOGIN": "false",
    }


@pytest.fixture
def person(visit, served, provider):
    """Somebody with an account at the provider, in front of the page of ours that they asked for."""
    provider.application(
        redirect_uris=f"{served.url}/admin/oidc/callback/", post_logout_redirect_uris=f"{served.url}/admin/login/"
    )

    def person(name, path, *, consents=True, **claims):
        provider.application(skip_authorization=consents)
        provider.person(name, **claims)
        visitor = visit(language="en")
        visitor.page.goto(f"{served.url}{path}")
        visitor.page.get_by_role("link", name="Sign in with Example ID").click()
        visitor.page.fill("#id_username", name)
        visitor.page.fill("#id_password", name)
        visitor.page.get_by_role("button", name="Log in at the provider").click()
        return visitor

    return person


def forget(visitor, provider, *expected):
    """What a visitor causes on purpose by leaving our site, and what else is expected."""
    elsewhere = (provider.issuer.removesuffix("/o"), "404 /favicon.ico", "404 /o/", *expected)
    visitor.troubles[:] = [each for each in visitor.troubles if not any(words in each for words in elsewhere)]


def check(page):
    assert Axe().run(page, options=OPTIONS).response["violations"] == []


def test_a_chief_gives_a_group_a_role_and_its_reader_tries_the_api_out(person, provider, served):
    chief = person("mei", "/admin/kb/knowledgebase/", groups=["chiefs", "engineering"])
    documents = chief.page.locator("#content-main a[href$='/documents/']").first.get_attribute("href")
    kb_id = re.search(r"/knowledgebase/(\d+)/", documents)[1]
    chief.open(f"kb/knowledgebase/{kb_id}/sharing/")
    chief.page.get_by_label("Group").fill("engineering")
    chief.page.get_by_role("button", name="Add the group").click()
    expect(chief.page.get_by_test_id("groups")).to_contain_text("engineering")
    forget(chief, provider)

    reader = person("li", "/admin/login/?next=/api/v1/docs/", groups=["engineering"])
    expect(reader.page).to_have_url(f"{served.url}/api/v1/docs/")
    answer = reader.page.request.get(f"{served.url}/api/v1/knowledge-bases/")
    assert [each["role"] for each in answer.json()["results"]] == ["viewer"]
    forget(reader, provider)


def test_who_logs_out_here_is_offered_to_log_out_of_the_provider_too(person, provider, served):
    visitor = person("mei", "/admin/kb/knowledgebase/", groups=["chiefs"])
    page = visitor.page
    page.locator("#account-button").click()
    expect(page.get_by_role("link", name="Change password")).to_have_count(0)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_test_id("logged-out")).to_be_visible()
    page.get_by_role("link", name="Log out of Example ID too").click()
    expect(page).to_have_url(f"{served.url}/admin/login/")
    page.get_by_role("link", name="Sign in with Example ID").click()
    expect(page.get_by_role("button", name="Log in at the provider")).to_be_visible()
    forget(visitor, provider)


def test_who_refuses_at_the_provider_reads_why_and_comes_back_to_the_login(person, provider, served):
    visitor = person("wang", "/admin/", consents=False)
    visitor.page.locator("input[type=submit], button").filter(has_text=re.compile("Cancel")).or_(
        visitor.page.locator("input[value=Cancel]")
    ).first.click()

    expect(visitor.page.get_by_test_id("not-signed-in")).to_contain_text("did not sign you in")
    check(visitor.page)
    visitor.page.get_by_role("link", name="Back to the login").click()
    expect(visitor.page.get_by_role("link", name="Sign in with Example ID")).to_be_visible()
    expect(visitor.page.locator("input[type=password]")).to_have_count(0)
    check(visitor.page)
    forget(visitor, provider, "403 /admin/oidc/callback/")
