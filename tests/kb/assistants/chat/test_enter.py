from datetime import timedelta

import pytest
from django.utils import timezone

from kb.assistants.services.assistants import assistant_close, assistant_update, link_create, link_revoke
from kb.assistants.services.entry import link_token
from kb.models import Membership, ShareLink, Visitor
from tests.factories import make_document, make_user, principal
from tests.kb.assistants.chat.visiting import QUESTION, Browser
from tests.kb.assistants.making import make_assistant

pytestmark = pytest.mark.django_db


def lacking(response):
    assert response.status_code == 403, response.content
    told = response.json()
    assert told["code"] == "access_required"
    assert told["detail"]
    assert told["remedy"]
    return told["requirement"]


def test_a_public_chat_lets_anybody_in_and_tells_what_the_page_needs(browser, assistant, kb):
    make_document(kb, "A year.").chunks.update(questions=["How long does a filter last?"])
    told = browser.enter().json()
    assert told.pop("visit")
    assert told.pop("suggested_questions") == ["How long does a filter last?"]
    assert told == {
        "name": assistant.name,
        "opening": "",
        "remembers": True,
        "keeps": True,
    }


@pytest.mark.parametrize(("access", "expected"), [("private", "sign_in"), ("signed_in", "sign_in"), ("link", "link")])
def test_a_stranger_is_told_what_stands_before_it(owner, kb, access, expected):
    browser = Browser(make_assistant(owner, kb, access=access))
    response = browser.enter()
    assert lacking(response) == expected
    login = response.json()["login"]
    assert ("next=%2Fchat%2Fheaters%2F" in login) is (expected == "sign_in")


def test_who_is_signed_in_but_no_member_is_told_that_it_is_closed_to_the_account(owner, kb):
    response = Browser(make_assistant(owner, kb, access="private"), make_user()).enter()
    assert lacking(response) == "closed"
    assert "account" in response.json()["detail"]


def test_a_member_enters_as_the_same_visitor_in_every_browser(owner, kb):
    assistant, member = make_assistant(owner, kb, access="private"), make_user()
    Membership.objects.create(user=member, knowledge_base=kb, role="viewer")
    for _browser in range(2):
        assert Browser(assistant, member).enter().status_code == 200
    assert Visitor.objects.get().user == member


def test_a_draft_is_closed(owner, kb):
    assert lacking(Browser(make_assistant(owner, kb, access="public", published=False)).enter()) == "closed"


def test_a_link_opens_until_it_expires_or_is_revoked(owner, kb, llm):
    assistant = make_assistant(owner, kb, access="link")
    link = link_create(principal(owner), assistant, expires_at=timezone.now() + timedelta(hours=1))
    browser = Browser(assistant)
    assert browser.enter(key=link_token(link)).status_code == 200
    assert browser.enter().status_code == 200  # the token remembers the link
    ShareLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert browser.ask().json()["code"] == "not_let_in"
    expired = browser.enter(key=link_token(link))
    assert lacking(expired) == "link"
    assert "not valid any more" in expired.json()["detail"]

    other = Browser(assistant)
    new = link_create(principal(owner), assistant)
    assert other.enter(key=link_token(new)).status_code == 200
    link_revoke(new)
    assert other.ask().status_code == 403
    assert llm.requests == []


def test_a_password_is_asked_for_and_a_wrong_one_said_to_be_wrong(owner, kb):
    browser = Browser(make_assistant(owner, kb, access="public", password="correct horse"))
    assert lacking(browser.enter()) == "password"
    wrong = browser.enter(password="battery staple")
    assert lacking(wrong) == "password"
    assert "not the password" in wrong.json()["detail"]
    assert browser.enter(password="correct horse").status_code == 200
    assert browser.enter().status_code == 200


def test_guesses_of_a_password_are_limited_by_their_address(owner, kb, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "login": "2/hour"}
    browser = Browser(make_assistant(owner, kb, access="public", password="correct horse"))
    statuses = [browser.enter(password=guess).status_code for guess in ("one", "two", "correct horse")]
    assert statuses == [403, 403, 429]
    assert browser.enter().status_code == 403  # nothing was guessed


