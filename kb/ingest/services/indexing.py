"""From documents to searchable chunks: parse, chunk, tokenise, embed, write.

One document goes this way alone; many small new ones of a knowledge base go together: one parser's child, one run of the
model and one transaction for all. What cannot go with the others is left to be indexed alone: it is large, has chunks
already, was tried before, or a model, a parser elsewhere or LibreOffice reads it. So one that brings its whole batch down
does so once.
"""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial, reduce
from itertools import count
from operator import or_
from typing import Final, cast

from django.db import OperationalError, connection, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext_noop

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import after_commit
from kb.base.disk import DiskFull, has_room, noticing_full_disk
from kb.base.errors import Superseded
from kb.base.files import FilesUnavailable, local_file
from kb.base.findings import Remark, RemarkCode
from kb.base.metrics import DOCUMENT_SECONDS, PROCESSED
from kb.base.telemetry import logs
from kb.content.models import Chunk, Document, IngestBatch
from kb.index.keywords import Source, unread
from kb.index.services.writing import (
    Prepared,
    extraction_of,
    prepare,
    rewrite_chunks,
    source_of,
    tokenizers_of,
    unchanged,
    writing_chunks,
)
from kb.ingest.chunkers.strategies import ChunkDraft, ChunkSettings, Strategy, split
from kb.ingest.parser.archives import ARCHIVE_EXTENSIONS, is_archive_name
from kb.ingest.parser.parse import READERS
from kb.ingest.parser.parsed import DEFAULT_READING, OFFICE_FORMATS, ParsedDocument, ParseError
from kb.ingest.parser.sandbox import TooSlow, WarmParser
from kb.ingest.services.attachments import take_in_attachments
from kb.ingest.services.batches import expand_archive
from kb.ingest.services.documents import CLAIMED, DOCUMENTS, cuttable
from kb.ingest.services.parsing import limits, read_file, reading_of
from kb.ingest.services.pictures import (
    check_pictures,
    drop_files_of_gone,
    store_picture_files,
    with_known_descriptions,
    write_pictures,
)
from kb.ingest.services.rechunk import ChunksChanged, Recut, chunks_of, recut, with_renewed, write_recuts
from kb.jobs.leases import Job, LeaseLost, WorkerEnds, after, must_return, return_if_ending
from kb.providers.embedding_models import embedder
from kb.providers.usage.counting import counted_for
from retrieval.errors import Message, RetrievalError, message_of

logger = logging.getLogger(__name__)

Status, Stage = Document.Status, Document.Stage

MAX_ATTEMPTS = 3
MOST_PLANS = 5  # As curators change its chunks meanwhile; then a document waits its turn again
SMALL_BYTES: Final = 16 * 1024
BATCH_BYTES: Final = 512 * 1024
BATCH_CHARACTERS: Final = 256 * 1024  # Of text that is embedded and written at once: a small file can unpack to much
RENEW_SECONDS: Final = 5.0
RETRY_PAUSE: Final = timedelta(minutes=1)
WORKER_LOST = gettext_noop(
    "The worker stopped three times while it processed this document. Give it more memory or split the file, then retry."
)
INTERNAL_ERROR = gettext_noop(
    "Something unexpected went wrong; nothing of the document was indexed. The worker's log says what: fix it, then retry."
)

# A curator's metadata are above those that the file says of itself.
_FINISH: Final = """
    UPDATE kb_document d SET status = %s, stage = '', progress = 100, attempts = 0, keep_chunks = false, title = v.title,
        indexed_title = v.title, mime = v.mime, chunking = v.chunking, remarks = v.remarks,
        metadata = v.metadata || d.metadata, lease = NULL, lease_until = NULL, updated_at = %s
    FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::jsonb[], %s::jsonb[])
        AS v(id, title, mime, chunking, remarks, metadata) WHERE d.id = v.id"""
_OF_ATTACHMENTS: Final = (RemarkCode.ATTACHMENTS_LEFT_OUT, RemarkCode.ATTACHMENTS_NOT_READ)


