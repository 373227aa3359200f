"""From a document to searchable chunks: parse, chunk, tokenise, embed, write."""

import copy
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext_noop

from kb import draining
from kb.ingest.archives import is_archive_name
from kb.ingest.chunkers.drafts import ChunkSettings, Strategy, hash_content
from kb.ingest.chunkers.registry import split
from kb.ingest.index import Prepared, Source, prepare, replace_postings, replace_vectors
from kb.ingest.parse import ErrorCode, ParsedDocument, ParseError, Remark, RemarkCode
from kb.ingest.sandbox import Limits, parse_file
from kb.ingest.terms import unread
from kb.metrics import observe_document, observe_stage
from kb.models import Chunk, Document, IngestBatch, KnowledgeBase
from kb.models.commits import after_commit
from kb.models.locks import lock_knowledge_bases
from kb.providers import embedder
from kb.services.batches.unpacking import expand_archive
from kb.services.chunk_batches import source_of
from kb.services.chunk_work.bulk import chunks_set_enabled
from kb.services.chunk_work.checks import check_chunk, entries, prepared_chunks, require_there, unchanged_chunk
from kb.services.leases import kept, lease_until
from kb.services.rechunk import ChunksChanged, chunks_of, recut, to_index, write_recut
from kb.services.writing import (
    Superseded,
    extraction_of,
    tokenizers_of,
    unchanged,
    writing_chunks,
)
from kb.stores.files import FilesUnavailable, local_file
from kb.telemetry import context
from retrieval.errors import RetrievalError

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
MOST_PLANS = 5
"""How often a document is planned anew because a curator changed its chunks meanwhile, before it waits its turn again."""
WORKER_LOST = gettext_noop(
    "The worker stopped three times while it processed this document. Give it more memory or split the file, then retry."
)
INTERNAL_ERROR = gettext_noop(
    "Something unexpected went wrong; nothing of the document was indexed. The worker's log says what: mend it, then retry."
)


class LeaseLost(Exception):
    """Another worker has taken the document over, or it was deleted: this one writes nothing."""


class WorkerEnds(Exception):
    """The worker was asked to end a while ago: what it is at goes to another one."""


def must_return() -> bool:
    """Whether this worker ends and has no time left to finish a document."""
    return draining.since() is not None and draining.seconds() >= settings.WORKER_GRACE_SECONDS


def return_if_ending() -> None:
    """Belongs where work can be given up without loss.

    Raises:
        WorkerEnds: the worker has no time left.
    """
    if must_return():
        raise WorkerEnds("the worker ends")


def returned() -> dict[str, object]:
    """The fields of a document as if no worker had taken it: this attempt does not count."""
    waiting = {"status": Document.Status.PENDING, "stage": "", "progress": 0, "lease": None, "lease_until": None}
    return {**waiting, "attempts": F("attempts") - 1, "updated_at": timezone.now()}


class Job:
    """One worker's hold on one document; it is renewed while the worker lives, and by every report of progress."""

    def __init__(self, document: Document, lease: uuid.UUID) -> None:
        self.document = document
        self.lease = lease
        self._stage, self._since = str(Document.Stage.PARSE), time.monotonic()

    @classmethod
    def claim(cls, document_id: int) -> "Job | None":
        """Takes a document that waits, or whose worker was lost.

        Returns:
            None if another worker holds it, it is done, or its upload is paused. A task may so be delivered as often as
            the broker likes.
        """
        lease, now = uuid.uuid4(), timezone.now()
        free = Q(status=Document.Status.PENDING) | Q(status=Document.Status.PROCESSING, lease_until__lt=now)
        paused = Exists(IngestBatch.objects.filter(pk=OuterRef("batch"), paused=True))
        taken = Document.objects.filter(free, ~paused, pk=document_id).update(
            status=Document.Status.PROCESSING,
            stage=Document.Stage.PARSE,
            progress=0,
            error="",
            error_code="",
            attempts=F("attempts") + 1,
            lease=lease,
            lease_until=lease_until(now),
            updated_at=now,
        )
        document = Document.objects.select_related("knowledge_base").filter(pk=document_id).first() if taken else None
        return cls(document, lease) if document else None

    def report(self, stage: Document.Stage, progress: int) -> None:
        """Shows how far the document is, in per cent of the whole, and renews the lease.

        Raises:
            LeaseLost: the document is no longer this worker's.
            WorkerEnds: the worker has no time left; the document has to be given back.
        """
        return_if_ending()
        self._enter(stage)
        now = timezone.now()
        self._update(
            stage=stage,
            progress=progress,
            lease_until=lease_until(now),
            updated_at=now,
        )

    def _enter(self, stage: str) -> None:
        if stage != self._stage:
            observe_stage(self._stage, time.monotonic() - self._since)
            self._stage, self._since = str(stage), time.monotonic()

    def give_back(self) -> None:
        """Puts the document back as if it had never been taken."""
        self._update(**returned())
        observe_document("returned")

    def fail(self, code: str, message: str, params: Mapping[str, str | int] | None = None) -> None:
        self._update(
            status=Document.Status.FAILED,
            error_code=code,
            error=message,
            error_params=dict(params or {}),
            lease=None,
            lease_until=None,
            updated_at=timezone.now(),
        )
        observe_document("failed")
        logger.warning("document %s has failed (%s): %s", self.document.pk, code, message)

    def release(self) -> None:
        """Puts the document back, for the sweep to enqueue; the attempt counts, so that none goes round for ever."""
        self._update(status=Document.Status.PENDING, lease=None, lease_until=None, updated_at=timezone.now())

    def finish(self, title: str, mime: str, **more: object) -> None:
        self._update(
            status=Document.Status.READY,
            stage="",
            progress=100,
            attempts=0,
            keep_chunks=False,
            title=title,
            indexed_title=title,
            mime=mime,
            **more,
            lease=None,
            lease_until=None,
            updated_at=timezone.now(),
        )
        after_commit(self._is_ready)

    def _is_ready(self) -> None:
        self._enter("")
        observe_document("ready")
        logger.info("document %s is ready", self.document.pk)

    def lock(self) -> None:
        """Keeps the document this worker's until the transaction ends.

        Raises:
            LeaseLost: it is no longer.
        """
        self._update(updated_at=timezone.now())

    def _update(self, **fields: object) -> None:
        if not Document.objects.filter(pk=self.document.pk, lease=self.lease).update(**fields):
            raise LeaseLost


