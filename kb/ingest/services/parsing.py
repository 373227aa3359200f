"""Reads a document's file: by the parser that its knowledge base has chosen, or by the built-in reader."""

import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from django.conf import settings

from kb.access.models import KnowledgeBase
from kb.base.findings import Remark, RemarkCode
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Reading, WordPart
from kb.ingest.parser.sandbox import Limits, decode_document, parse_file, run_job
from kb.ingest.remote_parsers import protocol
from kb.ingest.remote_parsers.protocol import RemoteFailure, RemoteParser
from kb.ingest.remote_parsers.registry import breaker, remote_parser
from retrieval.errors import Message

logger = logging.getLogger(__name__)


def limits() -> Limits:
    return Limits(memory_bytes=settings.PARSE_MEMORY_BYTES, seconds=settings.PARSE_SECONDS)


def reading_of(kb: KnowledgeBase) -> Reading:
    """What a knowledge base has read of its files, where that is its choice."""
    return Reading(word_parts=tuple(part for part in WordPart if part in kb.word_parts))


def read_file(
    path: Path, filename: str, kb: KnowledgeBase, *, on_wait: Callable[[], None]
) -> tuple[ParsedDocument, str]:
    """Reads a file by the parser of its knowledge base; raises ParseError, and what `on_wait` raises.

    Returns the parser by whose choice the document is as it is, too. Where a parser elsewhere fails, the built-in reader,
    which is blank, takes its place, with a remark that says why.
    """
    if kb.parser:
        label = str(KnowledgeBase.Parser(kb.parser).label)
        try:
            parser = remote_parser(kb.parser)
            kind = run_job("kind", path, limits=limits(), filename=filename)
            if kind in parser.formats:
                return _by(parser, kb.parser, path, filename, str(kind), on_wait), kb.parser
        except RemoteFailure as failure:
            logger.warning("%s did not read a document: %s", label, failure.reason)
            remark = Remark(RemarkCode.PARSER_DID_NOT_READ, {"parser": label, "reason": failure.reason})
            document = parse_file(path, filename, limits=limits(), reading=reading_of(kb))
            return replace(document, remarks=(remark, *document.remarks)), KnowledgeBase.Parser.BUILT_IN
    return parse_file(path, filename, limits=limits(), reading=reading_of(kb)), kb.parser


def _by(
    parser: RemoteParser, name: str, path: Path, filename: str, kind: str, on_wait: Callable[[], None]
) -> ParsedDocument:
    guard = breaker(name, parser.address)
    if not guard.allows():
        raise RemoteFailure(protocol.RESTING)
    with tempfile.TemporaryDirectory(prefix="parsed-", dir=settings.FILE_UPLOAD_TEMP_DIR) as folder:
        answer = Path(folder) / "answer"
        try:
            parser.convert(path, kind, answer, on_wait=on_wait)
            document = _decoded(parser, answer, filename, kind)
        except RemoteFailure as failure:
            if failure.is_outage:
                guard.failed()
            else:
                guard.succeeded()
            raise
        except BaseException:
            guard.undecided()
            raise
    guard.succeeded()
    return document


def _decoded(parser: RemoteParser, answer: Path, filename: str, kind: str) -> ParsedDocument:
    try:
        return decode_document(run_job(parser.job, answer, limits=limits(), filename=filename, kind=kind))
    except ParseError as error:
        reason: Message = protocol.EMPTY if error.code == "empty_file" else protocol.MALFORMED
        raise RemoteFailure(reason, is_outage=reason is protocol.MALFORMED) from error
