"""Moving a knowledge base to another tokenizer, with searches, edits and workers in between."""

import time
from types import SimpleNamespace

import pytest
from django.core.files.base import ContentFile
from django.db import OperationalError, transaction
from django.utils import timezone

from kb import tasks
from kb.base.db.transactions import Purpose, try_lock
from kb.index.bm25 import BM25Store
from kb.index.services import tokenizing, writing
from kb.index.services.reindex import reindex_postings
from kb.index.services.tokenizing import (
    RETIRED_FOR,
    TOKENIZING,
    drop_retired_postings,
    tokenizer_change,
    tokenizer_change_cancel,
    tokenizing_progress,
    write_tokens,
)
from kb.ingest.services.chunks import chunk_update
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.jobs import moves
from kb.jobs.moves import AlreadyRunning
from kb.models import Chunk, ChunkPostings, KnowledgeBase, KnowledgeBaseVersion, MoveAttempt
from retrieval.errors import DegradationCode
from tests.factories import make_document
from tests.interleaving import Gate, Running
from tests.kb.index.services.tokenizing.searching import (
    ask,
    found_by_keyword,
    fresh,
    keyword_span,
    settings,
    tokenizers_of_postings,
)

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_new_dictionary_word_is_found_whole_after_the_swap(kb):
    assert "石墨烯" not in keyword_terms(kb)
    tokenizer_change(kb, settings("石墨烯 1000"))
    assert TOKENIZING.advance(fresh(kb))
    assert keyword_terms(kb)[-1] == "石墨烯"
    assert found_by_keyword(kb, "石墨烯") == ["石墨烯电池的保修期是两年"]


def keyword_terms(kb):
    return list(ask(kb, "石墨烯").analysis.terms(kb.pk))


def test_searches_go_on_with_the_active_tokenizer_and_the_trace_says_so(kb):
    active = kb.tokenizer_id
    tokenizer_change(kb, settings("石墨烯 1000"))
    detail = keyword_span(kb)
    assert (detail["tokenizer"], detail["target_tokenizer"]) == (active, fresh(kb).target_tokenizer_id)
    assert found_by_keyword(kb, "保修")
    TOKENIZING.advance(fresh(kb))
    assert "target_tokenizer" not in keyword_span(kb)


def test_the_second_set_moves_neither_version_nor_index(kb, monkeypatch):
    monkeypatch.setattr(writing, "BATCH", 1)
    keyword_span(kb)
    before, builds = KnowledgeBaseVersion.objects.get(pk=kb.pk).version, BM25Store().cache.stats()["process"].builds
    tokenizer_change(kb, settings("石墨烯 1000"))
    assert not TOKENIZING.advance(fresh(kb), batches=1)
    assert len(tokenizers_of_postings(kb)) == 2
    assert KnowledgeBaseVersion.objects.get(pk=kb.pk).version == before
    assert keyword_span(kb)["cache_tier"] == "process"
    assert BM25Store().cache.stats()["process"].builds == builds


def test_edits_and_new_documents_write_both_sets(kb):
    tokenizer_change(kb, settings("石墨烯 1000"))
    chunk = Chunk.objects.filter(knowledge_base=kb).select_related("document", "knowledge_base").first()
    chunk_update(chunk, text="石墨烯手机", enabled=True)
    document = document_add(
        knowledge_base=fresh(kb), file=ContentFile("石墨烯手表".encode()), name="a.txt", user=kb.owner
    )
    index_document(document.pk)
    both = {kb.tokenizer_id, fresh(kb).target_tokenizer_id}
    for text in ("石墨烯手机", "石墨烯手表"):
        rows = ChunkPostings.objects.filter(chunk__text=text)
        assert set(rows.values_list("tokenizer_id", flat=True)) == both


def test_a_writer_that_knew_nothing_of_the_target_leaves_no_stale_second_set(kb, monkeypatch):
    monkeypatch.setattr(writing, "BATCH", 1)
    chunk = Chunk.objects.filter(text__contains="石墨烯").select_related("document", "knowledge_base").get()
    tokenizer_change(kb, settings("石墨烯 1000"))
    assert not TOKENIZING.advance(fresh(kb), batches=1)
    chunk_update(chunk, text="钠离子电池", enabled=True)  # its knowledge base was read before the change
    TOKENIZING.advance(fresh(kb))
    assert found_by_keyword(kb, "钠离子") == ["钠离子电池"]
    assert found_by_keyword(kb, "石墨烯") == []


