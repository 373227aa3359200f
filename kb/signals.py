"""Receivers only clear and enqueue, on commit. Chunks have none: the database's triggers watch them."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from celery import Task
from django.db import transaction
from django.db.models import Model
from django.db.models.signals import post_delete, post_migrate, post_save
from django.dispatch import receiver
from django.utils.translation import gettext

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import after_commit
from kb.base.files import delete_folder
from kb.base.models import Installation
from kb.content.models import (
    Chunk,
    Document,
    DuplicateScan,
    batch_waiting,
    chunks_replacing,
    documents_waiting,
    knowledge_base_deleting,
    pictures_folder,
)
from kb.graph.services.entities import delete_graph_of, move_facts
from kb.index.bm25 import BM25Store
from kb.index.models import Reembedding, StoreState
from kb.index.services.reembedding import vectors_dropping
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import ensure_built_in_profiles, version_deleting
from kb.quality.failed_queries.services import note_failures
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.services.runs import require_no_run
from kb.search.models import SearchLog
from kb.search.services.search_log import searches_by, searches_logged
from kb.sources.models import Source
from kb.tasks import (
    enqueue,
    enqueue_documents,
    feed_batch,
    find_near_duplicates,
    ingest_document,
    migrate_store,
    read_source,
    reembed_knowledge_base,
    run_evaluation,
    tokenize_knowledge_base,
)


@receiver(documents_waiting)
def documents_taken_in(ids: Sequence[int], **_: Any) -> None:
    enqueue_documents(ids)


@receiver(batch_waiting)
def batch_taken_up(batch_id: int, **_: Any) -> None:
    enqueue(feed_batch, batch_id, 0)


# Rows that are saved so that they wait for a task: by model the task, which gets the row's key, and whether it waits,
# given the row, whether it is new, and the names of the fields that were saved.
TASKS: dict[type[Model], tuple["Task[..., Any]", Callable[[Any, bool, Collection[str]], bool]]] = {
    Document: (ingest_document, lambda row, _new, _saved: row.status == Document.Status.PENDING),
    DuplicateScan: (find_near_duplicates, lambda row, _new, _saved: row.asked_at is not None),
    EvalRun: (run_evaluation, lambda row, is_new, _saved: is_new and row.status == EvalRun.Status.PENDING),
    KnowledgeBase: (
        tokenize_knowledge_base,
        lambda row, _new, saved: row.target_tokenizer_id and "target_tokenizer_id" in saved,
    ),
    Reembedding: (reembed_knowledge_base, lambda row, _new, _saved: row.status == Reembedding.Status.BUILDING),
    StoreState: (migrate_store, lambda row, _new, _saved: row.status == StoreState.Status.FILLING),
    Source: (read_source, lambda row, _new, saved: row.status == Source.Status.WAITING and "status" in saved),
}


def row_saved(
    sender: type[Model], instance: Model, *, created: bool, update_fields: frozenset[str] | None, **_: Any
) -> None:
    task, waits = TASKS[sender]
    if waits(instance, created, update_fields or ()):
        key = instance.knowledge_base_id if isinstance(instance, StoreState) else instance.pk
        transaction.on_commit(partial(enqueue, task, key))


for model in TASKS:
    post_save.connect(row_saved, sender=model)


@receiver(post_save, sender=Document)
def document_saved(instance: Document, *, created: bool, **_: Any) -> None:
    if created:
        after_commit(BM25Store().expire, instance.knowledge_base_id)


@receiver(knowledge_base_deleting)
def knowledge_base_is_deleted(knowledge_base: KnowledgeBase, **_: Any) -> None:
    delete_graph_of(knowledge_base)
    for eval_set in EvalSet.objects.filter(knowledge_base=knowledge_base):
        eval_set.delete()
    after_commit(BM25Store().cache.drop, knowledge_base.pk)


@receiver(chunks_replacing)
def chunks_are_replaced(kept: Chunk, gone: Sequence[int], **_: Any) -> None:
    move_facts(kept, gone)


@receiver(vectors_dropping)
def vectors_are_dropped(knowledge_base: KnowledgeBase, **_: Any) -> None:
    require_no_run(knowledge_base)


@receiver(version_deleting)
def profile_version_is_deleted(profile: RetrievalProfile, **_: Any) -> str:
    message = gettext("The search log holds searches by this version: it can go when they are no longer kept.")
    return message if searches_by(profile).exists() else ""


@receiver(searches_logged)
def searches_were_logged(rows: Sequence[SearchLog], **_: Any) -> None:
    note_failures(rows)


@receiver(post_delete, sender=Document)
def document_deleted(instance: Document, **_: Any) -> None:
    after_commit(BM25Store().expire, instance.knowledge_base_id)
    if instance.file:
        after_commit(instance.file.storage.delete, str(instance.file.name))
    # A worker that was killed may have left files without rows
    if instance.picture_bytes or instance.status != Document.Status.READY:
        after_commit(delete_folder, pictures_folder(instance))


@receiver(post_migrate)
def first_rows(sender: Any, **_: Any) -> None:
    if sender.name == "kb":
        if not Installation.objects.exists():
            Installation.objects.create()
        ensure_built_in_profiles()
