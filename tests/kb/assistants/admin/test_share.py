from datetime import timedelta

import pytest
from django.contrib.auth.hashers import check_password
from django.utils import timezone

from kb.assistants.services.assistants import link_create
from kb.assistants.services.entry import link_token
from kb.models import AuditEntry, ShareLink
from tests.factories import make_kb, make_user, principal
from tests.kb.assistants.making import make_assistant
from tests.kb.providers.language_model import no_language_model
from tests.kb.web.admin.pages import Page

pytestmark = pytest.mark.django_db


@pytest.fixture
def by_link(owner, kb):
    return make_assistant(owner, kb, access="link")


def address(page, assistant):
    return Page(page("share", assistant.pk)).tree.xpath("//input[@data-testid='address']/@value")


def test_a_public_one_is_given_out_by_its_plain_address(page, assistant):
    assert address(page, assistant) == [f"http://testserver/chat/{assistant.slug}/"]


@pytest.mark.parametrize(("expiry", "days"), [("never", None), ("1", 1), ("7", 7), ("30", 30)])
def test_a_link_may_end(page, by_link, expiry, days):
    page("share", by_link.pk, data={"action": "link", "name": "customers", "expiry": expiry})
    link = by_link.links.get()
    assert link.name == "customers"
    left = link.expires_at and link.expires_at - timezone.now()
    assert left is None if days is None else timedelta(days=days - 1) < left <= timedelta(days=days)
    assert address(page, by_link) == [f"http://testserver/chat/{by_link.slug}/?key={link_token(link)}"]
    assert AuditEntry.objects.filter(object_type="share_link").exists()


def test_a_link_holds_to_the_end_of_its_last_day(page, by_link):
    today = timezone.localdate()
    page("share", by_link.pk, data={"action": "link", "expiry": "date", "day": today.isoformat()})
    assert timezone.localtime(by_link.links.get().expires_at).date() == today + timedelta(days=1)
    for day in ("", (today - timedelta(days=1)).isoformat()):
        refused = page("share", by_link.pk, data={"action": "link", "expiry": "date", "day": day})
        assert list(refused.context["link_form"].errors) == ["day"]
    assert by_link.links.count() == 1


def test_a_link_is_revoked_after_it_was_asked(page, owner, by_link):
    link = link_create(principal(owner), by_link, name="customers")
    assert "customers" in Page(page("share", by_link.pk, revoke=link.pk)).text("confirm")
    page("share", by_link.pk, data={"action": "revoke", "link": link.pk})
    assert ShareLink.objects.get().revoked_at
    opened = Page(page("share", by_link.pk))
    assert not opened.has("links")
    assert "customers" in opened.text("links-over")
    assert page("share", by_link.pk, data={"action": "revoke", "link": link.pk}).status_code == 404


def test_a_link_of_another_assistant_is_not_found(page, owner, by_link):
    foreign = make_kb(make_user())
    link = link_create(principal(foreign.owner), make_assistant(foreign.owner, foreign, access="link"))
    for named in (link.pk, "nonsense"):
        assert page("share", by_link.pk, revoke=named).status_code == 404
        assert page("share", by_link.pk, data={"action": "revoke", "link": named}).status_code == 404
    assert ShareLink.objects.get().revoked_at is None


def test_access_and_password_hold_at_once(page, assistant):
    sent = {"action": "access", "access": "signed_in", "slug": "heaters-2", "password": "open sesame"}
    page("share", assistant.pk, data=sent)
    assistant.refresh_from_db()
    assert (assistant.access, assistant.slug) == ("signed_in", "heaters-2")
    assert check_password("open sesame", assistant.password)
    opened = page("share", assistant.pk).content.decode()
    assert assistant.password not in opened
    assert "open sesame" not in opened
    page("share", assistant.pk, data={**sent, "password": ""})
    assistant.refresh_from_db()
    assert check_password("open sesame", assistant.password)
    page("share", assistant.pk, data={**sent, "password": "", "no_password": "on"})
    assistant.refresh_from_db()
    assert assistant.password == ""


@pytest.mark.parametrize("password", ["short1x", "12345678", "password"])
def test_a_password_that_is_soon_guessed_is_refused_at_its_field(page, assistant, password):
    sent = {"action": "access", "access": "public", "slug": assistant.slug, "password": password}
    refused = page("share", assistant.pk, data=sent)
    assert refused.status_code == 400
    assert list(refused.context["access_form"].errors) == ["password"]
    assistant.refresh_from_db()
    assert assistant.password == ""


@pytest.mark.parametrize("slug", ["", "new", "with space", "other"])
def test_an_address_that_cannot_be_is_refused_at_its_field(page, owner, kb, assistant, slug):
    make_assistant(owner, kb, slug="other")
    refused = page("share", assistant.pk, data={"action": "access", "access": "public", "slug": slug, "password": ""})
    assert refused.status_code == 400
    assert list(refused.context["access_form"].errors) == ["slug"]


def test_the_line_for_websites_warns_while_none_is_allowed(page, assistant):
    opened = Page(page("share", assistant.pk))
    assert f'<script src="http://testserver/chat/{assistant.slug}/embed.js" async></script>' in opened.text("embed")
    assert opened.has("no-origin")
    page(
        "share",
        assistant.pk,
        data={"action": "origins", "origins": "https://www.example.com/\n\nHTTP://localhost:3000"},
    )
    assistant.refresh_from_db()
    assert assistant.origins == ["https://www.example.com", "http://localhost:3000"]
    assert not Page(page("share", assistant.pk)).has("no-origin")
    refused = page("share", assistant.pk, data={"action": "origins", "origins": "example.com"})
    assert list(refused.context["origins_form"].errors) == ["origins"]


def test_the_line_for_websites_has_the_key_of_a_chat_that_opens_by_link(page, by_link, owner):
    key = link_token(link_create(principal(owner), by_link))
    line = f'<script src="http://testserver/chat/{by_link.slug}/embed.js?key={key}" async></script>'
    assert line in Page(page("share", by_link.pk)).text("embed")


def test_what_visitors_get_without_a_chat_model_is_said_before_the_link_is_given_out(page, by_link, settings, llm):
    assert not Page(page("share", by_link.pk)).has("no-model")
    no_language_model(settings)
    assert "no answer is written" in Page(page("share", by_link.pk)).text("no-model")


def test_programs_are_told_the_base_url_and_the_model(page, assistant):
    shown = Page(page("share", assistant.pk)).text("programs")
    assert "http://testserver/v1" in shown
    assert f'"model": "{assistant.slug}"' in shown


def test_an_action_that_there_is_not_is_not_found(page, assistant):
    assert page("share", assistant.pk, data={"action": "other"}).status_code == 404
