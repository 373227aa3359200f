"""What visitors of an assistant asked is for those who edit its knowledge bases: its viewers read it nowhere."""

import uuid

import pytest
from django.urls import reverse
from django.utils import timezone

from kb.base.errors import NotVisible
from kb.models import Chunk, FailedQuery, SearchLog
from kb.quality.failed_queries.services import feedback, note_failures
from kb.search.services.replay import replay
from kb.search.services.search_log import searches_that_found
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.assistants.making import make_assistant

pytestmark = pytest.mark.django_db

WORDS = "My name is Private-Visitor"


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, "某一段。")
    return kb


@pytest.fixture
def asked(kb):
    chunk = Chunk.objects.get(knowledge_base=kb)
    row = SearchLog.objects.create(
        pk=uuid.uuid4(),
        user=kb.owner,
        assistant=make_assistant(kb.owner, kb),
        knowledge_base_ids=[kb.pk],
        query=WORDS,
        profile="default",
        profile_version=1,
        configuration={},
        trace={"results": [{"chunk_id": chunk.pk, "score": 1.0}], "request": {}},
        outcome="nothing",
        result_count=0,
        duration_ms=1,
        created_at=timezone.now(),
    )
    note_failures([row])
    return row


@pytest.mark.parametrize("rows", [SearchLog.objects, FailedQuery.objects])
def test_editors_see_it_and_viewers_do_not(kb, asked, rows):
    editor = make_member(kb, role="editor")
    for caller in (principal(kb.owner), principal(editor), principal(editor, can_write=False)):
        assert rows.visible_to(caller).count() == 1
    assert rows.visible_to(principal(make_user(superuser=True))).count() == 1
    assert rows.visible_to(principal(make_member(kb, role="viewer"))).count() == 0
    assert rows.visible_to(principal(make_user())).count() == 0


def test_a_search_over_a_base_that_is_only_seen_is_not_shown(kb, asked):
    editor = make_member(kb, role="editor")
    other = make_kb()
    SearchLog.objects.update(knowledge_base_ids=[kb.pk, other.pk])
    make_member(other, role="viewer", user=editor)
    assert not SearchLog.objects.visible_to(principal(editor)).exists()


def test_what_members_ask_themselves_stays_visible(kb, asked):
    SearchLog.objects.update(assistant=None)
    FailedQuery.objects.update(assistant_ids=[])
    viewer = principal(make_member(kb, role="viewer"))
    assert SearchLog.objects.visible_to(viewer).count() == FailedQuery.objects.visible_to(viewer).count() == 1


def test_a_viewer_neither_finds_it_at_a_chunk_nor_runs_it_again_nor_judges_it(kb, asked):
    viewer = principal(make_member(kb, role="viewer"))
    chunk = Chunk.objects.get(knowledge_base=kb)
    assert searches_that_found(principal(kb.owner), chunk)
    assert searches_that_found(viewer, chunk) == []
    for call in (lambda: replay(viewer, asked.pk), lambda: feedback(viewer, asked.pk, -1)):
        with pytest.raises(NotVisible):
            call()


def test_the_thumb_of_a_visitor_counts_whose_publisher_has_become_a_viewer(kb, asked):
    viewer = principal(make_member(kb, role="viewer"))
    feedback(viewer, asked.pk, -1, of_visitor=True)
    asked.refresh_from_db()
    assert asked.feedback == -1


@pytest.mark.parametrize("page", ["kb_searchlog_changelist", "kb_failedquery_changelist"])
@pytest.mark.parametrize(("role", "is_shown"), [("viewer", False), ("editor", True)])
def test_lists_show_it_to_editors(client, kb, asked, page, role, is_shown):
    client.force_login(make_member(kb, role=role))
    assert (WORDS in client.get(reverse(f"admin:{page}")).content.decode()) is is_shown


def test_the_history_of_a_publisher_has_no_questions_of_visitors(client, kb, asked):
    client.force_login(kb.owner)
    history = reverse("admin:search_debug_history")
    assert WORDS not in client.get(history).content.decode()
    SearchLog.objects.update(assistant=None)
    assert WORDS in client.get(history).content.decode()
