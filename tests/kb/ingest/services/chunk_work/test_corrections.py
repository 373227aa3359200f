"""Text and questions of a chunk, as every page that shows one corrects them."""

import pytest

from kb.access.services.attribution import acting
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.ingest.services.corrections import questions_add, text_change
from kb.models import AuditEntry, Chunk
from kb.search.services.search import SearchRequest, search
from tests.factories import make_member, make_user, principal

pytestmark = pytest.mark.django_db

QUESTION = "谁发明了电话？"


@pytest.fixture
def caller(kb):
    return principal(kb.owner)


@pytest.fixture
def chunk(document):
    return document.chunks.get(position=1)


def found(caller, kb, query=QUESTION):
    outcome = search(caller, SearchRequest(query=query, knowledge_base_ids=[kb.pk], log=False))
    return [hit.passage.stored_chunk_id for hit in outcome.result.hits]


def test_a_chunk_is_found_by_a_question_that_was_added(caller, kb, chunk):
    assert chunk.pk not in found(caller, kb)
    questions_add(caller, chunk_id=chunk.pk, questions=[QUESTION])
    assert found(caller, kb)[0] == chunk.pk
    chunk.refresh_from_db()
    assert (chunk.questions, chunk.own_questions, chunk.text) == ([QUESTION], True, "香蕉是黄的。")


def test_questions_are_lines_of_which_each_is_there_once(caller, chunk):
    questions_add(caller, chunk_id=chunk.pk, questions=[f"  {QUESTION}\n", "", "What  is\tyellow?\0"])
    questions_add(caller, chunk_id=chunk.pk, questions=[QUESTION])
    chunk.refresh_from_db()
    assert chunk.questions == [QUESTION, "What is yellow?"]


@pytest.mark.parametrize(
    "questions",
    [[], [" ", "\n"], ["\0"], ["问" * 2_001], [f"{number}?" for number in range(101)]],
    ids=["none", "blank", "nothing to store", "long", "many"],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_written(caller, chunk, questions):
    with pytest.raises(Rejected):
        questions_add(caller, chunk_id=chunk.pk, questions=questions)
    assert Chunk.objects.get(pk=chunk.pk).questions == []


def test_a_text_is_changed_where_it_is_still_the_one_that_was_shown(caller, chunk):
    shown = chunk.content_hash
    text_change(caller, chunk_id=chunk.pk, text="香蕉是绿的。\r\n要等。", shown=shown)
    with pytest.raises(Rejected):
        text_change(caller, chunk_id=chunk.pk, text="香蕉是蓝的。", shown=shown)
    chunk.refresh_from_db()
    assert (chunk.text, chunk.cut_text) == ("香蕉是绿的。\n要等。", "香蕉是黄的。")


def test_a_text_that_is_sent_back_with_the_line_ends_of_the_web_is_no_other(caller, chunk):
    text_change(caller, chunk_id=chunk.pk, text="一\n二", shown=chunk.content_hash)
    before = Chunk.objects.get(pk=chunk.pk)
    text_change(caller, chunk_id=chunk.pk, text="一\r\n二", shown=before.content_hash)
    after = Chunk.objects.get(pk=chunk.pk)
    assert (after.text, after.updated_at) == (before.text, before.updated_at)


def test_both_are_in_the_audit_log(caller, chunk):
    with acting("admin", user=caller.user):
        questions_add(caller, chunk_id=chunk.pk, questions=[QUESTION])
        text_change(caller, chunk_id=chunk.pk, text="香蕉是绿的。", shown=chunk.content_hash)
    entries = AuditEntry.objects.filter(object_type="chunk", user=caller.user).order_by("pk")
    assert [sorted(entry.changes) for entry in entries] == [["questions"], ["text"]]


def test_a_reader_may_not_and_a_stranger_does_not_see_it(kb, chunk):
    changes = (
        lambda caller: questions_add(caller, chunk_id=chunk.pk, questions=[QUESTION]),
        lambda caller: text_change(caller, chunk_id=chunk.pk, text="x", shown=chunk.content_hash),
    )
    for change in changes:
        with pytest.raises(NotAllowed):
            change(principal(make_member(kb)))
        with pytest.raises(NotVisible):
            change(principal(make_user()))