def test_a_chunk_that_comes_while_the_rest_is_tokenised_is_tokenised_before_the_swap(kb, monkeypatch):
    tokenizer_change(kb, settings("石墨烯 1000"))
    stale = fresh(kb)
    stale.target_tokenizer_id = ""  # as a writer has it that read the knowledge base before the change
    gate = Gate(monkeypatch, tokenizing, "tokenize", after=True)
    worker = Running(TOKENIZING.advance, fresh(kb))
    gate.wait()
    make_document(stale, "石墨烯薄膜")
    gate.open()
    assert worker.outcome() is None
    assert fresh(kb).target_tokenizer_id == ""
    assert "石墨烯薄膜" in found_by_keyword(kb, "石墨烯")


def test_an_edit_while_its_chunk_is_tokenised_wins(kb, monkeypatch):
    tokenizer_change(kb, settings("石墨烯 1000"))
    gate = Gate(monkeypatch, tokenizing, "tokenize", after=True)
    worker = Running(TOKENIZING.advance, fresh(kb))
    gate.wait()
    chunk = Chunk.objects.filter(text__contains="石墨烯").select_related("document", "knowledge_base").get()
    chunk_update(chunk, text="钠离子电池", enabled=True)
    gate.open()
    assert worker.outcome() is None
    assert (found_by_keyword(kb, "钠离子"), found_by_keyword(kb, "石墨烯")) == (["钠离子电池"], [])


def test_a_search_that_was_wired_before_the_swap_answers_without_a_gap(kb, monkeypatch):
    make_document(kb, "第三份")  # so that the search has to read the changes
    tokenizer_change(kb, settings("石墨烯 1000"))
    gate = Gate(monkeypatch, BM25Store, "request")
    results = []
    searching = Running(lambda: results.append(ask(kb, "石墨烯")))
    gate.wait()
    TOKENIZING.advance(fresh(kb))
    KnowledgeBase.objects.update(tokenizer_swapped_at=timezone.now() - 2 * RETIRED_FOR)
    drop_retired_postings()
    gate.open()
    assert searching.outcome() is None
    assert [hit.passage.text for hit in results[0].hits if "bm25" in hit.ranks] == ["石墨烯电池的保修期是两年"]
    assert {each.code for each in results[0].degraded} == {DegradationCode.HASHING_EMBEDDER}


def test_what_the_former_tokenizer_made_goes_a_while_after_the_swap(kb):
    former = kb.tokenizer_id
    tokenizer_change(kb, settings("石墨烯 1000"))
    TOKENIZING.advance(fresh(kb))
    assert drop_retired_postings() == 0
    assert former in tokenizers_of_postings(kb)
    KnowledgeBase.objects.update(tokenizer_swapped_at=timezone.now() - 2 * RETIRED_FOR)
    assert drop_retired_postings() == 1
    assert tokenizers_of_postings(kb) == {fresh(kb).tokenizer_id}
    assert drop_retired_postings() == 0


def test_progress_is_counted_in_chunks(kb, monkeypatch):
    monkeypatch.setattr(writing, "BATCH", 1)
    assert tokenizing_progress(kb) is None
    tokenizer_change(kb, settings("石墨烯 1000"))
    assert not TOKENIZING.advance(fresh(kb), batches=1)
    progress = tokenizing_progress(fresh(kb))
    assert (progress.done, progress.total, progress.percent) == (1, 2, 50)


def test_an_interrupted_run_goes_on_where_it_stopped(kb, monkeypatch):
    monkeypatch.setattr(writing, "BATCH", 1)
    tokenizer_change(kb, settings("石墨烯 1000"))
    TOKENIZING.advance(fresh(kb), batches=1)
    assert tokenizing_progress(fresh(kb)).done == 1
    done = []
    monkeypatch.setattr(
        tokenizing, "write_tokens", lambda *call, write=write_tokens: done.append(call[1]) or write(*call)
    )
    assert TOKENIZING.advance(fresh(kb))
    assert [len(batch) for batch in done] == [1]


def test_who_follows_a_worker_is_told_of_all_its_progress(kb, monkeypatch):
    monkeypatch.setattr(writing, "BATCH", 1)
    monkeypatch.setattr(TOKENIZING, "batches_followed", 1)
    tokenizer_change(kb, settings("石墨烯 1000"))
    steps = []
    with try_lock(Purpose.TOKENIZE, kb.pk):
        looks = iter([None, None])

        def look(seconds):
            """What a worker does while the follower waits."""
            if next(looks, "over") == "over":
                KnowledgeBase.objects.filter(pk=kb.pk).update(target_tokenizer_id="")

        monkeypatch.setattr(moves, "time", SimpleNamespace(sleep=look))
        TOKENIZING.follow(fresh(kb), on_progress=steps.append)
    assert sum(steps) == 2
    tokenizer_change(kb, settings("石墨烯 2000"))
    steps.clear()
    TOKENIZING.follow(fresh(kb), on_progress=steps.append)
    assert (sum(steps), fresh(kb).target_tokenizer_id) == (2, "")


