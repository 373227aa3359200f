"""Documents as rows that workers process: how far each is, and what became of it."""

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, TypeVar

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet

from kb.access.models import KnowledgeBase, User
from kb.base.db.transactions import after_commit
from kb.base.metrics import observe_document, observe_stage
from kb.content.models import Chunk, Document, IngestBatch
from kb.index.bm25 import BM25Store
from kb.index.preparing import Source, copy_rows, write_chunks
from kb.index.services.writing import prepare_chunks, writing_chunks
from kb.ingest.chunkers.drafts import hash_content
from kb.jobs.leases import Job, Queue, return_if_ending
from kb.providers.embedding_models import embedder
from retrieval.rerankers.overlap import searchable_text

logger = logging.getLogger(__name__)

Status, Stage = Document.Status, Document.Stage

DOCUMENTS = Queue(
    Document,
    waiting=Status.PENDING,
    running=Status.PROCESSING,
    lasts=lambda: timedelta(seconds=settings.INGEST_LEASE_SECONDS),
    waits_since="updated_at",
    stamp="updated_at",
    available=Q(~Exists(IngestBatch.objects.filter(pk=OuterRef("batch"), paused=True))),
    idle={"stage": "", "progress": 0},
    related=("knowledge_base",),
)
CLAIMED: Mapping[str, Any] = {"stage": Stage.PARSE, "progress": 0, "error": "", "error_code": ""}


class DocumentJob(Job[Document]):
    """One worker's hold on one document; every report of progress renews it."""

    def __init__(self, document: Document, lease: uuid.UUID) -> None:
        super().__init__(DOCUMENTS, document, lease)
        self.document = document
        self._stage, self._since = str(Stage.PARSE), time.monotonic()

    @classmethod
    def claim(cls, document_id: int) -> "DocumentJob | None":
        """Takes a document that waits, or whose worker was lost; None: there is nothing to do for it."""
        job = DOCUMENTS.claim(Q(pk=document_id), **CLAIMED)
        return cls(job.row, job.lease) if job else None

    def report(self, stage: Document.Stage, progress: int) -> None:
        """Shows how far the document is, in per cent of the whole, and renews the lease.

        Raises:
            LeaseLost: the document is no longer this worker's.
            WorkerEnds: the worker has no time left; the document has to be given back.
        """
        return_if_ending()
        self.enter(stage)
        self.renew(stage=stage, progress=progress)

    def enter(self, stage: str) -> None:
        """Measures the stage that ends when another one begins; blank: the document is ready."""
        if stage != self._stage:
            observe_stage(self._stage, time.monotonic() - self._since)
            self._stage, self._since = str(stage), time.monotonic()

    def release(self) -> None:
        """Puts the document back, for the sweep to enqueue; the attempt counts, so that none is retried for ever."""
        self.leave(Status.PENDING)

    def fail(self, code: str, message: str, params: Mapping[str, str | int] | None = None) -> None:
        self.leave(Status.FAILED, error_code=code, error=message, error_params=dict(params or {}))
        observe_document("failed")
        logger.warning("document %s has failed (%s): %s", self.document.pk, code, message)


T = TypeVar("T")

BATCH = 256
TITLE_LENGTH, SOURCE_LENGTH = 500, 1_000


@dataclass(frozen=True, slots=True)
class WholeDocument:
    """A document of one chunk; what is too long of its title and source is cut off.

    Attributes:
        sha256: tells it from the others of its knowledge base.
    """

    text: str
    title: str
    source: str
    sha256: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_by: User | None = None

    def of(self, kb: KnowledgeBase) -> Document:
        """Its row, unsaved."""
        return Document(
            knowledge_base=kb,
            title=self.title[:TITLE_LENGTH],
            source=self.source[:SOURCE_LENGTH],
            mime="text/plain",
            size=len(self.text.encode()),
            sha256=self.sha256,
            metadata=dict(self.metadata),
            status=Document.Status.READY,
            progress=100,
            created_by=self.created_by,
        )


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    """As many at once as are embedded and written together."""
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def write_whole_documents(
    kb: KnowledgeBase, documents: Sequence[WholeDocument], *, replaced: QuerySet[Document]
) -> None:
    """Writes documents in place of others, in one transaction.

    Raises:
        ModelUnavailable: the knowledge base's model cannot be loaded.
        Superseded: the knowledge base moved to another model meanwhile.
    """
    if not documents:
        return
    model = embedder(kb.embedding_model)
    rows = [document.of(kb) for document in documents]
    sources = [
        Source(searchable_text(row.title, (), document.text), document.text)
        for row, document in zip(rows, documents, strict=True)
    ]
    prepared = prepare_chunks(kb, sources)
    counts = [model.count_tokens(source.searchable) for source in sources]
    with writing_chunks(kb):
        replaced.delete()
        copy_rows(Document, rows)
        chunks = [
            Chunk(
                knowledge_base=kb,
                document=row,
                position=0,
                text=source.text,
                content_hash=hash_content(source.text),
                token_count=count,
            )
            for row, source, count in zip(rows, sources, counts, strict=True)
        ]
        write_chunks(chunks, prepared, model_id=model.model_id)
        after_commit(BM25Store().expire, kb.pk)
