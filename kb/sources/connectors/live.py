"""A live page or feed as a search: what it says at this moment, ranked against a query that waits for it."""

import hashlib
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import numpy as np
from django.core.cache.backends.base import BaseCache
from django.core.cache.backends.locmem import LocMemCache
from django.utils.translation import gettext_noop
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase
from kb.base.net.addresses import MESSAGES as FETCH_MESSAGES, FetchError
from kb.base.net.client import Deadline, WebClient
from kb.ingest.chunkers.strategies import ChunkSettings, split_text
from kb.ingest.parser.parsed import MESSAGES as PARSE_MESSAGES, ParseError
from kb.ingest.parser.sandbox import Limits
from kb.sources.connectors.listing import Robots, read_feed, scope_of
from kb.sources.connectors.markup import READABLE, Candidate, content_of_page
from kb.sources.models import Source
from retrieval.bm25 import OkapiIndex
from retrieval.errors import ChannelUnavailable, DegradationCode, Message
from retrieval.fusion import reciprocal_rank_fusion
from retrieval.postings import count_postings, hash_terms
from retrieval.protocols import QueryVectors, Tokenizer
from retrieval.types import Analysis, ExternalHit, searchable_text

MAX_ENTRIES: Final = 100
# Entries of a feed, of which those count that the source wants.
LOOKED_AT: Final = 500
# What is kept in memory of what a source says.
ENTRY_CHARACTERS, PAGE_CHARACTERS, TITLE_CHARACTERS = 20_000, 200_000, 500
LIVE_KINDS: Final = frozenset({Source.Kind.PAGE, Source.Kind.FEED})


CACHE: Final = LocMemCache("live sources", {"TIMEOUT": 300.0, "OPTIONS": {"MAX_ENTRIES": 200}})


def live_entries(
    source: Source, client: WebClient, *, seconds: float, limits: Limits | None = None, cache: BaseCache = CACHE
) -> tuple[Candidate, ...]:
    """The present entries of a page or a feed, within `seconds`; of other kinds none, which are too slow for who waits.

    What is in the cache is not asked for again. Raises FetchError where the address cannot be read in time, and
    ParseError where no text can be read from it.
    """
    if source.kind not in LIVE_KINDS:
        return ()
    what = (source.kind, source.url, source.include, source.exclude, source.max_pages)
    key = hashlib.sha256(repr(what).encode()).hexdigest()
    entries: tuple[Candidate, ...] | None = cache.get(key)
    if entries is None:
        deadline = Deadline(seconds)
        is_page = source.kind == Source.Kind.PAGE
        entries = _page(source, client, deadline, limits) if is_page else _feed(source, client, deadline)
        cache.set(key, entries)
    return entries


def _feed(source: Source, client: WebClient, deadline: Deadline) -> tuple[Candidate, ...]:
    scope = scope_of(source)
    found = read_feed(client.fetch(source.url, deadline=deadline), deadline=deadline, texts=LOOKED_AT)
    accepted = (entry for entry in found[:LOOKED_AT] if scope.accepts(entry.url))
    entries = (
        Candidate(
            entry.url, entry.title, text=(entry.text or entry.title)[:ENTRY_CHARACTERS], published=entry.published
        )
        for entry in islice(accepted, min(source.max_pages, MAX_ENTRIES))
    )
    return tuple(entry for entry in entries if entry.text)


def _page(source: Source, client: WebClient, deadline: Deadline, limits: Limits | None) -> tuple[Candidate, ...]:
    before_hop = Robots(client, deadline).check
    fetched = client.fetch(source.url, types=READABLE, deadline=deadline, before_hop=before_hop)
    content = content_of_page(fetched, limits or Limits(seconds=deadline.remaining(source.url)))
    title = (content.title or source.name)[:TITLE_CHARACTERS]
    return (Candidate(fetched.url, title, text=content.text[:PAGE_CHARACTERS], published=content.published),)


# How long a source is read although its search has gone on without it: what it says then serves the next.
READ_SECONDS: Final = 15.0
MOST_PASSAGES: Final = 300
RRF_K: Final = 60

CODES: Final = {
    "timeout": DegradationCode.EXTERNAL_TIMEOUT,
    "too_many_requests": DegradationCode.EXTERNAL_QUOTA,
    "forbidden": DegradationCode.EXTERNAL_REFUSED,
    "robots": DegradationCode.EXTERNAL_REFUSED,
    "forbidden_address": DegradationCode.EXTERNAL_NOT_CONFIGURED,
    "bad_port": DegradationCode.EXTERNAL_NOT_CONFIGURED,
    "bad_url": DegradationCode.EXTERNAL_NOT_CONFIGURED,
    "not_a_feed": DegradationCode.EXTERNAL_NOT_CONFIGURED,
    "gone": DegradationCode.EXTERNAL_NOT_CONFIGURED,
}