class DocumentBatch:
    """One worker's hold on documents of one knowledge base, all under one lease."""

    def __init__(self, documents: Sequence[Document], lease: uuid.UUID) -> None:
        self.kb: KnowledgeBase = documents[0].knowledge_base
        self.lease = lease
        self.jobs = [Job(DOCUMENTS, document, lease) for document in documents]
        self.is_single = len(documents) == 1
        self._rows = Document.objects.filter(lease=lease, status=Status.PROCESSING)
        self._renewed = self._since = time.monotonic()
        self._stage = str(Stage.PARSE)
        self.said: dict[int, Mapping[str, str]] = {}  # by document: the metadata that its file holds

    def report(self, stage: Document.Stage, progress: int) -> None:
        """Shows how far the documents are, in per cent, and renews their lease; for several only now and then.

        Raises WorkerEnds where they have to be given back, and LeaseLost where the only one is no longer this worker's.
        """
        return_if_ending()
        if self.is_single:
            self.enter(stage)
            self.jobs[0].renew(stage=stage, progress=progress)
        elif time.monotonic() - self._renewed >= RENEW_SECONDS:
            self._renewed = time.monotonic()
            self._update(**DOCUMENTS.renewed(), stage=stage, progress=progress)

    def enter(self, stage: str) -> None:
        """Measures the stage that ends where another one begins, of a single document only; blank: it is ready."""
        if self.is_single and stage != self._stage:
            DOCUMENT_SECONDS.labels(self._stage).observe(time.monotonic() - self._since)
            self._stage, self._since = str(stage), time.monotonic()

    def locked(self, plans: Sequence[Recut]) -> list[Recut]:
        """The plans whose documents stay this worker's until the transaction ends; LeaseLost: the only one is not."""
        rows = self._rows.filter(pk__in=[plan.document.pk for plan in plans]).order_by("pk")
        own = set(rows.select_for_update(no_key=True).values_list("pk", flat=True))
        if self.is_single and not own:
            raise LeaseLost
        return [plan for plan in plans if plan.document.pk in own]

    def fail(self, code: str, message: str) -> None:
        for job in self.jobs:
            with suppress(LeaseLost):
                _fail(job, code, message)

    def release(self, *, until: datetime | None = None, **fields: object) -> None:
        """Puts the documents back, to be indexed alone; the attempt counts, so that none is retried for ever."""
        self._update(**DOCUMENTS.freed(Status.PENDING, until=until), **fields)

    def _update(self, **fields: object) -> None:
        """Locks the rows in the order in which cancelling does."""
        with transaction.atomic():
            own = list(self._rows.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True))
            self._rows.filter(pk__in=own).update(**fields)


def _fail(job: Job[Document], code: str, message: str, params: Mapping[str, str | int] | None = None) -> None:
    job.leave(Status.FAILED, error_code=code, error=message, error_params=dict(params or {}))
    if code == "timeout" and job.row.batch_id:
        IngestBatch.objects.filter(pk=job.row.batch_id).update(timeouts=F("timeouts") + 1)
    PROCESSED.labels("failed").inc()
    logger.warning("document %s has failed (%s): %s", job.row.pk, code, message)


def index_document(document_id: int) -> bool:
    """Makes a waiting document searchable, or marks it failed with a sentence for the curator.

    Returns whether it was put back because this worker ends, for another one to take at once.
    """
    job = DOCUMENTS.claim(Q(pk=document_id), **CLAIMED) if not must_return() and has_room() else None
    if job is None:
        return must_return()
    with logs.bound(document_id=document_id):
        return isinstance(_run(DocumentBatch([job.row], job.lease), _index_one), WorkerEnds)


def index_documents(document_ids: Sequence[int], *, batches: int | None = None) -> list[int]:
    """Makes those waiting documents searchable that can go together; returns the others, for `index_document`.

    With `batches` it stops after as many, so that others have their turn.
    """
    for _batch in count() if batches is None else range(batches):
        if must_return() or not has_room() or not (batch := _claim(document_ids)):
            break
        if isinstance(_run(batch, _index_many), WorkerEnds | FilesUnavailable | DiskFull):
            break
    waiting = Document.objects.filter(DOCUMENTS.claimable(), pk__in=document_ids)
    return list(waiting.order_by("pk").values_list("pk", flat=True))


