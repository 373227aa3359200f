import threading
import uuid

import pytest
from django.db import connections
from django.utils import timezone, translation
from django.utils.translation import override

from kb.access.services.sharing import member_add
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.index.filters import Filters
from kb.ingest.services.corrections import checked_again, questions_add
from kb.models import EvalQuery, EvalSet, FailedQuery, Judgment, Membership, RetrievalProfile, SearchLog
from kb.quality.failed_queries.services import (
    assign,
    assignable_user,
    feedback,
    note_failures,
    set_state,
    to_eval_query,
)
from kb.search.services import search_log
from kb.search.services.search import SearchRequest, search
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.assistants.making import make_assistant

pytestmark = pytest.mark.django_db

State = FailedQuery.State
GOOD, BAD = SearchLog.Feedback.GOOD, SearchLog.Feedback.BAD


@pytest.fixture
def kb():
    return make_kb()


def logged(*bases, query="年假", outcome="nothing", degraded=(), **fields):
    """An entry of the search log, as its writer has it."""
    return SearchLog.objects.create(
        knowledge_base_ids=[kb.pk for kb in bases],
        query=query,
        profile="default",
        profile_version=1,
        configuration={},
        degraded=[{"stage": "s", "code": code, "detail": "d"} for code in degraded],
        outcome=outcome,
        result_count=int(outcome == "found"),
        duration_ms=1,
        **{"created_at": timezone.now(), "trace": {}, **fields},
    )


def noted(*bases, **fields):
    row = logged(*bases, **fields)
    note_failures([row])
    return FailedQuery.objects.get(last_search=row)


# -- What goes in --------------------------------------------------------------------------------------------------------
def test_failures_of_one_query_are_one_row(kb):
    rows = [logged(kb, query=query) for query in ("Annual  Leave", "annual leave ", "\uff21nnual leave")]
    rows.append(logged(kb, query="annual leave", outcome="gated"))

    note_failures(rows[:2])
    note_failures(rows[2:])

    failed = FailedQuery.objects.get()
    assert failed.count == 4
    assert failed.reasons == {"nothing": 3, "gated": 1}
    assert failed.query == "annual leave"
    assert failed.last_search == rows[-1]
    assert (failed.first_seen, failed.last_seen) == (rows[0].created_at, rows[-1].created_at)
    assert failed.state == State.OPEN


def test_the_same_words_elsewhere_are_another_query(kb):
    other = make_kb()
    note_failures([logged(kb), logged(kb, other), logged(other, kb)])

    assert sorted(FailedQuery.objects.values_list("count", flat=True)) == [1, 2]


def test_a_batch_is_noted_in_one_statement(kb, django_assert_num_queries):
    rows = [logged(kb, query=f"{number}") for number in range(20)]

    with django_assert_num_queries(1):
        note_failures(rows)

    assert FailedQuery.objects.count() == 20


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({"outcome": "found"}, None),
        ({"outcome": "found", "degraded": ["hashing_embedder"]}, None),
        ({"outcome": "found", "degraded": ["reranker_unavailable", "llm_not_configured"]}, None),
        ({"outcome": "found", "degraded": ["bm25_postings_outdated"]}, {"degraded": 1}),
        (
            {"outcome": "gated", "degraded": ["threshold_not_applied", "model_unavailable"]},
            {"gated": 1, "degraded": 1},
        ),
        ({"outcome": "nothing", "query": "  "}, None),
    ],
    ids=str,
)
def test_what_a_curator_can_mend_is_a_failure(kb, fields, reasons):
    note_failures([logged(kb, **fields)])

    assert list(FailedQuery.objects.values_list("reasons", flat=True)) == ([reasons] if reasons else [])


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (State.RESOLVED, State.OPEN),
        (State.IGNORED, State.IGNORED),
        (State.IN_PROGRESS, State.IN_PROGRESS),
        (State.OPEN, State.OPEN),
    ],
)
def test_a_resolved_query_that_fails_again_opens_again(kb, state, after):
    noted(kb)
    FailedQuery.objects.update(state=state)

    assert noted(kb).state == after


def test_a_search_that_is_no_longer_in_the_log_is_noted_without_it(kb):
    row = logged(kb)
    SearchLog.objects.all().delete()

    note_failures([row])

    assert FailedQuery.objects.get().last_search is None


