"""Documents that a program hands over as plain text, each one chunk: ready and searchable once written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from django.db.models import QuerySet

from kb.access.models import KnowledgeBase, User
from kb.base.db.transactions import after_commit
from kb.content.models import Chunk, Document
from kb.index.bm25 import BM25Store
from kb.index.preparing import Source, copy_rows, write_chunks
from kb.index.services.writing import prepare_chunks, writing_chunks
from kb.ingest.chunkers.drafts import hash_content
from kb.providers.loaded import embedder
from retrieval.searchable import searchable_text

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
