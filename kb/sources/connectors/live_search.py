"""A live page or feed as a search: what it says at this moment, ranked against the query."""

import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase
from kb.base.net.client import WebClient
from kb.base.net.errors import MESSAGES as FETCH_MESSAGES
from kb.base.net.errors import FetchCode, FetchError
from kb.ingest.chunkers.drafts import ChunkSettings
from kb.ingest.chunkers.recursive import split_text
from kb.ingest.parser.parsed import MESSAGES as PARSE_MESSAGES
from kb.ingest.parser.parsed import ParseError
from kb.sources.connectors.live import LiveEntry, live_entries
from kb.sources.models import WebSource
from retrieval.bm25 import OkapiIndex
from retrieval.errors import ChannelUnavailable
from retrieval.fusion import WeightedRanking, reciprocal_rank_fusion
from retrieval.messages import Message
from retrieval.postings import count_postings, hash_terms
from retrieval.protocols import TextVectors, Tokenizer
from retrieval.searchable import searchable_text
from retrieval.trace import DegradationCode
from retrieval.types import Analysis, ExternalHit

READ_SECONDS: Final = 15.0
"""How long a source is read although its search has gone on without it: what it says then serves the next."""
MOST_PASSAGES: Final = 300
RRF_K: Final = 60
KEPT_SEARCHES: Final = 100

CODES: Final = {
    FetchCode.TIMEOUT: DegradationCode.EXTERNAL_TIMEOUT,
    FetchCode.TOO_MANY_REQUESTS: DegradationCode.EXTERNAL_QUOTA,
    FetchCode.FORBIDDEN: DegradationCode.EXTERNAL_REFUSED,
    FetchCode.ROBOTS: DegradationCode.EXTERNAL_REFUSED,
    FetchCode.FORBIDDEN_ADDRESS: DegradationCode.EXTERNAL_NOT_CONFIGURED,
    FetchCode.BAD_PORT: DegradationCode.EXTERNAL_NOT_CONFIGURED,
    FetchCode.BAD_URL: DegradationCode.EXTERNAL_NOT_CONFIGURED,
    FetchCode.NOT_A_FEED: DegradationCode.EXTERNAL_NOT_CONFIGURED,
    FetchCode.GONE: DegradationCode.EXTERNAL_NOT_CONFIGURED,
}

_reading: dict[tuple[str, str], threading.Lock] = {}
_reading_lock = threading.Lock()


class LiveSearch:
    """Passages of one source by BM25 over these alone, and by cosine too where the model of the vectors runs here.

    Args:
        source: a page or a feed.
        kb: whose passages are cut alike, so that what is a document too is known for the same.
        client: reads the source.
        tokenizer: of the knowledge base.
        vectors: None: keywords alone rank.
        language: of the sentences that say why it could not be read.
    """

    def __init__(
        self,
        source: WebSource,
        kb: KnowledgeBase,
        client: WebClient,
        tokenizer: Tokenizer,
        *,
        vectors: TextVectors | None = None,
        language: str = "en",
    ) -> None:
        self.kind = str(source.kind)
        self.name = source.name
        self._source = source
        self._cut = _settings(kb)
        self._kb_id = kb.pk
        self._client = client
        self._tokenizer: Any = tokenizer  # the cache wants to know that it is hashable
        self._vectors = vectors
        self._language = language

    def search(self, analysis: Analysis, k: int, deadline: float) -> Sequence[ExternalHit]:
        passages, index = _indexed(self._read(deadline), self._tokenizer, self._cut)
        if not passages:
            return ()
        found, scores = index.search(hash_terms(analysis.search_tokens(self._kb_id)), len(passages))
        rankings = [WeightedRanking(found, 1.0)]
        if self._vectors is not None:
            rankings.append(WeightedRanking(self._by_cosine(analysis, passages, deadline), 1.0))
        rows, fused = reciprocal_rank_fusion(rankings, RRF_K) if len(rankings) > 1 else (found, scores)
        return [
            ExternalHit(entry.url, entry.title, text, id=entry.url, score=score, published=_stated(entry))
            for row, score in zip(rows[:k].tolist(), fused[:k].tolist(), strict=True)
            for entry, text in [passages[row]]
        ]

    def _by_cosine(
        self, analysis: Analysis, passages: Sequence[tuple[LiveEntry, str]], deadline: float
    ) -> NDArray[np.int64]:
        """Rows, best first; none where the vectors cannot be had, since keywords alone rank then."""
        if self._vectors is None:
            return np.empty(0, dtype=np.int64)
        try:
            texts = [searchable_text(entry.title, (), text) for entry, text in passages]
            cosines = self._vectors.similarities(analysis.text, texts, deadline)
        except ChannelUnavailable:
            return np.empty(0, dtype=np.int64)
        order = np.argsort(-np.nan_to_num(cosines, nan=-1.0), kind="stable")
        return order.astype(np.int64)

    def _read(self, deadline: float) -> tuple[LiveEntry, ...]:
        """Its entries; of several searches at once only one asks."""
        lock = _lock_of(self._source)
        if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._fault(FetchError(FetchCode.TIMEOUT, host=self.name, seconds=max(1, round(READ_SECONDS))))
        try:
            seconds = max(deadline - time.monotonic(), READ_SECONDS)
            return live_entries(self._source, self._client, seconds=seconds)
        except (FetchError, ParseError) as error:
            raise self._fault(error) from error
        finally:
            lock.release()

    def _fault(self, error: FetchError | ParseError) -> ChannelUnavailable:
        templates = FETCH_MESSAGES if isinstance(error, FetchError) else PARSE_MESSAGES
        reason = Message(templates[error.code], **error.params)  # type: ignore[index]
        told = Message(
            gettext_noop("The live source “{source}” was not read: {reason}"), source=self.name, reason=reason
        )
        code = CODES.get(error.code) if isinstance(error, FetchError) else None
        return ChannelUnavailable(code or DegradationCode.EXTERNAL_UNAVAILABLE, told)


def error_sentence(error: FetchError | ParseError) -> str:
    """Why an address was not read, in the language in force."""
    template = FETCH_MESSAGES[error.code] if isinstance(error, FetchError) else PARSE_MESSAGES[error.code]
    return _(template).format(**error.params)


def _lock_of(source: WebSource) -> threading.Lock:
    with _reading_lock:
        return _reading.setdefault((source.kind, source.url), threading.Lock())


def _settings(kb: KnowledgeBase) -> tuple[int, int]:
    """Size and overlap in characters, however the knowledge base counts: a token of Chinese is about one."""
    return kb.chunk_size, kb.chunk_overlap


@lru_cache(maxsize=KEPT_SEARCHES)
def _indexed(
    entries: tuple[LiveEntry, ...], tokenizer: Any, cut: tuple[int, int]
) -> tuple[tuple[tuple[LiveEntry, str], ...], OkapiIndex]:
    """The passages, and an index of them by their places; made once for what a source says."""
    size, overlap = cut
    settings = ChunkSettings(size=size, overlap=overlap)
    passages = tuple((entry, text) for entry in entries for text in split_text(entry.text, settings))[:MOST_PASSAGES]
    rows = []
    for place, (entry, text) in enumerate(passages):
        postings = count_postings(tokenizer(searchable_text(entry.title, (), text)))
        rows.append((place, postings.terms_bytes, postings.frequencies_bytes, postings.length))
    return passages, OkapiIndex.build(rows)


def _stated(entry: LiveEntry) -> str:
    return entry.published.isoformat() if entry.published else ""