@pytest.mark.django_db(transaction=True)
def test_writers_of_several_processes_lose_no_count(kb):
    batches = [[logged(kb, query=f"{number}") for number in numbers] for numbers in ((1, 2, 3), (3, 2, 1)) * 3]
    start = threading.Barrier(len(batches))

    def write(rows):
        try:
            start.wait()
            note_failures(rows)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=write, args=[rows]) for rows in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert list(FailedQuery.objects.values_list("count", flat=True)) == [6, 6, 6]


# -- From the search log -------------------------------------------------------------------------------------------------
def ask(kb, query, **fields):
    return search(principal(kb.owner), SearchRequest(query=query, knowledge_base_ids=[kb.pk], **fields))


def test_a_search_that_found_nothing_goes_into_the_inbox(kb):
    outcome = ask(kb, "quantum")

    failed = FailedQuery.objects.get()
    assert (failed.query, failed.reasons, failed.last_search_id) == ("quantum", {"nothing": 1}, outcome.trace_id)


def test_a_search_below_the_gate_goes_into_the_inbox(kb):
    make_document(kb, "工作满一年的员工每年享有五天带薪年假。")
    ask(kb, "带薪年假", overrides={"score_threshold": 1.0})

    assert FailedQuery.objects.get().reasons == {"gated": 1}


@pytest.mark.django_db(transaction=True)
def test_the_background_writer_notes_failures(kb):
    ask(kb, "quantum")
    search_log.flush()

    assert FailedQuery.objects.get().query == "quantum"


@pytest.mark.parametrize("fields", [{"explain": True}, {"log": False}], ids=str)
def test_a_search_that_somebody_looks_into_or_measures_is_no_news(kb, fields):
    ask(kb, "quantum", **fields)

    assert not FailedQuery.objects.exists()


# -- Feedback ------------------------------------------------------------------------------------------------------------
def test_thumbs_down_go_into_the_inbox_once_each(kb):
    row, again = logged(kb, outcome="found"), logged(kb, outcome="found")
    for entry in (row, row, again):
        feedback(principal(kb.owner), entry.pk, BAD)

    row.refresh_from_db()
    assert row.feedback == BAD
    assert FailedQuery.objects.get().reasons == {"disliked": 2}


def test_thumbs_up_are_kept_and_no_failure(kb):
    row = logged(kb, outcome="found")
    feedback(principal(kb.owner), row.pk, GOOD)

    row.refresh_from_db()
    assert row.feedback == GOOD
    assert not FailedQuery.objects.exists()


@pytest.mark.parametrize("value", [GOOD, None])
def test_a_thumb_that_is_turned_leaves_nothing_behind(kb, value):
    row = logged(kb, outcome="found")
    feedback(principal(kb.owner), row.pk, BAD)
    feedback(principal(kb.owner), row.pk, value)

    row.refresh_from_db()
    assert row.feedback == value
    assert not FailedQuery.objects.exists()


def test_a_thumb_that_is_turned_leaves_other_failures(kb):
    row = logged(kb)
    note_failures([row])
    feedback(principal(kb.owner), row.pk, BAD)
    feedback(principal(kb.owner), row.pk, None)

    failed = FailedQuery.objects.get()
    assert (failed.reasons, failed.count) == ({"nothing": 1}, 1)


def test_a_reader_may_say_so_and_a_stranger_may_not(kb):
    row = logged(kb, outcome="found")
    feedback(principal(make_member(kb), can_write=False), row.pk, GOOD)

    with pytest.raises(NotVisible):
        feedback(principal(make_user()), row.pk, BAD)
    with pytest.raises(NotVisible):
        feedback(principal(kb.owner), uuid.uuid4(), BAD)
    row.refresh_from_db()
    assert row.feedback == GOOD


# -- What curators do with it --------------------------------------------------------------------------------------------
def test_who_may_edit_all_of_its_knowledge_bases_may_edit_it(kb):
    other = make_kb()
    failed = noted(kb, other)
    editor = make_member(kb, Membership.Role.EDITOR)
    rows = FailedQuery.objects.all()

    assert not rows.editable_by(principal(editor))
    Membership.objects.create(knowledge_base=other, user=editor, role=Membership.Role.VIEWER)
    assert not rows.editable_by(principal(editor))
    Membership.objects.update(role=Membership.Role.EDITOR)
    assert list(rows.editable_by(principal(editor))) == [failed]
    assert not rows.editable_by(principal(editor, can_write=False))
    assert not rows.editable_by(principal(editor, kb_ids=frozenset({kb.pk})))
    assert list(rows.editable_by(principal(make_user(superuser=True)))) == [failed]


