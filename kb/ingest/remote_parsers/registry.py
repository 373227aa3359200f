"""Parsers elsewhere that this installation has an address for; each rests for a while after it has failed repeatedly."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from django.conf import settings

from kb.access.models import KnowledgeBase
from kb.ingest.parser.sandbox import DEFAULT_LIMITS
from kb.ingest.remote_parsers.docling.client import DoclingServe
from kb.ingest.remote_parsers.protocol import NOT_SET_UP, RemoteFailure, RemoteParser
from retrieval.execution import CircuitBreaker


def _docling() -> RemoteParser | None:
    if not settings.DOCLING_SERVE_URL:
        return None
    return DoclingServe(
        settings.DOCLING_SERVE_URL,
        settings.DOCLING_SERVE_API_KEY,
        settings.DOCLING_SERVE_SECONDS,
        max_bytes=DEFAULT_LIMITS.output_bytes,
    )


PARSERS: Final[Mapping[str, Callable[[], RemoteParser | None]]] = {KnowledgeBase.Parser.DOCLING: _docling}


def remote_parser(name: str) -> RemoteParser:
    """Raises RemoteFailure where the installation has no address for it, or knows none of that name."""
    parser = PARSERS[name]() if name in PARSERS else None
    if parser is None:
        raise RemoteFailure(NOT_SET_UP)
    return parser


def offered_parsers() -> list[str]:
    """The values of `KnowledgeBase.parser` that can be chosen here."""
    return [KnowledgeBase.Parser.BUILT_IN, *(name for name, make in PARSERS.items() if make())]


@lru_cache(maxsize=100)
def breaker(name: str, address: str) -> CircuitBreaker:  # noqa: ARG001 - another address is another server
    return CircuitBreaker()