def test_two_workers_do_not_tokenise_the_same_knowledge_base(kb):
    tokenizer_change(kb, settings("石墨烯 1000"))
    errors = []

    def other_worker():
        try:
            TOKENIZING.advance(fresh(kb))
        except AlreadyRunning as error:
            errors.append(error)

    with try_lock(Purpose.TOKENIZE, kb.pk) as taken:
        assert taken
        assert Running(other_worker).outcome() is None
    assert len(errors) == 1


def test_without_a_target_nothing_is_done(kb):
    assert TOKENIZING.advance(fresh(kb))
    assert tokenizers_of_postings(kb) == {kb.tokenizer_id}


def test_the_same_settings_need_no_work(kb):
    assert not tokenizer_change(kb, settings())
    assert fresh(kb).target_tokenizer_id == ""


def test_another_target_replaces_the_first_and_what_it_has_made(kb):
    tokenizer_change(kb, settings("石墨烯 1000"))
    first = fresh(kb).target_tokenizer_id
    ChunkPostings.objects.filter(knowledge_base=kb).update(tokenizer_id=first)
    tokenizer_change(kb, settings("电池组 1000"))
    assert first not in tokenizers_of_postings(kb)
    assert fresh(kb).target_tokenizer_id not in ("", first)


def test_going_back_to_the_active_settings_cancels(kb):
    tokenizer_change(kb, settings("石墨烯 1000"))
    assert not tokenizer_change(kb, settings())
    assert fresh(kb).target_tokenizer_id == ""


def test_a_cancelled_change_leaves_the_active_set_alone(kb, monkeypatch):
    monkeypatch.setattr(writing, "BATCH", 1)
    tokenizer_change(kb, settings("石墨烯 1000"))
    TOKENIZING.advance(fresh(kb), batches=1)
    tokenizer_change_cancel(kb)
    assert tokenizers_of_postings(kb) == {kb.tokenizer_id}
    assert found_by_keyword(kb, "保修期")


def test_a_change_that_is_cancelled_while_it_runs_does_not_swap(kb, monkeypatch):
    tokenizer_change(kb, settings("石墨烯 1000"))
    gate = Gate(monkeypatch, tokenizing, "tokenize", after=True)
    worker = Running(TOKENIZING.advance, fresh(kb))
    gate.wait()
    tokenizer_change_cancel(kb)
    gate.open()
    assert worker.outcome() is None
    assert fresh(kb).tokenizer_id == kb.tokenizer_id
    assert tokenizers_of_postings(kb) == {kb.tokenizer_id}


def test_a_saved_target_sends_a_task_on_commit(kb, enqueued):
    with transaction.atomic():
        tokenizer_change(kb, settings("石墨烯 1000"))
        assert enqueued == []
    assert enqueued == [("tokenize_knowledge_base", (kb.pk,))]


def test_a_task_takes_turns_until_it_is_done(kb, enqueued, monkeypatch):
    monkeypatch.setattr(writing, "BATCH", 1)
    monkeypatch.setattr(tasks, "BATCHES_A_TASK", 1)
    tokenizer_change(kb, settings("石墨烯 1000"))
    enqueued.clear()
    tasks.tokenize_knowledge_base(kb.pk)
    assert enqueued == [("tokenize_knowledge_base", (kb.pk,))]
    tasks.tokenize_knowledge_base(kb.pk)
    tasks.tokenize_knowledge_base(kb.pk)
    assert fresh(kb).target_tokenizer_id == ""


def test_the_sweep_takes_up_a_lost_task(kb, enqueued):
    tokenizer_change(kb, settings("石墨烯 1000"))
    enqueued.clear()
    tasks.sweep_keyword_indexes()
    assert enqueued == []  # it has been at work a moment ago
    KnowledgeBase.objects.update(tokenizing_at=timezone.now() - 2 * moves.STOOD_STILL)
    tasks.sweep_keyword_indexes()
    tasks.sweep_keyword_indexes()
    assert enqueued == [("tokenize_knowledge_base", (kb.pk,))]


def test_saving_a_knowledge_base_for_another_reason_starts_no_second_chain_of_tasks(kb, enqueued):
    tokenizer_change(kb, settings("石墨烯 1000"))
    fresh(kb).save()
    tokenizer_change(kb, settings("石墨烯 1000"))
    assert enqueued == [("tokenize_knowledge_base", (kb.pk,))]


def test_a_task_for_a_knowledge_base_that_is_there_no_more_does_nothing(enqueued):
    tasks.tokenize_knowledge_base(123_456)
    assert enqueued == []


def test_reindexing_goes_on_to_the_target(kb):
    tokenizer_change(kb, settings("石墨烯 1000"))
    reindex_postings(fresh(kb))
    assert found_by_keyword(kb, "石墨烯") == ["石墨烯电池的保修期是两年"]