def _run(batch: DocumentBatch, index: Callable[[DocumentBatch], None]) -> Exception | None:
    """Indexes a batch; what goes wrong is written to its documents and returned."""
    ids = [job.row.pk for job in batch.jobs]
    try:
        with DOCUMENTS.renewing(batch.lease), noticing_full_disk():
            index(batch)
    except LeaseLost:
        logger.info("documents %s were taken over or deleted while they were indexed", ids)
    except (WorkerEnds, FilesUnavailable, DiskFull) as error:
        logger.warning("documents %s go back to the queue: %s", ids, error)
        until = None if isinstance(error, WorkerEnds) else after(RETRY_PAUSE)
        with suppress(DiskFull), noticing_full_disk():  # else they do once their lease is over
            batch.release(until=until, attempts=F("attempts") - 1)  # as if they had never been taken
        PROCESSED.labels("returned").inc(len(ids))
        return error
    except RetrievalError as error:
        batch.fail("model_unavailable", message_of(error))
    except (Superseded, ChunksChanged, OperationalError) as error:
        logger.warning("documents %s go back to the queue: %s", ids, error)
        batch.release(until=after(RETRY_PAUSE))
    except Exception:
        logger.exception("documents %s could not be indexed", ids)
        if batch.is_single:
            batch.fail("internal_error", INTERNAL_ERROR)
        else:
            batch.release()
    return None


def _claim(document_ids: Sequence[int]) -> DocumentBatch | None:
    """Takes as many small new documents as are handled at once, of one knowledge base."""
    has_chunks = Exists(Chunk.objects.filter(document=OuterRef("pk")))
    is_read_by_model = Q(knowledge_base__ask_questions=True) | Q(
        knowledge_base__keyword_vectors=True, knowledge_base__keyword_method=KnowledgeBase.KeywordMethod.LLM
    )
    others = (*ARCHIVE_EXTENSIONS, *OFFICE_FORMATS)
    other = reduce(or_, (Q(source__iendswith=extension) for extension in others), Q(file=""))
    is_read_elsewhere = Q(knowledge_base__parser__gt="")
    new = Q(status=Status.PENDING, attempts=0, keep_chunks=False, size__lte=SMALL_BYTES) & DOCUMENTS.available
    lease = uuid.uuid4()
    with transaction.atomic():
        rows = Document.objects.filter(
            new & ~other & ~is_read_by_model & ~is_read_elsewhere & Q(~has_chunks), pk__in=document_ids
        )
        rows = rows.select_related("knowledge_base").order_by("pk")
        documents: list[Document] = []
        room = BATCH_BYTES
        for document in rows.select_for_update(skip_locked=True, no_key=True, of=("self",)):
            room -= document.size
            if room < 0:
                break
            if not documents or document.knowledge_base_id == documents[0].knowledge_base_id:
                documents.append(document)
        ids = [each.pk for each in documents]
        Document.objects.filter(pk__in=ids).update(**DOCUMENTS.taken(lease), **CLAIMED)
    return DocumentBatch(documents, lease) if documents else None


def _index_one(batch: DocumentBatch) -> None:
    job = batch.jobs[0]
    if job.row.attempts > MAX_ATTEMPTS:
        _fail(job, "worker_lost", WORKER_LOST)
    elif job.row.keep_chunks:
        _index_chunks(batch, job)
    else:
        _index_file(batch, job)


def _index_file(batch: DocumentBatch, job: Job[Document]) -> None:
    """Cuts the file, and writes what has changed of the chunks that the document has."""
    document = job.row
    try:
        parsed, drafts = _read(batch, job)
    except ParseError as error:
        if not has_room():  # which no child can tell from a damaged file
            raise DiskFull from error
        if error.code in ("archive", "too_large") and is_archive_name(document.source):
            try:
                expand_archive(job, partial(batch.report, Stage.PARSE))
            except ParseError as of_archive:
                _fail(job, of_archive.code, str(of_archive), of_archive.params)
        else:
            _fail(job, error.code, str(error), error.params)
        return
    prepared: dict[Source, Prepared] = {}
    for _plan in range(MOST_PLANS):
        plan = with_renewed(recut(document, chunks_of(document), drafts, parsed.pictures))
        prepared |= _prepare(batch, (chunk for chunk in plan.renewed if source_of(chunk) not in prepared))
        with suppress(ChunksChanged):
            _write(batch, [plan], prepared)
            return
    raise Superseded(f"the chunks of document {document.pk} are being edited")


