"""Celery's way into the services; tasks carry ids only."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from celery import Task, shared_task
from django.utils import timezone
from kombu.exceptions import OperationalError

from kb.access.models import KnowledgeBase
from kb.answers.services.resuming import lost_answers_end
from kb.assistants.services.retention import assistants_purge
from kb.base.errors import Rejected, Superseded
from kb.content.models import Document
from kb.graph.services.writing import extract_document, graph_request_if_wanted, sweep_graph_requests
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
from kb.jobs.moves import AlreadyRunning, Move
from kb.operations.services import retention
from kb.operations.services.bootstrap import demo_models_fetch
from kb.providers.downloads.services import DOWNLOADS, download_run
from kb.quality.fitting.services import measurement
from kb.quality.runs.services.runs import execute_run, sweep_runs
from kb.sources.services.sources import sweep_sources
from kb.sources.services.working import run_source
from kb.web.services import idempotency_keys_purge

logger = logging.getLogger(__name__)

SWEEP_LIMIT = 500
DOCUMENTS_A_TASK = 200
BATCHES_A_TASK = 100
BATCHES_TO_EMBED = 10
BATCHES_TO_APPLY = 20
SECONDS_FOR_INGESTION = SECONDS_FOR_INDEXES = SECONDS_FOR_RUNS = SECONDS_FOR_DOWNLOADS = 6 * 3_600


# Longer than the broker waits before it hands a task to a second worker, which finds the document taken and does nothing.
@shared_task(time_limit=SECONDS_FOR_INGESTION)
def ingest_document(document_id: int) -> None:
    if index_document(document_id):
        enqueue(ingest_document, document_id)
        return
    if graph_request_if_wanted(document_id):
        enqueue(extract_graph, document_id)
    if waits_for_description(document_id):
        enqueue(describe_document_pictures, document_id)


@shared_task(time_limit=SECONDS_FOR_INGESTION)
def ingest_documents(*document_ids: int) -> None:
    """Makes the small ones searchable together, and leaves each of the others to a task of its own."""
    others = index_documents(document_ids)
    read = Document.objects.filter(pk__in=document_ids, knowledge_base__extract_graph=True).exclude(pk__in=others)
    enqueue_each(extract_graph, filter(graph_request_if_wanted, read.order_by("pk").values_list("pk", flat=True)))
    enqueue_each(describe_document_pictures, filter(waits_for_description, set(document_ids).difference(others)))
    enqueue_each(ingest_document, others)


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
    """Carries a change of a knowledge base on for a while; then other tasks have their turn."""
    kb = KnowledgeBase.objects.exclude(**{move.target: ""}).filter(pk=kb_id).first()
    if kb is None:
        return
    try:
        if not move.advance(kb, batches=batches):
            enqueue(task, kb_id)
    except AlreadyRunning:
        pass
    except Superseded:
        enqueue(task, kb_id)
    except move.failures as error:
        move.note_failure(kb_id, error)


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


@shared_task(time_limit=SECONDS_FOR_RUNS)
def run_evaluation(run_id: int) -> None:
    execute_run(run_id, measurement)


@shared_task
def find_near_duplicates(kb_id: int) -> None:
    duplicate_scan_run(kb_id)


@shared_task
def extract_graph(document_id: int) -> None:
    if extract_document(document_id):
        enqueue(extract_graph, document_id)


@shared_task
def sweep_graph_extractions() -> None:
    """Has documents read that have changed, that are to be tried again, or whose task or worker was lost."""
    enqueue_each(extract_graph, sweep_graph_requests())


@shared_task
def sweep_lost_runs() -> None:
    """Gives up runs whose process has died, and enqueues those whose task was lost; one that was not finds its run taken."""
    enqueue_each(run_evaluation, sweep_runs())


# Tasks keep the names that workers of the release before know.
@shared_task(name="kb.tasks.read_web_source")
def read_source(source_id: int) -> None:
    if run_source(source_id):
        enqueue(read_source, source_id)


@shared_task(name="kb.tasks.sweep_due_web_sources")
def sweep_due_sources() -> None:
    """Begins the runs that are due, and carries on those whose task or worker was lost."""
    enqueue_each(read_source, sweep_sources())


@shared_task
def fetch_demo_models(*kb_ids: int) -> None:
    if demo_models_fetch(kb_ids):
        enqueue(fetch_demo_models, *kb_ids)


@shared_task(time_limit=SECONDS_FOR_DOWNLOADS)
def fetch_model(download_id: int) -> None:
    if download_run(download_id):
        enqueue(fetch_model, download_id)


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