_reading: dict[tuple[str, str], threading.Lock] = {}
_reading_lock = threading.Lock()


class LiveSearch:
    """Passages, cut as the knowledge base's, ranked by BM25 over these alone, and by cosine if the model runs here."""

    def __init__(
        self,
        source: Source,
        kb: KnowledgeBase,
        client: WebClient,
        tokenizer: Tokenizer,
        *,
        vectors: QueryVectors | None = None,
    ) -> None:
        self.kind = str(source.kind)
        self.name = source.name
        self._source = source
        self._cut = (kb.chunk_size, kb.chunk_overlap)  # in characters: a token of Chinese is about one
        self._kb_id = kb.pk
        self._client = client
        self._tokenizer: Any = tokenizer  # the cache wants to know that it is hashable
        self._vectors = vectors

    def search(self, analysis: Analysis, k: int, deadline: float) -> Sequence[ExternalHit]:
        passages, index = _indexed(self._read(deadline), self._tokenizer, self._cut)
        if not passages:
            return ()
        found, scores = index.search(hash_terms(analysis.search_tokens(self._kb_id)), len(passages))
        rankings = [(found, 1.0)]
        if self._vectors is not None:
            rankings.append((_by_cosine(self._vectors, analysis, passages, deadline), 1.0))
        rows, fused = reciprocal_rank_fusion(rankings, RRF_K) if len(rankings) > 1 else (found, scores)
        return [
            ExternalHit(
                entry.url,
                entry.title,
                text,
                id=entry.url,
                score=score,
                published=entry.published.isoformat() if entry.published else "",
            )
            for row, score in zip(rows[:k].tolist(), fused[:k].tolist(), strict=True)
            for entry, text in [passages[row]]
        ]

    def _read(self, deadline: float) -> tuple[Candidate, ...]:
        """Its entries; of several searches at once only one asks."""
        with _reading_lock:
            lock = _reading.setdefault((self._source.kind, self._source.url), threading.Lock())
        if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise self._fault(FetchError("timeout", host=self.name, seconds=max(1, round(READ_SECONDS))))
        try:
            return live_entries(self._source, self._client, seconds=max(deadline - time.monotonic(), READ_SECONDS))
        except (FetchError, ParseError) as error:
            raise self._fault(error) from error
        finally:
            lock.release()

    def _fault(self, error: FetchError | ParseError) -> ChannelUnavailable:
        templates = FETCH_MESSAGES if isinstance(error, FetchError) else PARSE_MESSAGES
        reason = Message(templates[error.code], **error.params)
        message = Message(
            gettext_noop("The live source “{source}” was not read: {reason}"), source=self.name, reason=reason
        )
        code = CODES.get(error.code) if isinstance(error, FetchError) else None
        return ChannelUnavailable(code or DegradationCode.EXTERNAL_UNAVAILABLE, message)


def _by_cosine(
    vectors: QueryVectors, analysis: Analysis, passages: Sequence[tuple[Candidate, str]], deadline: float
) -> NDArray[np.int64]:
    """Rows, best first; none where the vectors are unavailable, since keywords alone rank then."""
    texts = [searchable_text(entry.title, (), text) for entry, text in passages]
    try:
        cosines = vectors.similarities(analysis.text, texts, deadline)
    except ChannelUnavailable:
        return np.empty(0, dtype=np.int64)
    return np.argsort(-np.nan_to_num(cosines, nan=-1.0), kind="stable").astype(np.int64)


@lru_cache(maxsize=100)
def _indexed(
    entries: tuple[Candidate, ...], tokenizer: Any, cut: tuple[int, int]
) -> tuple[tuple[tuple[Candidate, str], ...], OkapiIndex]:
    """The passages, and an index of them by their places; made once for what a source says."""
    settings = ChunkSettings(size=cut[0], overlap=cut[1])
    passages = tuple((entry, text) for entry in entries for text in split_text(entry.text, settings))[:MOST_PASSAGES]
    rows = []
    for place, (entry, text) in enumerate(passages):
        postings = count_postings(tokenizer(searchable_text(entry.title, (), text)))
        rows.append((place, postings.terms_bytes, postings.frequencies_bytes, postings.length))
    return passages, OkapiIndex.build(rows)
