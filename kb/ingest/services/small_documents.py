"""Many small new documents made searchable together: one parser's child, one run of the model and one transaction for all.

A document that cannot go with the others is left to `index_document`, which takes it by itself: it is large, has chunks
already, was tried before, or a language model reads it. So one that brings its whole portion down does so once.
"""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from kb.access.models import KnowledgeBase
from kb.base.files import FilesUnavailable, local_file
from kb.base.metrics import observe_document
from kb.content.models import Chunk, Document
from kb.index.keywords import unread
from kb.index.preparing import Prepared, Source, prepare, write_chunks
from kb.index.services.writing import extraction_of, source_of, tokenizers_of, writing_chunks
from kb.ingest.chunkers.registry import split
from kb.ingest.parser.archives import ARCHIVE_EXTENSIONS
from kb.ingest.parser.parsed import ParsedDocument, ParseError
from kb.ingest.parser.sandbox import Limits
from kb.ingest.parser.warm_parser import TooSlow, WarmParser, warm_parser
from kb.ingest.services.indexing import chunk_settings, stored_remarks
from kb.ingest.services.jobs import CLAIMED, DOCUMENTS, DocumentJob
from kb.ingest.services.rechunk import Recut, recut, write_recut
from kb.jobs.leases import LeaseLost, WorkerEnds, must_return, return_if_ending
from kb.providers.loaded import embedder
from retrieval.errors import RetrievalError
from retrieval.messages import message_of

logger = logging.getLogger(__name__)

SMALL_BYTES: Final = 16 * 1024
PORTION_BYTES: Final = 512 * 1024
PORTION_CHARACTERS: Final = 256 * 1024
"""Of text that is embedded and written at once: a small file can unpack to much."""
RENEW_SECONDS: Final = 5.0

