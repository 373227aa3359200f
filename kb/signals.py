"""Receivers only clear and enqueue, on commit. Chunks have none: the database's triggers watch them."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from celery import Task
from django.db import transaction
from django.db.models import Model
from django.db.models.signals import post_delete, post_migrate, post_save
from django.dispatch import receiver
from django.utils.translation import gettext

from kb.access.models import KnowledgeBase, Membership, Principal
from kb.answers.models import Message
from kb.answers.services.answers import question_unanswered
from kb.answers.services.conversations import message_judged
from kb.base.db.transactions import after_commit
from kb.base.errors import NotVisible
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
    preview_wanted,
    previews_folder,
)
from kb.graph.services.entities import delete_graph_of, move_facts
from kb.index.bm25 import BM25Store
from kb.index.models import Reembedding, StoreState
from kb.index.services.reembedding import vectors_dropping
from kb.ingest.services.corrections import question_answered
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import content_kept, ensure_built_in_profiles, version_deleting
from kb.providers.downloads.models import ModelDownload
from kb.providers.endpoints import forget
from kb.providers.models import ProviderModel
from kb.quality.failed_queries.services import feedback, forget_searches, note_failures, note_unanswered, recheck
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.services.runs import require_no_run
from kb.search.models import SearchLog
from kb.search.services import search_log
from kb.search.services.search_log import searches_by, searches_deleting, searches_logged
from kb.sources.models import Source
from kb.tasks import (
    enqueue,
    enqueue_documents,
    feed_batch,
    fetch_model,
    find_near_duplicates,
    ingest_document,
    migrate_store,
    prepare_preview,
    read_source,
    reembed_knowledge_base,
    run_evaluation,
    tokenize_knowledge_base,
)
from kb.web.admin.menu import forget_badges


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
    ModelDownload: (
        fetch_model,
        lambda row, is_new, saved: row.status == ModelDownload.Status.WAITING and (is_new or "status" in saved),
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


@receiver(content_kept)
def content_is_kept(knowledge_base_id: int, before: int, after: int, **_: Any) -> None:
    """What was measured of it can still be compared with what will be."""
    runs = EvalRun.objects.filter(eval_set__knowledge_base=knowledge_base_id, content_version=before)
    runs.update(content_version=after)


@receiver(version_deleting)
def profile_version_is_deleted(profile: RetrievalProfile, **_: Any) -> str:
    message = gettext("The search log holds searches by this version: it can go when they are no longer kept.")
    return message if searches_by(profile).exists() else ""


@receiver(searches_logged)
def searches_were_logged(rows: Sequence[SearchLog], **_: Any) -> None:
    note_failures(rows)


@receiver(searches_deleting)
def searches_are_deleted(rows: Sequence[SearchLog], **_: Any) -> None:
    forget_searches(rows)


@receiver(question_unanswered)
def question_was_unanswered(search: SearchLog, is_weak: bool, **_: Any) -> None:  # noqa: FBT001 - the signal's interface
    note_unanswered(search, is_weak=is_weak)


@receiver(question_answered)
def question_was_answered(
    principal: Principal, chunk: Chunk, questions: Sequence[str], **_: Any
) -> list[tuple[bool, str]]:
    return recheck(principal, chunk, questions)


@receiver(message_judged)
def answer_was_judged(message: Message, value: int | None, **_: Any) -> None:
    """What a visitor says of an answer is said of its search, with the rights that it was run with."""
    visitor = message.conversation.visitor
    publisher = visitor.assistant.publisher if visitor is not None else None
    if publisher is None or message.trace_id is None:
        return
    try:
        feedback(Principal(publisher), message.trace_id, value, of_visitor=True)
    except NotVisible:
        search_log.flush()  # a quick visitor judges before the search is in it
        with suppress(NotVisible):  # no longer in it
            feedback(Principal(publisher), message.trace_id, value, of_visitor=True)


@receiver(preview_wanted)
def preview_is_wanted(document_id: int, **_: Any) -> None:
    enqueue(prepare_preview, document_id)


@receiver(post_delete, sender=Document)
def document_deleted(instance: Document, **_: Any) -> None:
    after_commit(BM25Store().expire, instance.knowledge_base_id)
    if instance.file:
        after_commit(instance.file.storage.delete, str(instance.file.name))
    # A worker that was killed may have left files without rows
    if instance.picture_bytes or instance.status != Document.Status.READY:
        after_commit(delete_folder, pictures_folder(instance))
    after_commit(delete_folder, previews_folder(instance))


@receiver([post_save, post_delete], sender=Membership)
def membership_changed(instance: Membership, **_: Any) -> None:
    after_commit(forget_badges, instance.user_id)


@receiver(post_migrate)
def first_rows(sender: Any, **_: Any) -> None:
    if sender.name == "kb":
        if not Installation.objects.exists():
            Installation.objects.create()
        ensure_built_in_profiles()


@receiver([post_save, post_delete], sender=ProviderModel)
def model_changed(**_: Any) -> None:
    forget()
    transaction.on_commit(forget)
