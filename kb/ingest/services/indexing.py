"""From a document to searchable chunks: parse, chunk, tokenise, embed, write."""

import logging
from collections.abc import Iterable, Sequence
from typing import cast

from django.conf import settings
from django.db import OperationalError
from django.utils.translation import gettext_noop

from kb.access.models import KnowledgeBase
from kb.base.errors import Superseded
from kb.base.files import FilesUnavailable, local_file
from kb.base.remarks import Remark, RemarkCode
from kb.base.telemetry import context
from kb.content.models import Chunk, Document
from kb.index.keywords import unread
from kb.index.preparing import Prepared, Source, prepare, replace_postings, replace_vectors
from kb.index.services.writing import extraction_of, source_of, tokenizers_of, unchanged, writing_chunks
from kb.ingest.chunkers.drafts import ChunkSettings, Strategy
from kb.ingest.chunkers.registry import split
from kb.ingest.parser.archives import is_archive_name
from kb.ingest.parser.parsed import ErrorCode, ParsedDocument, ParseError
from kb.ingest.parser.sandbox import Limits, parse_file
from kb.ingest.services.batches import expand_archive
from kb.ingest.services.jobs import DOCUMENTS, DocumentJob
from kb.ingest.services.rechunk import ChunksChanged, chunks_of, recut, to_index, write_recut
from kb.jobs.leases import LeaseLost, WorkerEnds, must_return
from kb.providers.loaded import embedder
from retrieval.errors import RetrievalError
from retrieval.messages import Message, message_of

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


def index_document(document_id: int) -> bool:
    """Makes a waiting document searchable, or marks it failed with a sentence for the curator.

    Returns:
        Whether the document was put back because this worker ends, for another one to take at once.
    """
    job = None if must_return() else DocumentJob.claim(document_id)
    if job is None:
        return must_return()
    with context.bound(document_id=document_id):
        try:
            with DOCUMENTS.renewing(job.lease):
                _run(job)
        except LeaseLost:
            logger.info("document %s was taken over or deleted while it was indexed", document_id)
        except WorkerEnds:
            job.give_back()
            logger.info("document %s was given back, since the worker ends", document_id)
            return True
    return False


def _run(job: DocumentJob) -> None:
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
        job.fail("model_unavailable", message_of(error))
    except (Superseded, OperationalError) as error:
        logger.warning("document %s goes back to the queue: %s", job.document.pk, error)
        job.release()
    except Exception:
        logger.exception("document %s could not be indexed", job.document.pk)
        job.fail("internal_error", INTERNAL_ERROR)


def _index_file(job: DocumentJob) -> None:
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


def _index_chunks(job: DocumentJob) -> None:
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
    return [
        {
            "code": str(remark.code),
            "params": {
                name: value.as_dict() if isinstance(value, Message) else value for name, value in remark.params.items()
            },
        }
        for remark in remarks
    ]


def _prepare(job: DocumentJob, sources: Sequence[Source]) -> list[Prepared]:
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