def index_document(document_id: int) -> bool:
    """Makes a waiting document searchable, or marks it failed with a sentence for the curator.

    Returns:
        Whether the document was put back because this worker ends, for another one to take at once.
    """
    job = None if must_return() else Job.claim(document_id)
    if job is None:
        return must_return()
    with context.bound(document_id=document_id):
        try:
            with kept(job.lease):
                _run(job)
        except LeaseLost:
            logger.info("document %s was taken over or deleted while it was indexed", document_id)
        except WorkerEnds:
            job.give_back()
            logger.info("document %s was given back, since the worker ends", document_id)
            return True
    return False


def _run(job: Job) -> None:
    try:
        if job.document.attempts > MAX_ATTEMPTS:
            job.fail("worker_lost", WORKER_LOST)
        elif job.document.keep_chunks:
            _index_chunks(job)
        else:
            _index_file(job)
    except (LeaseLost, WorkerEnds):
        raise
    except FilesUnavailable as error:
        logger.warning("document %s goes back to the queue: %s", job.document.pk, error)
        job.give_back()
    except ParseError as error:
        job.fail(error.code, str(error), error.params)
    except RetrievalError as error:
        job.fail("model_unavailable", str(error))
    except (Superseded, OperationalError) as error:
        logger.warning("document %s goes back to the queue: %s", job.document.pk, error)
        job.release()
    except Exception:
        logger.exception("document %s could not be indexed", job.document.pk)
        job.fail("internal_error", INTERNAL_ERROR)


def _index_file(job: Job) -> None:
    """Cuts the file, and writes what has changed of the chunks that the document has."""
    document, kb = job.document, job.document.knowledge_base
    try:
        parsed = _parse(document)
    except ParseError as error:
        if error.code in (ErrorCode.ARCHIVE, ErrorCode.TOO_LARGE) and is_archive_name(document.source):
            expand_archive(job)
            return
        raise
    job.report(Document.Stage.CHUNK, 15)
    how = chunk_settings(kb)
    drafts = split(parsed, how)
    document.title = document.title or parsed.title
    prepared: dict[Source, Prepared] = {}
    for _plan in range(MOST_PLANS):
        plan = recut(document, chunks_of(document), drafts)
        renewed = to_index(kb, plan, is_retitled=document.title != document.indexed_title)
        missing = [source for source in dict.fromkeys(map(source_of, renewed)) if source not in prepared]
        prepared |= dict(zip(missing, _prepare(job, missing), strict=True))
        try:
            with writing_chunks(kb):
                write_recut(document, plan, prepared, renewed)
                remarks = stored_remarks((*parsed.remarks, *unread(each.problem for each in prepared.values())))
                chunking = how.fingerprint(kb.embedding_model)
                job.finish(document.title, parsed.mime, chunking=chunking, remarks=remarks)
        except ChunksChanged:
            continue
        return
    raise Superseded(f"the chunks of document {document.pk} are being edited")


def _index_chunks(job: Job) -> None:
    document, kb = job.document, job.document.knowledge_base
    chunks = list(Chunk.objects.filter(document=document).select_related("document").order_by("position"))
    prepared = _prepare(job, list(map(source_of, chunks)))
    pairs = list(zip(chunks, prepared, strict=True))
    of_file = [remark for remark in document.remarks if remark["code"] != RemarkCode.MODEL_DID_NOT_READ]
    remarks = [*of_file, *stored_remarks(unread(each.problem for each in prepared))]
    with writing_chunks(kb):
        current = unchanged(pairs)
        replace_postings((chunk, prepared.postings) for chunk, prepared in current)
        replace_vectors(current, kb.embedding_model)
        job.finish(document.title, document.mime, remarks=remarks)