def _index_many(batch: DocumentBatch) -> None:
    plans: list[Recut] = []
    room = BATCH_CHARACTERS
    with closing(WarmParser(limits())) as parser:
        for job in batch.jobs:
            batch.report(Stage.PARSE, 5)
            if (plan := _plan_small(batch, job, parser)) is None:
                continue
            plans.append(plan)
            room -= sum(len(chunk.text) for chunk in plan.chunks)
            if room < 0:
                _prepare_and_write(batch, plans)
                plans, room = [], BATCH_CHARACTERS
    _prepare_and_write(batch, plans)


def _plan_small(batch: DocumentBatch, job: Job[Document], parser: WarmParser) -> Recut | None:
    """None: the file cannot be read, which its document says now, or the document waits to be indexed alone."""
    document = job.row
    with suppress(LeaseLost):
        try:
            parsed, drafts = _read(batch, job, parser)
            return with_renewed(recut(document, (), drafts, parsed.pictures))
        except ParseError as error:
            _fail(job, error.code, str(error), error.params)
        except (TooSlow, _GoesAlone) as error:
            logger.info("document %s is indexed alone: %s", document.pk, error)
            job.leave(Status.PENDING)
        except (RetrievalError, FilesUnavailable, DiskFull, WorkerEnds):
            raise  # it is the model, the store or the worker, that all need
        except Exception:
            logger.exception("document %s is indexed alone", document.pk)
            job.leave(Status.PENDING)
    return None


class _GoesAlone(Exception):
    """A document cannot be indexed together with others."""


@noticing_full_disk()
def _read(
    batch: DocumentBatch, job: Job[Document], parser: WarmParser | None = None
) -> tuple[ParsedDocument, list[ChunkDraft]]:
    """Reads and cuts a document's file, and gives the document what the file says of itself.

    The attachments of a mail become documents when it is read for the first time, and not again: a curator may have
    deleted some since.
    """
    document = job.row
    parsed, read_by = _parse(batch, document, parser)
    check_pictures(parsed)
    parsed = with_known_descriptions(document, parsed)
    remarks = [remark for remark in document.remarks if remark["code"] in _OF_ATTACHMENTS]
    if parsed.attachments and parsed.mime != document.mime:
        if parser:
            raise _GoesAlone("it has attachments")
        remarks = stored_remarks(take_in_attachments(job, parsed.metadata, partial(batch.report, Stage.PARSE)))
    batch.report(Stage.CHUNK, 15)
    document.title = document.title or parsed.title
    batch.said[document.pk] = parsed.metadata
    document.mime, document.remarks = parsed.mime, [*stored_remarks(parsed.remarks), *remarks]
    document.chunking = _fingerprint(batch.kb, parsed.mime, read_by)
    return parsed, split(parsed, chunk_settings(batch.kb))


def _prepare_and_write(batch: DocumentBatch, plans: Sequence[Recut]) -> None:
    if plans:
        _write(batch, plans, _prepare(batch, (chunk for plan in plans for chunk in plan.renewed)))


def _prepare(batch: DocumentBatch, chunks: Iterable[Chunk]) -> dict[Source, Prepared]:
    sources = list(dict.fromkeys(map(source_of, chunks)))
    batch.report(Stage.TOKENIZE, 20)
    with counted_for(batch.kb.pk):
        prepared = prepare(
            sources,
            tokenizers=tokenizers_of(batch.kb),
            embedder=embedder(batch.kb.embedding_model),
            extraction=extraction_of(batch.kb),
            on_embedded=lambda share: batch.report(Stage.EMBED, 30 + int(60 * share)),
        )
    batch.report(Stage.WRITE, 90)
    return dict(zip(sources, prepared, strict=True))


def _write(batch: DocumentBatch, plans: Sequence[Recut], prepared: Mapping[Source, Prepared]) -> None:
    """Writes chunks and marks their documents ready, in one transaction; less those that are no longer this worker's."""
    for plan in plans:  # before the chunks get what a model has found, by which they would be other sources
        _note_unread(plan.document, [prepared[source_of(chunk)] for chunk in plan.renewed])
    with _picture_files(plans), writing_chunks(batch.kb):
        own = batch.locked(plans)
        write_recuts(own, prepared, batch.kb.embedding_model)
        for plan in own:
            write_pictures(plan.document, plan.pictures)
        _finish(batch, [plan.document for plan in own])


@contextmanager
def _picture_files(plans: Sequence[Recut]) -> Iterator[None]:
    """Writes the files of pictures before their rows; those of documents that are gone by then are deleted again."""
    shown = [plan for plan in plans if plan.pictures]
    try:
        for plan in shown:
            store_picture_files(plan.document, plan.pictures)
        yield
    finally:
        drop_files_of_gone(plan.document for plan in shown)