def test_a_state_is_set_where_one_may(kb):
    noted(kb)
    noted(make_kb())

    assert set_state(principal(kb.owner), FailedQuery.objects.all(), State.RESOLVED) == 1
    assert sorted(FailedQuery.objects.values_list("state", flat=True)) == [State.OPEN, State.RESOLVED]


def test_who_takes_an_open_query_has_it_in_progress(kb):
    noted(kb)
    ignored = noted(kb, query="other")
    set_state(principal(kb.owner), FailedQuery.objects.filter(pk=ignored.pk), State.IGNORED)

    assert assign(principal(kb.owner), FailedQuery.objects.all(), kb.owner) == 2

    assert set(FailedQuery.objects.values_list("assignee", "state")) == {
        (kb.owner.pk, State.IN_PROGRESS),
        (kb.owner.pk, State.IGNORED),
    }


def test_nobody_is_given_what_they_may_not_see(kb):
    noted(kb)
    with translation.override("en"), pytest.raises(Rejected, match="make that user a member"):
        assign(principal(kb.owner), FailedQuery.objects.all(), make_user())

    assert FailedQuery.objects.get().assignee is None


def test_a_query_is_taken_from_its_assignee(kb):
    noted(kb)
    assign(principal(kb.owner), FailedQuery.objects.all(), kb.owner)
    assign(principal(kb.owner), FailedQuery.objects.all(), None)

    assert FailedQuery.objects.get().assignee is None


def test_an_owner_names_a_member_of_all_knowledge_bases(kb):
    other, owner = make_kb(kb.owner), principal(kb.owner)
    member = make_member(kb, user=make_user("ann"))

    assert assignable_user(owner, [kb.pk], "ann") == member
    assert assignable_user(owner, [kb.pk, other.pk], kb.owner.username) == kb.owner
    with pytest.raises(Rejected):
        assignable_user(owner, [kb.pk, other.pk], "ann")


def test_naming_an_assignee_tells_nothing_of_other_accounts(kb):
    make_user("root-admin", superuser=True)
    make_user("uninvolved")
    make_member(kb, user=make_user("no-staff", staff=False))
    member_add(kb=kb, by=principal(kb.owner), username=make_user("invited").username)

    refusals = []
    for name in ("root-admin", "uninvolved", "no-staff", "invited", "nobody", "nul\0"):
        with pytest.raises(Rejected) as refused:
            assignable_user(principal(kb.owner), [kb.pk], name)
        refusals.append(str(refused.value))

    assert len(set(refusals)) == 1


def test_only_an_owner_of_all_knowledge_bases_names_an_assignee(kb):
    editor, others = make_member(kb, Membership.Role.EDITOR), make_kb()
    make_member(others, Membership.Role.EDITOR, kb.owner)

    for caller, kb_ids in ((editor, [kb.pk]), (kb.owner, [kb.pk, others.pk])):
        with pytest.raises(NotAllowed):
            assignable_user(principal(caller), kb_ids, editor.username)


# -- Evaluation queries --------------------------------------------------------------------------------------------------
def test_a_failed_query_becomes_one_of_a_set(kb):
    failed = noted(kb)
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="regression")

    query = to_eval_query(principal(kb.owner), failed, eval_set)
    again = to_eval_query(principal(kb.owner), failed, eval_set)

    assert query == again
    assert (query.eval_set, query.text, query.answerable) == (eval_set, "年假", True)


def test_a_failed_query_becomes_the_first_of_a_new_set(kb):
    query = to_eval_query(
        principal(kb.owner), noted(kb), EvalSet(knowledge_base=kb, name="from the inbox"), answerable=False
    )

    assert query.eval_set.name == "from the inbox"
    assert query.eval_set.knowledge_base == kb
    assert not query.answerable


def test_the_mark_of_a_query_that_is_in_the_set_already_is_the_new_one(kb):
    failed = noted(kb)
    target = EvalSet(knowledge_base=kb, name="a")
    to_eval_query(principal(kb.owner), failed, target, answerable=False)
    to_eval_query(principal(kb.owner), failed, target)

    assert EvalQuery.objects.get().answerable


def test_a_query_with_relevant_passages_is_not_marked_as_unanswerable(kb):
    failed = noted(kb)
    target = EvalSet(knowledge_base=kb, name="a")
    Judgment.objects.create(query=to_eval_query(principal(kb.owner), failed, target), grade=1)

    with pytest.raises(Rejected):
        to_eval_query(principal(kb.owner), failed, target, answerable=False)


