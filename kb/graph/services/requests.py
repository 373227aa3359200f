"""Which documents are to be read for the graph, and when: asked for, swept up, tried again."""

import uuid
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from kb.access.models.knowledge import KnowledgeBase
from kb.content.models.documents import Document
from kb.graph.models import GraphExtraction

TASK_AWAITED = timedelta(minutes=2)
LEASE = timedelta(minutes=10)
MAX_ATTEMPTS = 8
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=6)
SWEEP_LIMIT = 200

Status = GraphExtraction.Status
UNFINISHED = (Status.WAITING, Status.RUNNING)


class LeaseLost(Exception):
    """The document was asked for anew, or deleted, or another worker has it: this one writes nothing."""


def graph_request(document: Document) -> GraphExtraction:
    """Asks for a document to be read; what a worker reads of it just now is read once more."""
    now = timezone.now()
    fresh = {
        "status": Status.WAITING,
        "attempts": 0,
        "error_code": "",
        "error": "",
        "lease": None,
        "asked_at": now,
        "due_at": now + TASK_AWAITED,
    }
    extraction, _is_new = GraphExtraction.objects.update_or_create(document=document, defaults=fresh)
    return extraction


def graph_request_if_wanted(document_id: int) -> bool:
    """Asks for a document that has become searchable, where its knowledge base has its documents read."""
    document = _unread().filter(pk=document_id).first()
    if document is None:
        return False
    graph_request(document)
    return True


def graph_request_all(kb: KnowledgeBase) -> int:
    """Asks for all documents of a knowledge base; passages that are as they were are not read again.

    Returns:
        How many were asked for; a sweep hands them out.
    """
    documents = Document.objects.filter(knowledge_base=kb, status=Document.Status.READY).order_by("pk")
    count = 0
    for document in documents.only("pk").iterator():
        graph_request(document)
        count += 1
    GraphExtraction.objects.filter(document__knowledge_base=kb, status=Status.WAITING).update(due_at=timezone.now())
    return count


def sweep_graph_requests() -> list[int]:
    """Asks for documents that were changed since they were read, and takes up what is due or was lost.

    Returns:
        The ids of documents that a task is to be sent for.
    """
    asked = list(_unread().order_by("pk")[:SWEEP_LIMIT])
    for document in asked:
        graph_request(document)
    now = timezone.now()
    with transaction.atomic():
        due = GraphExtraction.objects.filter(status__in=UNFINISHED, due_at__lte=now).order_by("due_at", "pk")
        lost = list(due.select_for_update(skip_locked=True)[:SWEEP_LIMIT].values_list("pk", "document_id"))
        again = {"status": Status.WAITING, "lease": None, "due_at": now + TASK_AWAITED}
        GraphExtraction.objects.filter(pk__in=[pk for pk, _document_id in lost]).update(**again)
    return [document.pk for document in asked] + [document_id for _pk, document_id in lost]


class ReadingJob:
    """One worker's hold on the reading of one document."""

    def __init__(self, extraction: GraphExtraction, lease: uuid.UUID) -> None:
        self.extraction = extraction
        self.document = extraction.document
        self._lease = lease

    @classmethod
    def claim(cls, document_id: int) -> "ReadingJob | None":
        """Takes a document that waits to be read; None where there is none."""
        lease = uuid.uuid4()
        waiting = GraphExtraction.objects.filter(document_id=document_id, status=Status.WAITING)
        if not waiting.update(status=Status.RUNNING, lease=lease, due_at=timezone.now() + LEASE):
            return None
        rows = GraphExtraction.objects.select_related("document__knowledge_base").filter(lease=lease)
        extraction = rows.first()
        return cls(extraction, lease) if extraction else None

    def report(self, **fields: object) -> None:
        """Shows how far the reading is, and renews the hold.

        Raises:
            LeaseLost: the document is not this worker's any more.
        """
        self._update(due_at=timezone.now() + LEASE, **fields)

    def finish(self, **fields: object) -> None:
        done = {"status": Status.DONE, "attempts": 0, "error": "", "error_code": "", "due_at": None}
        self._update(**done, lease=None, finished_at=timezone.now(), **fields)

    def go_on_later(self) -> None:
        """Leaves the rest to another task."""
        self._update(status=Status.WAITING, lease=None, due_at=timezone.now() + TASK_AWAITED)

    def fail(self, code: str, message: str) -> None:
        """Plans another attempt, later each time; after the last one it is left to a curator."""
        attempts = self.extraction.attempts + 1
        is_last = attempts >= MAX_ATTEMPTS
        self._update(
            status=Status.FAILED if is_last else Status.WAITING,
            attempts=attempts,
            error_code=code,
            error=message,
            lease=None,
            due_at=None if is_last else _next_attempt(attempts),
        )

    def _update(self, **fields: object) -> None:
        if not GraphExtraction.objects.filter(pk=self.extraction.pk, lease=self._lease).update(**fields):
            raise LeaseLost


def _next_attempt(attempts: int) -> datetime:
    pause: timedelta = min(FIRST_PAUSE * 2 ** (attempts - 1), LONGEST_PAUSE)
    return timezone.now() + pause


def _unread() -> QuerySet[Document]:
    """Searchable documents that are to be read, and were not since they were changed."""
    changed = Q(updated_at__gt=F("graph_extraction__asked_at")) & ~Q(graph_extraction__status__in=UNFINISHED)
    wanted = Document.objects.filter(knowledge_base__extract_graph=True, status=Document.Status.READY)
    return wanted.filter(Q(graph_extraction=None) | changed)