def stored_remarks(remarks: Iterable[Remark]) -> list[dict[str, object]]:
    """Remarks as a document keeps them."""
    return [{"code": str(remark.code), "params": dict(remark.params)} for remark in remarks]


def _prepare(job: Job, sources: Sequence[Source]) -> list[Prepared]:
    """Runs tokenizer and model over the chunks, and shows how far they are."""
    kb = job.document.knowledge_base
    job.report(Document.Stage.TOKENIZE, 20)
    prepared = prepare(
        sources,
        tokenizers=tokenizers_of(kb),
        embedder=embedder(kb.embedding_model),
        extraction=extraction_of(kb),
        on_embedded=lambda share: job.report(Document.Stage.EMBED, 30 + int(60 * share)),
    )
    job.report(Document.Stage.WRITE, 90)
    return prepared


def _parse(document: Document) -> ParsedDocument:
    limits = Limits(memory_bytes=settings.PARSE_MEMORY_BYTES, seconds=settings.PARSE_SECONDS)
    with local_file(document.file) as path:
        return parse_file(path, document.source, limits=limits)


def chunk_settings(kb: KnowledgeBase) -> ChunkSettings:
    """How a knowledge base cuts its documents; tokens are those of its embedding model.

    Raises:
        ValueError: its settings do not go together.
    """
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


def chunk_update(
    chunk: Chunk,
    *,
    text: str,
    enabled: bool,
    questions: Sequence[str] | None = None,
    keywords: Sequence[str] | None = None,
    require: Callable[[Chunk], None] = lambda _chunk: None,
) -> None:
    """Changes a chunk and what the indexes hold of it.

    Args:
        chunk: read with its document and knowledge base.
        text: the new one.
        enabled: whether searches find it.
        questions: which it answers; None: those it has.
        keywords: that it is to be found by; none: they are extracted from its text again; None: those it has.
        require: raises where the chunk, which is locked, is not as the caller wants it to be before the change.

    Raises:
        Rejected: the text is blank, something is too long, the model is out of reach, or somebody changed the chunk or the
            document's title meanwhile; nothing was changed.
        Superseded: the knowledge base moved to another model meanwhile; nothing was changed.
        NotVisible: the chunk was deleted or replaced meanwhile.
    """
    wanted = _changed(chunk, text, questions, keywords)
    if not _is_indexed_anew(chunk, wanted):
        with transaction.atomic():
            lock_knowledge_bases([chunk.knowledge_base_id])
            require(require_there(chunk))
            chunks_set_enabled(chunk_ids=[chunk.pk], enabled=enabled)
        return
    _write_anew(chunk, wanted, enabled=enabled, require=require)


def chunk_reindex(chunk: Chunk) -> None:
    """Makes anew what the indexes hold of a chunk, which stays as it is.

    Raises:
        Rejected, Superseded, NotVisible: as `chunk_update`.
    """
    _write_anew(chunk, copy.copy(chunk), enabled=chunk.enabled)


def _write_anew(
    chunk: Chunk, wanted: Chunk, *, enabled: bool, require: Callable[[Chunk], None] = lambda _chunk: None
) -> None:
    model = embedder(chunk.knowledge_base.embedding_model)
    [prepared] = prepared_chunks(chunk.knowledge_base, [wanted])
    with writing_chunks(chunk.knowledge_base):
        locked = unchanged_chunk(chunk)
        require(locked)
        if wanted.text != locked.text:
            cut = locked.cut_text or locked.text
            locked.text, locked.cut_text = wanted.text, "" if wanted.text == cut else cut
        locked.questions, locked.own_questions = wanted.questions, wanted.own_questions
        locked.keywords, locked.own_keywords = wanted.keywords, wanted.own_keywords
        locked.enabled = enabled
        locked.content_hash, locked.token_count = hash_content(locked.text), model.count_tokens(locked.text)
        locked.save()
        replace_postings([(locked, prepared.postings)])
        replace_vectors([(locked, prepared)], model.model_id)


def _changed(chunk: Chunk, text: str, questions: Sequence[str] | None, keywords: Sequence[str] | None) -> Chunk:
    """The chunk as it is to be; nothing is written.

    Raises:
        Rejected: it cannot be so.
    """
    wanted = copy.copy(chunk)
    wanted.text = text
    if questions is not None and (asked := entries(questions)) != chunk.questions:
        wanted.questions, wanted.own_questions = asked, True
    if keywords is not None and (words := entries(keywords)) != chunk.keywords:
        wanted.keywords, wanted.own_keywords = words, bool(words)
    check_chunk(wanted)
    return wanted


def _is_indexed_anew(chunk: Chunk, wanted: Chunk) -> bool:
    names = ("text", "questions", "own_questions", "keywords", "own_keywords")
    return any(getattr(chunk, name) != getattr(wanted, name) for name in names)