def test_guesses_of_a_password_use_up_no_logins_of_their_network(owner, kb, settings, client):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "login": "2/hour"}
    browser = Browser(make_assistant(owner, kb, access="public", password="correct horse"))
    assert [browser.enter(password=guess).status_code for guess in ("one", "two", "three")] == [403, 403, 429]
    login = client.post("/admin/login/", {"username": "somebody", "password": "x"})
    assert login.status_code == 200


def test_guesses_of_a_password_are_limited_over_all_addresses(owner, kb, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "login_name": "2/hour"}
    settings.TRUSTED_PROXIES = 1
    assistant = make_assistant(owner, kb, access="public", password="correct horse")
    member = Browser(assistant)
    for _ in range(3):
        assert Browser(assistant).enter(password="correct horse").status_code == 200  # no guesses
    assert member.enter(password="correct horse").status_code == 200
    assistant_update(principal(owner), assistant, password="battery staple")

    def guess(number, password):
        browser = Browser(assistant, **{"X-Forwarded-For": f"203.0.113.{number}"})
        return browser.enter(password=password).status_code

    assert [guess(number, "wrong") for number in range(3)] == [403, 403, 429]
    assert guess(9, "battery staple") == 429
    assert member.enter(password="battery staple").status_code == 200  # was let in before
    other = make_assistant(owner, kb, name="Other", access="public", password="correct horse")
    assert Browser(other).enter(password="correct horse").status_code == 200


def test_entering_counts_as_a_request_of_its_address(assistant, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "visitor": "2/hour"}
    assert [Browser(assistant).enter().status_code for _ in range(3)] == [200, 200, 429]


def test_a_new_password_ends_visits_and_the_browser_stays_the_same_visitor(owner, kb, llm):
    assistant = make_assistant(owner, kb, access="public", password="correct horse")
    browser = Browser(assistant)
    browser.enter(password="correct horse")
    browser.answered()
    assistant_update(principal(owner), assistant, password="battery staple")
    assert browser.get("conversations/").json()["code"] == "not_let_in"
    assert lacking(browser.enter()) == "password"
    assert browser.enter(password="battery staple").status_code == 200
    assert [row["title"] for row in browser.get("conversations/").json()] == [QUESTION]


def test_a_visit_of_a_user_is_nothing_without_the_session(owner, kb, llm):
    assistant, user = make_assistant(owner, kb, access="signed_in"), make_user()
    signed_in = Browser(assistant, user)
    signed_in.enter()
    signed_in.answered()
    for thief in (Browser(assistant), Browser(assistant, make_user())):
        thief.token = signed_in.token
        assert thief.get("conversations/").status_code == 403
    assistant_update(principal(owner), assistant, access="public")
    thief = Browser(assistant)
    thief.token = signed_in.token
    assert thief.enter().status_code == 200  # as somebody new
    assert thief.get("conversations/").json() == []


@pytest.mark.parametrize("forged", ["", "x", "e30:1tabc:signature"])
def test_a_forged_visit_opens_nothing(assistant, forged):
    browser = Browser(assistant)
    browser.token = forged
    assert browser.ask().json()["code"] == "not_let_in"


def test_a_visit_of_one_chat_is_none_of_another(browser, owner, kb):
    other = Browser(make_assistant(owner, kb, name="Other", access="public"))
    other.token = browser.token
    assert other.get("conversations/").status_code == 403


def test_a_closed_chat_answers_nobody_any_more(browser, assistant, llm):
    assistant_close(assistant)
    assert browser.ask().status_code == 403
    assert lacking(browser.enter()) == "closed"
    assert llm.requests == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_the_scripts_of_other_sites_are_refused(browser, site):
    assert browser.send("POST", "enter/", {}, **{"Sec-Fetch-Site": site}).json()["code"] == "other_site"
    assert browser.send("GET", "conversations/", **{"Sec-Fetch-Site": site}).status_code == 403


def test_a_form_of_another_site_is_refused(browser):
    response = browser.client.post(f"/chat/{browser.slug}/enter/", {"key": ""})
    assert response.status_code == 403


def test_an_unknown_chat_is_not_found(assistant):
    browser = Browser(assistant)
    browser.slug = "nowhere"
    response = browser.enter()
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