def test_the_new_index_is_there_for_every_process_that_asks_later(kb):
    keyword_span(kb)
    tokenizer_change(kb, settings("石墨烯 1000"))
    TOKENIZING.advance(fresh(kb))
    started = time.monotonic()
    version = KnowledgeBaseVersion.objects.get(pk=kb.pk).version
    loaded = BM25Store().request(kb.pk, version, fresh(kb).tokenizer_id).wait(started + 60)
    assert loaded.index.chunk_count == 2


@pytest.fixture
def without_packages(monkeypatch):
    """A worker that lacks what another process has."""
    monkeypatch.setattr(tokenizing, "tokenizer", lambda _tokenizer_id: None)


@pytest.mark.usefixtures("english")
def test_a_worker_without_the_packages_says_why_the_change_stands_still_and_stops(kb, enqueued, without_packages):
    tokenizer_change(kb, settings("石墨烯 1000"))
    enqueued.clear()

    tasks.tokenize_knowledge_base(kb.pk)

    assert "are not installed" in tokenizing_progress(fresh(kb)).error
    KnowledgeBase.objects.update(tokenizing_at=timezone.now() - 2 * moves.STOOD_STILL)
    assert TOKENIZING.sweep() == []
    assert enqueued == []


def test_a_change_that_has_stopped_goes_on_when_its_settings_are_saved_again(
    kb, enqueued, without_packages, monkeypatch
):
    wanted = settings("石墨烯 1000")
    tokenizer_change(kb, wanted)
    tasks.tokenize_knowledge_base(kb.pk)
    monkeypatch.undo()
    tokenizer_change(kb, wanted)
    assert tokenizing_progress(fresh(kb)).error == ""
    tasks.tokenize_knowledge_base(kb.pk)
    assert fresh(kb).target_tokenizer_id == ""


@pytest.mark.usefixtures("english")
def test_a_change_that_ends_its_worker_each_time_stops_and_says_so(kb, enqueued):
    tokenizer_change(kb, settings("石墨烯 1000"))
    MoveAttempt.objects.create(knowledge_base=kb, purpose=Purpose.TOKENIZE, count=moves.MAX_ATTEMPTS)
    tasks.tokenize_knowledge_base(kb.pk)
    assert "stopped three times" in tokenizing_progress(fresh(kb)).error
    assert fresh(kb).target_tokenizer_id


@pytest.mark.usefixtures("english")
def test_an_attempt_counts_until_its_process_has_come_back_from_it(kb, enqueued, monkeypatch):
    tokenizer_change(kb, settings("石墨烯 1000"))

    def killed(*_args):
        assert MoveAttempt.objects.get().count == 1
        raise ValueError("unexpected")

    monkeypatch.setattr(tokenizing, "write_tokens", killed)
    tasks.tokenize_knowledge_base(kb.pk)
    assert not MoveAttempt.objects.exists()
    assert "Something unexpected" in tokenizing_progress(fresh(kb)).error


def database_ends(*_args):
    raise OperationalError("server closed the connection unexpectedly")


def test_a_change_goes_on_by_itself_once_the_database_is_back(kb, enqueued, monkeypatch):
    tokenizer_change(kb, settings("石墨烯 1000"))
    with monkeypatch.context() as patch:
        patch.setattr(tokenizing, "write_tokens", database_ends)
        tasks.tokenize_knowledge_base(kb.pk)
    assert tokenizing_progress(fresh(kb)).error == ""
    KnowledgeBase.objects.update(tokenizing_at=timezone.now() - 2 * moves.STOOD_STILL)
    assert TOKENIZING.sweep() == [kb.pk]
    tasks.tokenize_knowledge_base(kb.pk)
    assert fresh(kb).target_tokenizer_id == ""
    assert not MoveAttempt.objects.exists()


@pytest.mark.usefixtures("english")
def test_a_change_amid_which_the_database_ends_each_time_stops_and_says_so(kb, enqueued, monkeypatch):
    monkeypatch.setattr(tokenizing, "write_tokens", database_ends)
    tokenizer_change(kb, settings("石墨烯 1000"))
    for _attempt in range(moves.MAX_ATTEMPTS + 1):
        tasks.tokenize_knowledge_base(kb.pk)
    assert "stopped three times" in tokenizing_progress(fresh(kb)).error


def test_a_change_waits_for_room_on_the_disk(kb, enqueued, monkeypatch):
    tokenizer_change(kb, settings("石墨烯 1000"))
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "has_room", lambda: False)
        tasks.tokenize_knowledge_base(kb.pk)
    assert fresh(kb).target_tokenizer_id
    tasks.tokenize_knowledge_base(kb.pk)
    assert fresh(kb).target_tokenizer_id == ""