_FINISH: Final = """
    UPDATE kb_document d SET status = %s, stage = '', progress = 100, attempts = 0, title = v.title,
        indexed_title = v.title, mime = v.mime, remarks = v.remarks, chunking = %s, lease = NULL, lease_until = NULL,
        updated_at = %s
    FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::jsonb[]) AS v(id, title, mime, remarks) WHERE d.id = v.id"""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A document that is read and cut."""

    job: DocumentJob
    parsed: ParsedDocument
    plan: Recut

    @property
    def document(self) -> Document:
        return self.job.document


class _Portion:
    """A worker's hold on documents of one knowledge base."""

    def __init__(self, documents: Sequence[Document], lease: uuid.UUID) -> None:
        self.kb: KnowledgeBase = documents[0].knowledge_base
        self.lease = lease
        self.jobs = [DocumentJob(document, lease) for document in documents]
        self._rows = Document.objects.filter(lease=lease, status=Document.Status.PROCESSING)
        self._renewed = time.monotonic()

    def report(self, stage: Document.Stage, progress: int) -> None:
        """Renews the lease of all that are left; now and then only, since that writes each row."""
        return_if_ending()
        if time.monotonic() - self._renewed < RENEW_SECONDS:
            return
        self._renewed = time.monotonic()
        self._update(**DOCUMENTS.renewed(), stage=stage, progress=progress)

    def locked(self, cut: Sequence[_Cut]) -> list[_Cut]:
        """Those that are this worker's still, and stay so until the transaction ends."""
        rows = self._rows.filter(pk__in=[each.document.pk for each in cut]).order_by("pk")
        own = set(rows.select_for_update(no_key=True).values_list("pk", flat=True))
        own.difference_update(Chunk.objects.filter(document__in=own).values_list("document_id", flat=True))
        return [each for each in cut if each.document.pk in own]

    def fail(self, code: str, message: str) -> None:
        for job in self.jobs:
            _tell(job, partial(job.fail, code, message))

    def release(self) -> None:
        """Puts back what is not done, for `index_document`."""
        self._update(**DOCUMENTS.freed(Document.Status.PENDING))

    def give_back(self) -> None:
        """Puts back what is not done, as if it had never been taken."""
        observe_document("returned", len(self.jobs))
        self._update(**DOCUMENTS.freed(Document.Status.PENDING), attempts=F("attempts") - 1)

    def _update(self, **fields: object) -> None:
        """Locks the rows in the order in which cancelling does."""
        with transaction.atomic():
            own = list(self._rows.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
            self._rows.filter(pk__in=own).update(**fields)


def index_documents(document_ids: Sequence[int]) -> list[int]:
    """Makes those of some waiting documents searchable that can go together.

    Returns:
        The ids of those that still wait, for `index_document`.
    """
    while not must_return() and (portion := _claim(document_ids)):
        try:
            with DOCUMENTS.renewing(portion.lease):
                _index(portion)
        except (WorkerEnds, FilesUnavailable) as error:
            logger.warning("%d small documents go back to the queue: %s", len(portion.jobs), error)
            portion.give_back()
            break
        except RetrievalError as error:
            portion.fail("model_unavailable", message_of(error))
        except Exception:
            logger.exception("%d small documents are indexed one by one", len(portion.jobs))
            portion.release()
    waiting = Document.objects.filter(DOCUMENTS.claimable(), pk__in=document_ids)
    return list(waiting.order_by("pk").values_list("pk", flat=True))


def _claim(document_ids: Sequence[int]) -> _Portion | None:
    """Takes as many as are handled at once, of one knowledge base; a task may be delivered as often as the broker likes."""
    lease = uuid.uuid4()
    with transaction.atomic():
        rows = Document.objects.filter(_is_small(), pk__in=document_ids).select_related("knowledge_base").order_by("pk")
        found = list(rows.select_for_update(skip_locked=True, no_key=True, of=("self",)))
        documents = list(_portion(found))
        taken = Document.objects.filter(pk__in=[each.pk for each in documents])
        taken.update(**DOCUMENTS.taken(lease), **CLAIMED)
    return _Portion(documents, lease) if documents else None


def _is_small() -> Q:
    has_chunks = Exists(Chunk.objects.filter(document=OuterRef("pk")))
    by_model = KnowledgeBase.KeywordMethod.LLM
    is_read = Q(knowledge_base__ask_questions=True) | Q(
        knowledge_base__keyword_vectors=True, knowledge_base__keyword_method=by_model
    )
    new = Q(status=Document.Status.PENDING, attempts=0, keep_chunks=False, size__lte=SMALL_BYTES)
    other = Q(file="")
    for extension in ARCHIVE_EXTENSIONS:
        other |= Q(source__iendswith=extension)
    return new & ~other & ~is_read & DOCUMENTS.available & Q(~has_chunks)


def _portion(documents: Sequence[Document]) -> Iterator[Document]:
    room = PORTION_BYTES
    for document in documents:
        room -= document.size
        if room < 0:
            return
        if document.knowledge_base_id == documents[0].knowledge_base_id:
            yield document


def _index(portion: _Portion) -> None:
    limits = Limits(memory_bytes=settings.PARSE_MEMORY_BYTES, seconds=settings.PARSE_SECONDS)
    cut: list[_Cut] = []
    room = PORTION_CHARACTERS
    with warm_parser(limits) as parser:
        for job in portion.jobs:
            portion.report(Document.Stage.PARSE, 5)
            if (each := _cut(job, parser)) is None:
                continue
            cut.append(each)
            room -= sum(len(chunk.text) for chunk in each.plan.chunks)
            if room < 0:
                _prepare_and_write(portion, cut)
                cut, room = [], PORTION_CHARACTERS
    _prepare_and_write(portion, cut)


def _cut(job: DocumentJob, parser: WarmParser) -> _Cut | None:
    """None: the file cannot be read, which its document says now, or the document waits to be taken by itself."""
    document = job.document
    try:
        parsed = _parse(document, parser)
        drafts = split(parsed, chunk_settings(document.knowledge_base))
        document.title = document.title or parsed.title
        return _Cut(job, parsed, recut(document, (), drafts))
    except ParseError as error:
        _tell(job, partial(job.fail, error.code, str(error), error.params))
    except TooSlow as error:
        logger.info("document %s is indexed by itself: %s", document.pk, error)
        _tell(job, job.release)
    except (RetrievalError, FilesUnavailable):
        raise  # it is the model, or the store, that all need
    except Exception:
        logger.exception("document %s is indexed by itself", document.pk)
        _tell(job, job.release)
    return None


def _parse(document: Document, parser: WarmParser) -> ParsedDocument:
    with local_file(document.file) as path:
        return parser.parse(path, document.source)


def _tell(job: DocumentJob, outcome: Callable[[], None]) -> None:
    try:
        outcome()
    except LeaseLost:
        logger.info("document %s was taken over, cancelled or deleted while it was indexed", job.document.pk)


def _prepare_and_write(portion: _Portion, cut: Sequence[_Cut]) -> None:
    if not cut:
        return
    kb = portion.kb
    sources = list(dict.fromkeys(source_of(chunk) for each in cut for chunk in each.plan.chunks))
    portion.report(Document.Stage.TOKENIZE, 20)
    found = prepare(
        sources,
        tokenizers=tokenizers_of(kb),
        embedder=embedder(kb.embedding_model),
        extraction=extraction_of(kb),
        on_embedded=lambda share: portion.report(Document.Stage.EMBED, 30 + int(60 * share)),
    )
    prepared = dict(zip(sources, found, strict=True))
    portion.report(Document.Stage.WRITE, 90)
    with writing_chunks(kb):
        own = portion.locked(cut)
        _write(kb, own, prepared)
        _finish(kb, own, prepared)
    observe_document("ready", len(own))
    logger.info("%d small documents are ready: %s", len(own), [each.document.pk for each in own])


def _write(kb: KnowledgeBase, cut: Sequence[_Cut], prepared: Mapping[Source, Prepared]) -> None:
    flat = [chunk for each in cut if not each.plan.parents for chunk in each.plan.chunks]
    write_chunks(flat, [prepared[source_of(chunk)] for chunk in flat], model_id=kb.embedding_model)
    for each in cut:
        if each.plan.parents:
            write_recut(each.document, each.plan, prepared, each.plan.chunks)


def _finish(kb: KnowledgeBase, cut: Sequence[_Cut], prepared: Mapping[Source, Prepared]) -> None:
    """Marks the documents ready, in one statement; belongs inside the transaction that holds them."""
    if not cut:
        return
    values: list[Any] = [
        Document.Status.READY.value,
        chunk_settings(kb).fingerprint(kb.embedding_model),
        timezone.now(),
        [each.document.pk for each in cut],
        [each.document.title for each in cut],
        [each.parsed.mime for each in cut],
        [json.dumps(_remarks(each, prepared), ensure_ascii=False) for each in cut],
    ]
    with connection.cursor() as cursor:
        cursor.execute(_FINISH, values)


def _remarks(cut: _Cut, prepared: Mapping[Source, Prepared]) -> list[dict[str, object]]:
    problems = [prepared[source_of(chunk)].problem for chunk in cut.plan.chunks]
    return stored_remarks((*cut.parsed.remarks, *unread(problems)))
