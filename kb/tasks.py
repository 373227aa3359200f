"""Celery's way into the services; tasks carry ids only.

A task for rows of a `Queue` is a token: it works on what is next in turn among all rows that wait, and another one is sent
while its own do. So the order in which tasks arrive decides nothing.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from celery import Task, shared_task
from django.db.models import Model
from django.utils import timezone
from kombu.exceptions import OperationalError

from kb.access.models import KnowledgeBase
from kb.answers.services.resuming import lost_answers_end
from kb.assistants.services.retention import assistants_purge
from kb.base.disk import has_room, is_disk_full
from kb.base.errors import DATABASE_OUT_OF_REACH, Rejected, Superseded
from kb.base.telemetry import logs
from kb.content.models import Document
from kb.graph.models import GraphExtraction
from kb.graph.services.writing import EXTRACTIONS, extract_document, graph_request_if_wanted, sweep_graph_requests
from kb.index.bm25 import BM25Store
from kb.index.fulltext import long_change_logs
from kb.index.mirrors.registry import DRIVERS, StoreError
from kb.index.pgvector import measure_due
from kb.index.services.reembedding import REEMBED
from kb.index.services.stores.applying import changes_apply, waiting
from kb.index.services.stores.migration import STORE_MOVE, settled_count, store_rebuild
from kb.index.services.tokenizing import TOKENIZING, drop_retired_postings, tokenize_questions
from kb.index.vector_index import maintain_vector_indexes
from kb.ingest.services.batches import waiting_ids
from kb.ingest.services.documents import DOCUMENTS
from kb.ingest.services.duplicates import duplicate_scan_run
from kb.ingest.services.indexing import index_document, index_documents
from kb.ingest.services.pictures import describe_pictures, documents_to_describe, waits_for_description
from kb.ingest.services.preview_store import previews_purge
from kb.ingest.services.previews import preview_prepare
from kb.jobs.leases import LeaseLost, Line, Queue
from kb.jobs.moves import INTERNAL_ERROR, AlreadyRunning, Move, WorkerLost
from kb.operations.services import retention
from kb.operations.services.bootstrap import demo_models_fetch
from kb.providers.downloads.models import ModelDownload
from kb.providers.downloads.services import DOWNLOADS, download_run
from kb.quality.fitting.services import measurement
from kb.quality.models import EvalRun
from kb.quality.runs.services.runs import RUNS, execute_run, sweep_runs
from kb.sources.models import Source
from kb.sources.services.sources import SOURCES, sweep_sources
from kb.sources.services.working import run_source
from kb.web.services import idempotency_keys_purge

logger = logging.getLogger(__name__)

SWEEP_LIMIT = 500
DOCUMENTS_A_TASK = 200
BATCHES_A_TASK = 100
BATCHES_TO_EMBED = 10
BATCHES_TO_APPLY = 20
# Longer than the broker waits before it hands a task to a second worker, which finds the row taken and does nothing.
SECONDS_FOR_INGESTION = SECONDS_FOR_INDEXES = SECONDS_FOR_LONG_WORK = 6 * 3_600

# Of what another request has asked for, in the log.
OF_ANOTHER: Final = {"request_id": None, "batch_id": None}
UPLOADS: Final = Line("uploads", DOCUMENTS)
LONG_WORK: Final = Line("long", SOURCES, RUNS, DOWNLOADS, EXTRACTIONS)


@shared_task(time_limit=SECONDS_FOR_INGESTION)
def ingest_document(document_id: int) -> None:
    _ingest([document_id], is_alone=True)


@shared_task(time_limit=SECONDS_FOR_INGESTION)
def ingest_documents(*document_ids: int) -> None:
    """Makes small ones searchable together, and leaves each of the others to a task of its own."""
    _ingest(document_ids, is_alone=False)


def _ingest(document_ids: Sequence[int], *, is_alone: bool) -> None:
    if not has_room():  # a sweep sends them again
        return
    turn = UPLOADS.next(DOCUMENTS, document_ids, limit=DOCUMENTS_A_TASK)
    if turn is None:
        return
    _queue, ids = turn
    is_own = ids[0] in document_ids
    with logs.bound(**({} if is_own else OF_ANOTHER)):
        others = ids if is_own and is_alone else index_documents(ids, batches=1)
        done = sorted(set(ids).difference(others))
        if not done and (is_alone or not is_own):
            index_document(ids[0])
            done = ids[:1]
        read = Document.objects.filter(pk__in=done, knowledge_base__extract_graph=True).order_by("pk")
        enqueue_each(extract_graph, filter(graph_request_if_wanted, read.values_list("pk", flat=True)))
        enqueue_each(describe_document_pictures, filter(waits_for_description, done))
    left = list(DOCUMENTS.due().filter(pk__in=document_ids).order_by("pk").values_list("pk", flat=True))
    if done and len(left) > 1:
        enqueue_documents(left)
    else:
        enqueue_each(ingest_document, left)


@shared_task(time_limit=SECONDS_FOR_INGESTION)
def describe_document_pictures(document_id: int) -> None:
    if describe_pictures(document_id):
        enqueue(describe_document_pictures, document_id)


@shared_task(acks_late=False)
def prepare_preview(document_id: int) -> None:
    """What a page waits for; where it is lost, the page asks again."""
    preview_prepare(document_id)


@shared_task
def sweep_undescribed_pictures() -> None:
    """Has pictures described whose task was lost, or whose model failed a while ago."""
    enqueue_each(describe_document_pictures, documents_to_describe())


def enqueue_documents(document_ids: Sequence[int]) -> None:
    for start in range(0, len(document_ids), DOCUMENTS_A_TASK):
        enqueue(ingest_documents, *document_ids[start : start + DOCUMENTS_A_TASK])


def _work_in_turn(queue: Queue[Any], key: int) -> None:
    """Works on the row of `LONG_WORK` that is next."""
    turn = LONG_WORK.next(queue, [key])
    if turn is None:
        return
    chosen, (chosen_key,) = turn
    task, work = WORK[chosen.model]
    is_own = (chosen.model, chosen_key) == (queue.model, key)
    with logs.bound(**({} if is_own else OF_ANOTHER)):
        if work(chosen_key):
            enqueue(task, chosen_key)
    if not is_own:
        enqueue(WORK[queue.model][0], key)


@shared_task
def feed_batch(batch_id: int, after: int) -> None:
    """Enqueues the documents of an upload that wait, a bounded portion at a time."""
    ids = waiting_ids(batch_id, after=after, limit=SWEEP_LIMIT)
    enqueue_documents(ids)
    if len(ids) == SWEEP_LIMIT:
        enqueue(feed_batch, batch_id, ids[-1])


@shared_task
def sweep_lost_documents() -> int:
    """Enqueues documents whose task was lost: the broker was down or emptied, or the worker died; returns how many.

    A task that was not lost after all finds its document taken and does nothing.
    """
    ids = DOCUMENTS.sweep(limit=SWEEP_LIMIT)
    enqueue_documents(ids)
    return len(ids)


def advance(move: Move, task: "Task[..., Any]", kb_id: int, batches: int) -> None:
    """Carries a change of a knowledge base on for a while; then other tasks have their turn.

    What fails is noted where its page says why, and is not tried again by itself; what the database or the disk stops is
    sent again by a sweep.
    """
    kb = KnowledgeBase.objects.exclude(**{move.target: ""}).filter(pk=kb_id).first()
    if kb is None or not has_room():
        return
    try:
        if not move.advance(kb, batches=batches):
            enqueue(task, kb_id)
    except (AlreadyRunning, LeaseLost):
        pass
    except Superseded:
        enqueue(task, kb_id)
    except Exception as error:
        if isinstance(error, (WorkerLost, *move.failures)):
            move.note_failure(kb_id, error)
            return
        logger.exception("%s(%s) has failed", task.name, kb_id)
        if not (isinstance(error, DATABASE_OUT_OF_REACH) or is_disk_full(error)):
            move.note_failure(kb_id, Rejected("internal_error", INTERNAL_ERROR))


@shared_task
def tokenize_knowledge_base(kb_id: int) -> None:
    advance(TOKENIZING, tokenize_knowledge_base, kb_id, BATCHES_A_TASK)


@shared_task
def sweep_keyword_indexes() -> None:
    """Goes on with what a lost task left: tokenizers on their way, retired postings, long change logs."""
    enqueue_each(tokenize_knowledge_base, TOKENIZING.sweep())
    drop_retired_postings()
    enqueue_each(merge_keyword_index, long_change_logs())


@shared_task
def merge_keyword_index(kb_id: int) -> None:
    """Builds a new base where many chunks have changed since the last, so that searches read few changes."""
    for kb in KnowledgeBase.objects.filter(pk__in=long_change_logs([kb_id])):
        tokenize_questions(kb)
        BM25Store().merge(kb.pk, kb.tokenizer_id)


@shared_task
def reembed_knowledge_base(kb_id: int) -> None:
    advance(REEMBED, reembed_knowledge_base, kb_id, BATCHES_TO_EMBED)


@shared_task
def sweep_lost_reembeddings() -> None:
    enqueue_each(reembed_knowledge_base, REEMBED.sweep())


# What is cut short the next sweep does again; the broker must not hand it to a second worker meanwhile.
@shared_task(acks_late=False, reject_on_worker_lost=False, time_limit=SECONDS_FOR_INDEXES)
def sweep_vector_indexes() -> None:
    """Makes and drops vector indexes as knowledge bases grow, shrink, change their model and go, and measures them."""
    maintain_vector_indexes()
    measure_due()


@shared_task
def apply_store_changes(kb_id: int, place: int) -> None:
    """Has the store at a place among `DRIVERS`, since tasks carry numbers only, take in changes for a while.

    One that fails is tried again after a pause.
    """
    with suppress(AlreadyRunning, StoreError):
        if not changes_apply(kb_id, list(DRIVERS)[place], batches=iter(range(BATCHES_TO_APPLY))):
            enqueue(apply_store_changes, kb_id, place)


# As vector indexes, which a move back to PostgreSQL makes; the next sweep goes on with what is cut short.
@shared_task(acks_late=False, reject_on_worker_lost=False, time_limit=SECONDS_FOR_INDEXES)
def migrate_store(kb_id: int) -> None:
    advance(STORE_MOVE, migrate_store, kb_id, BATCHES_TO_APPLY)


@shared_task
def sweep_stores() -> None:
    """Has stores take in what has changed, and goes on with moves to another store whose task or worker was lost."""
    for kb_id, store in waiting():
        enqueue(apply_store_changes, kb_id, list(DRIVERS).index(store))
    enqueue_each(migrate_store, STORE_MOVE.sweep())


@shared_task
def check_stores() -> None:
    """Rebuilds copies that a server has lost, or part of them, which searches alone may not notice."""
    for kb in KnowledgeBase.objects.filter(store__in=DRIVERS):
        # But for those that another process is at, or that have moved or gone meanwhile
        with suppress(Rejected, KnowledgeBase.DoesNotExist, StoreError):
            check = settled_count(kb, kb.store) if changes_apply(kb.pk, kb.store) else None
            if check is not None and not check.is_complete:
                logger.warning("%s does not hold what it should of knowledge base %s: rebuilding", kb.store, kb.pk)
                store_rebuild(kb)


@shared_task(time_limit=SECONDS_FOR_LONG_WORK)
def run_evaluation(run_id: int) -> None:
    _work_in_turn(RUNS, run_id)


@shared_task
def find_near_duplicates(kb_id: int) -> None:
    duplicate_scan_run(kb_id)


@shared_task(time_limit=SECONDS_FOR_LONG_WORK)
def extract_graph(document_id: int) -> None:
    _work_in_turn(EXTRACTIONS, document_id)


@shared_task
def sweep_graph_extractions() -> None:
    """Has documents read that have changed, that are to be tried again, or whose task or worker was lost."""
    enqueue_each(extract_graph, sweep_graph_requests())


@shared_task
def sweep_lost_runs() -> None:
    """Gives up runs whose process has died, and enqueues those whose task was lost; one that was not finds its run taken."""
    enqueue_each(run_evaluation, sweep_runs())


# Tasks keep the names that workers of the release before know.
@shared_task(name="kb.tasks.read_web_source", time_limit=SECONDS_FOR_LONG_WORK)
def read_source(source_id: int) -> None:
    _work_in_turn(SOURCES, source_id)


@shared_task(name="kb.tasks.sweep_due_web_sources")
def sweep_due_sources() -> None:
    """Begins the runs that are due, and carries on those whose task or worker was lost."""
    enqueue_each(read_source, sweep_sources())


@shared_task
def fetch_demo_models(*kb_ids: int) -> None:
    if demo_models_fetch(kb_ids):
        enqueue(fetch_demo_models, *kb_ids)


@shared_task(time_limit=SECONDS_FOR_LONG_WORK)
def fetch_model(download_id: int) -> None:
    _work_in_turn(DOWNLOADS, download_id)


# By the model of a queue: the task, and what works on a row, which returns whether another task is to go on at once.
WORK: Final[dict[type[Model], tuple["Task[..., Any]", Callable[[int], object]]]] = {
    Source: (read_source, run_source),
    EvalRun: (run_evaluation, partial(execute_run, measure=measurement)),
    ModelDownload: (fetch_model, download_run),
    GraphExtraction: (extract_graph, extract_document),
}


@shared_task
def sweep_model_downloads() -> None:
    enqueue_each(fetch_model, DOWNLOADS.sweep())


@shared_task
def purge_search_log() -> None:
    lost_answers_end()
    if last := retention.doubted_clock(timezone.now()):
        logger.warning("nothing is deleted, as the clock may be wrong: the installation was last used at %s", last)
        return
    retention.purge_search_log()
    retention.purge_audit_log()
    retention.purge_model_use()
    assistants_purge()
    idempotency_keys_purge()
    previews_purge()


def enqueue_each(task: "Task[..., Any]", ids: Iterable[int]) -> None:
    for each in ids:
        enqueue(task, each)


def enqueue(task: "Task[..., Any]", *ids: int) -> None:
    """Sends a task; without a broker the sweep will, once it is back."""
    try:
        task.delay(*ids)
    except OperationalError as error:
        logger.warning("%s%s waits for the broker: %s", task.name, ids, error)