def test_a_set_of_another_knowledge_base_is_refused(kb):
    with pytest.raises(Rejected):
        to_eval_query(principal(kb.owner), noted(kb), EvalSet(knowledge_base=make_kb(kb.owner), name="a"))


def test_a_reader_makes_no_evaluation_query(kb):
    failed = noted(kb)
    with pytest.raises(NotAllowed):
        to_eval_query(principal(make_member(kb)), failed, EvalSet(knowledge_base=kb, name="a"))
    with pytest.raises(NotVisible):
        to_eval_query(principal(make_user()), failed, EvalSet(knowledge_base=kb, name="a"))
    assert not EvalSet.objects.exists()


# -- An installation that keeps queries out of its log -------------------------------------------------------------------
def test_a_search_without_a_kept_query_is_no_failed_query(kb, settings):
    settings.SEARCH_LOG_QUERIES = False
    outcome = ask(kb, "quantum")
    feedback(principal(kb.owner), outcome.trace_id, BAD)

    assert SearchLog.objects.get().feedback == BAD
    assert not FailedQuery.objects.exists()


# -- Once there is an answer ----------------------------------------------------------------------------------------------
def answered(kb, question, *, chunk_text="报销时间见财务部通知。"):
    """A chunk that has the question now, as curators add it."""
    chunk = make_document(kb, chunk_text).chunks.get()
    return questions_add(principal(kb.owner), chunk_id=chunk.pk, questions=[question])


def test_a_question_that_its_search_finds_now_is_resolved(kb):
    other = make_kb(kb.owner)
    rows = [noted(kb, query="年假 几天？"), noted(kb, other, query="年假 几天？")]
    elsewhere, others = noted(other, query="年假 几天？"), noted(kb, query="年假")

    told = checked_again(principal(kb.owner), answered(kb, "年假  几天？"), ["年假  几天？"])

    assert [found for found, _sentence in told] == [True, True]
    assert all("年假 几天？" in sentence for _found, sentence in told)
    for row in (*rows, elsewhere, others):
        row.refresh_from_db()
    assert [row.state for row in (*rows, elsewhere, others)] == ["resolved", "resolved", "open", "open"]
    assert FailedQuery.objects.count() == 4  # searching again is no failure


@pytest.mark.parametrize("state", ["resolved", "ignored"])
def test_what_waits_for_nobody_is_left_alone(kb, state):
    failed = noted(kb, query="年假几天？")
    set_state(principal(kb.owner), FailedQuery.objects.all(), state)
    assert checked_again(principal(kb.owner), answered(kb, "年假几天？"), ["年假几天？"]) == []
    failed.refresh_from_db()
    assert failed.state == state


def test_a_question_is_searched_again_as_it_was_asked(kb):
    """By filters that leave the answer out it is not found, whatever the knowledge base finds without them."""
    asked = SearchRequest(query="年假几天？", knowledge_base_ids=[kb.pk], filters=Filters(tags=("policy",)))
    search(principal(kb.owner), asked)
    search_log.flush()
    failed = FailedQuery.objects.get()

    with override("en"):
        [(found, sentence)] = checked_again(principal(kb.owner), answered(kb, "年假几天？"), ["年假几天？"])

    failed.refresh_from_db()
    assert (found, failed.state) == (False, "open")
    assert "stays on the to-do list" in sentence


@pytest.mark.parametrize(("top_k", "state"), [(1, "open"), (2, "resolved")])
def test_a_question_of_an_assistant_is_searched_again_by_its_profile(kb, top_k, state):
    answered(kb, "年假几天？", chunk_text="年假几天？年假几天？")
    RetrievalProfile.objects.create(knowledge_base=kb, name="narrow", version=1, settings={"top_k": top_k})
    assistant = make_assistant(kb.owner, kb, access="public", settings={"profile": f"{kb.pk}/narrow@1"})
    failed = noted(kb, query="年假几天？", assistant_id=assistant.pk)
    checked_again(principal(kb.owner), answered(kb, "年假几天？"), ["年假几天？"])
    failed.refresh_from_db()
    assert failed.state == state


def test_a_profile_that_is_gone_keeps_the_question_open(kb):
    failed = noted(kb, query="年假几天？", trace={"request": {"profile": "gone", "overrides": {}, "filters": None}})
    [(found, _sentence)] = checked_again(principal(kb.owner), answered(kb, "年假几天？"), ["年假几天？"])
    failed.refresh_from_db()
    assert (found, failed.state) == (False, "open")
