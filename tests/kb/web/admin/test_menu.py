"""The numbers of the menu: what the workbench lists, per user and entry."""

import lxml.html
import pytest
from django.urls import reverse
from django.utils import timezone

from kb.access.services.sharing import member_add, member_change, member_remove
from kb.base import cache
from kb.base.cache import shared_redis
from kb.models import Document, FailedQuery, KnowledgeBase, Membership
from kb.web.admin.menu import Badge, forget_badges
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.web.admin.pages import words


@pytest.fixture
def opened(client):
    def get(name, *args):
        page = client.get(reverse(f"admin:{name}", args=args), headers={"accept-language": "en"})
        assert page.status_code == 200
        return lxml.html.fromstring(page.content.decode())

    return get


def badges(page):
    """What a screen reader says beside the entries that have a number, as the page shows it."""
    found = {}
    for badge in page.xpath("//span[contains(@class, 'kb-count')]"):
        if len(badge):
            shown, said = badge
            assert shown.get("aria-hidden") == "true"
            found[badge.get("id").removeprefix("badge-")] = (words(shown), words(said), "urgent" in badge.get("class"))
    return found


def fail(kb, count):
    for number in range(count):
        make_document(kb, title=f"broken {number}")
    Document.objects.filter(knowledge_base=kb).update(status=Document.Status.FAILED)


def ask(kb, count):
    now = timezone.now()
    for number in range(count):
        FailedQuery.objects.create(
            key=f"{kb.pk}-{number}", knowledge_base_ids=[kb.pk], query="q", state="open", first_seen=now, last_seen=now
        )


def test_the_workbench_counts_what_it_lists_beside_the_entries_that_it_leads_to(opened, kb):
    fail(kb, 2)
    ask(kb, 3)

    page = opened("index")

    assert badges(page) == {"knowledge_bases": ("2", "2 to do", True), "quality": ("3", "3 to do", False)}
    assert len(page.xpath("//*[@data-testid='tasks']//li")) == 2


def test_a_page_shows_what_was_counted_or_fetches_it(opened, kb, django_assert_num_queries):
    fail(kb, 1)
    fetches = "//*[@hx-get='/admin/badges/'][@hx-trigger='load']"

    first = opened("password_change")
    assert (badges(first), len(first.xpath(fetches))) == ({}, 1)

    fetched = opened("badges")
    assert badges(fetched) == {"knowledge_bases": ("1", "1 to do", True)}
    assert {each.get("hx-swap-oob") for each in fetched.xpath("//span[@id]")} == {"true"}
    ids = set(first.xpath("//span[starts-with(@id, 'badge-')]/@id"))
    assert set(fetched.xpath("//span[@id]/@id")) == ids

    with django_assert_num_queries(3):  # session, user, current knowledge base's absence: none for badges
        second = opened("password_change")
    assert (badges(second), len(second.xpath(fetches))) == (badges(fetched), 0)


def test_nothing_is_shown_where_there_is_nothing_to_do(opened, kb):
    opened("index")

    page = opened("password_change")

    assert badges(page) == {}
    assert not page.xpath("//*[@hx-get='/admin/badges/']")


def test_above_ninety_nine_the_number_is_said_in_full_only():
    assert [Badge(count).text for count in (1, 99, 100)] == ["1", "99", "99+"]


def test_more_than_ninety_nine(opened, kb):
    ask(kb, 120)

    assert badges(opened("index"))["quality"] == ("99+", "120 to do", False)


def test_a_change_in_the_admin_is_counted_on_the_next_page(client, opened, kb):
    ask(kb, 1)
    assert badges(opened("index")) != {}
    failed = FailedQuery.objects.get()

    FailedQuery.objects.update(state="resolved")
    assert badges(opened("password_change")) != {}, "a minute old at most"
    client.post(
        reverse("admin:kb_failedquery_changelist"), {"action": "take", "_selected_action": [failed.pk]}, follow=False
    )

    assert opened("password_change").xpath("//*[@hx-get='/admin/badges/']")
    assert badges(opened("badges")) == {}


def test_users_have_numbers_of_their_own(client, opened, kb):
    fail(kb, 1)
    assert badges(opened("index")) != {}

    client.force_login(make_user("stranger"))

    assert badges(opened("password_change")) == {}
    assert badges(opened("badges")) == {}


def test_a_right_that_ends_takes_its_numbers_along(client, opened, kb, django_capture_on_commit_callbacks):
    fail(kb, 1)
    caller, editor = principal(kb.owner), make_member(kb, "editor")
    client.force_login(editor)

    for end in (
        lambda: member_change(kb=kb, by=caller, user_id=editor.pk, role="viewer"),
        lambda: member_remove(kb=kb, by=caller, user_id=editor.pk),
    ):
        Membership.objects.filter(user=editor).update(role="editor")
        assert badges(opened("index")) == {"knowledge_bases": ("1", "1 to do", True)}
        with django_capture_on_commit_callbacks(execute=True):
            end()
        assert badges(opened("password_change")) == {}
        assert badges(opened("badges")) == {}


def test_a_superuser_who_is_none_any_more_sees_none_of_theirs(client, opened, curator):
    superuser = make_user("root", superuser=True)
    client.force_login(superuser)
    make_kb(curator)
    KnowledgeBase.objects.update(lacks_postings=True)
    assert "system" in badges(opened("index"))

    superuser.is_superuser = False
    superuser.save()

    assert badges(opened("password_change")) == {}


def test_what_leads_to_no_entry_stands_beside_the_workbench(opened, curator):
    kb = make_kb(make_user("friend"), "shared")
    member_add(kb=kb, by=principal(kb.owner), username="curator", role="viewer")

    assert badges(opened("index")) == {"workbench": ("1", "1 to do", True)}


def test_numbers_are_kept_for_a_minute_and_those_of_another_version_are_none(opened, kb, curator):
    ask(kb, 1)
    opened("index")
    found = shared_redis().ask(lambda redis: redis.keys(f"{cache.KEY_SPACE}:badges:*"))
    (name,) = [each for each in found if each.endswith(f"{curator.pk}:0".encode().hex().encode())]

    assert 0 < shared_redis().ask(lambda redis: redis.pttl(name)) <= 60_000
    forget_badges(curator.pk)
    assert not shared_redis().ask(lambda redis: redis.exists(name))
    shared_redis().ask(lambda redis: redis.set(name, b"damaged"))
    assert badges(opened("password_change")) == {}