def _index_chunks(batch: DocumentBatch, job: Job[Document]) -> None:
    chunks = list(Chunk.objects.filter(document=job.row).select_related("document").order_by("position"))
    by_source = _prepare(batch, chunks)
    pairs = [(chunk, by_source[source_of(chunk)]) for chunk in chunks]
    _note_unread(job.row, [prepared for _, prepared in pairs])
    with writing_chunks(batch.kb):
        rewrite_chunks(unchanged(pairs), model_id=batch.kb.embedding_model)
        job.update()  # raises LeaseLost
        _finish(batch, [job.row])


def _note_unread(document: Document, prepared: Iterable[Prepared]) -> None:
    of_file = [remark for remark in document.remarks if remark["code"] != RemarkCode.MODEL_DID_NOT_READ]
    document.remarks = [*of_file, *stored_remarks(unread(each.problem for each in prepared))]


def _finish(batch: DocumentBatch, documents: Sequence[Document]) -> None:
    """Marks documents ready, with what was found out about them; belongs inside the writing transaction."""
    if not documents:
        return
    columns = zip(
        *(
            (each.pk, each.title, each.mime, each.chunking, *map(_json, (each.remarks, batch.said.get(each.pk, {}))))
            for each in documents
        ),
        strict=True,
    )
    with connection.cursor() as cursor:
        cursor.execute(_FINISH, [Status.READY.value, timezone.now(), *map(list, columns)])
    after_commit(_are_ready, batch, [document.pk for document in documents])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _are_ready(batch: DocumentBatch, document_ids: Sequence[int]) -> None:
    batch.enter("")
    PROCESSED.labels("ready").inc(len(document_ids))
    logger.info("documents %s are ready", document_ids)


def stored_remarks(remarks: Iterable[Remark]) -> list[dict[str, object]]:
    return [
        {
            "code": str(remark.code),
            "params": {
                name: value.as_dict() if isinstance(value, Message) else value for name, value in remark.params.items()
            },
        }
        for remark in remarks
    ]


def _parse(batch: DocumentBatch, document: Document, parser: WarmParser | None = None) -> tuple[ParsedDocument, str]:
    with local_file(document.file) as path:
        if parser:  # only where no parser elsewhere is chosen
            return parser.parse(path, document.source, reading_of(batch.kb)), batch.kb.parser
        on_wait = partial(batch.report, Stage.PARSE, 5)
        return read_file(path, document.source, batch.kb, on_wait=on_wait)


def chunk_settings(kb: KnowledgeBase) -> ChunkSettings:
    """How a knowledge base cuts its documents, with its model's tokens; ValueError: its settings do not go together."""
    model = embedder(kb.embedding_model)
    by_tokens = KnowledgeBase.ChunkUnit.TOKENS in (kb.chunk_unit, kb.chunk_strategy)
    return ChunkSettings(
        size=kb.chunk_size,
        overlap=kb.chunk_overlap,
        unit="tokens" if by_tokens else "characters",
        count_tokens=model.count_tokens,
        token_ends=model.token_ends,
        strategy=cast(Strategy, kb.chunk_strategy),
        parent_size=kb.parent_size,
    )


def outdated_documents(kb: KnowledgeBase) -> QuerySet[Document]:
    """The documents that are known to have been read and cut under other settings than the present ones."""
    usual, chosen = (_fingerprint(kb, mime, kb.parser) for mime in ("", *WORD[:1]))
    is_present = Q(chunking=chosen, mime__in=WORD) | (Q(chunking=usual) & ~Q(mime__in=WORD))
    return cuttable(Document.objects.filter(knowledge_base=kb)).exclude(Q(chunking="") | is_present)


# Media types of what is read as Word documents are.
WORD: Final = (READERS["docx"][0], *(found.mime for found in OFFICE_FORMATS.values() if found.target == ".docx"))


def _fingerprint(kb: KnowledgeBase, mime: str, parser: str) -> str:
    """Tells apart settings under which a file of this media type, read by this parser, has other chunks."""
    reading = reading_of(kb)
    parts = reading.word_parts if mime in WORD and reading != DEFAULT_READING else ()
    return chunk_settings(kb).fingerprint(kb.embedding_model, *parts, *filter(None, [parser]))
