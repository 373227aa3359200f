"""Searches elsewhere as channels of a knowledge base, and their results among its chunks.

A result has no chunk, so it is known by a negative id, made of what it is: the same result has the same one in every search.
Where a chunk has the same content, that chunk stands for it, and keeps the provenance of both.
"""

import dataclasses
import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import ChannelUnavailable, Degradation, DegradationCode, _, storable
from retrieval.execution import CircuitBreaker
from retrieval.postings import hash_terms
from retrieval.protocols import ExternalProvider, QueryVectors, Scope
from retrieval.types import Analysis, ExternalHit, Lexicon, Origin, Passage, Ranking

logger = logging.getLogger(__name__)

SOURCE_TYPE: Final = "web"
# A source that had less time than this is not judged by it.
PATIENCE_S: Final = 1.0
# Characters of a result, whatever a service answers.
MOST_TEXT, MOST_TITLE, MOST_ADDRESS = 20_000, 500, 2_000
_ADDRESS: Final = re.compile(r"(https?|gs|s3|ftp)://[^\s<>\"]+\Z", re.IGNORECASE)
# Such as a reader of JavaScript, whose numbers have 53 bits, can tell apart.
_ID_BITS: Final = 52
_FAULTS: Final = frozenset({DegradationCode.EXTERNAL_TIMEOUT, DegradationCode.EXTERNAL_UNAVAILABLE})


@dataclass(eq=False)
class ExternalChannel:
    """Asks one source. It is asked once a search, for the query itself: what is sent out is no more than needed."""

    in_memory = False

    stage: str  # "web" or "external"; with the source's name it makes the channel's
    kb_id: int
    provider: ExternalProvider
    weight: float  # in the fusion
    most: int  # results at most
    timeout_ms: int | None = None  # after which the search goes on without it; None: the latency budget
    executor: Executor | None = None  # whose threads may wait for it, apart from those that wait for the database
    # Shared by all searches that ask this source; by default it is asked each time.
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)

    def __post_init__(self) -> None:
        self.source = self.provider.name
        self.name = f"{self.stage}:{self.source}"

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        hits = self._asked(analysis, min(k, self.most), deadline)[:k]
        passages = {
            passage.chunk_id: passage
            for rank, hit in enumerate(hits, start=1)
            if (passage := self._passage(hit, rank)) is not None
        }
        return Ranking(
            self.name,
            self.kb_id,
            np.array(list(passages), dtype=np.int64),
            _scores(list(passages.values())),
            detail={"channel": self.name, "source": self.source, "provider": self.provider.kind},
            passages=passages,
            weight=self.weight,
        )

    def lateness(self, _analysis: Analysis) -> Degradation:
        """Why a search did without it."""
        return Degradation(
            self.stage,
            DegradationCode.EXTERNAL_TIMEOUT,
            _("the source {source!r} did not answer in time: allow more time, or switch it off", source=self.source),
        )

    def fullness(self) -> Degradation:
        """Why a search did not ask at all."""
        return Degradation(
            self.stage,
            DegradationCode.EXTERNAL_BUSY,
            _("too many searches wait for {source!r} or other sources: search again in a moment", source=self.source),
        )

    def _asked(self, analysis: Analysis, k: int, deadline: float) -> Sequence[ExternalHit]:
        if not self.breaker.allows():
            raise ChannelUnavailable(
                DegradationCode.EXTERNAL_UNAVAILABLE,
                _(
                    "the source {source!r} failed repeatedly and is not asked for a while: see its test page",
                    source=self.source,
                ),
            )
        has_patience = deadline - time.monotonic() >= PATIENCE_S
        try:
            hits = self.provider.search(analysis, k, deadline)
        except BaseException as error:
            code = error.code if isinstance(error, ChannelUnavailable) else None
            if code in _FAULTS and (has_patience or code != DegradationCode.EXTERNAL_TIMEOUT):
                self.breaker.failed()
            else:
                self.breaker.undecided()
            raise
        self.breaker.succeeded()
        return hits

    def _passage(self, hit: ExternalHit, rank: int) -> Passage | None:
        """None for a result without any text, which nobody could read or cite."""
        title = storable(hit.title).strip()[:MOST_TITLE]
        text = storable(hit.text).strip()[:MOST_TEXT] or title
        if not text:
            return None
        url = _address(hit.url)
        origin = Origin(
            kind=self.provider.kind,
            source=self.source,
            id=storable(hit.id).strip()[:MOST_ADDRESS],
            url=url,
            published=storable(hit.published).strip()[:MOST_TITLE],
            rank=rank,
            score=None if hit.score is None or not np.isfinite(hit.score) else float(hit.score),
        )
        return Passage(
            external_id(self.kb_id, self.name, url, text),
            0,
            self.kb_id,
            title,
            url,
            None,
            text,
            metadata={"source_type": SOURCE_TYPE, "tags": [], "external": dataclasses.asdict(origin)},
            source_type=SOURCE_TYPE,
            origin=origin,
        )


def _scores(passages: Sequence[Passage]) -> NDArray[np.float64]:
    """The provider's own; of one that does not score every result, the reciprocal ranks, since only their order is known."""
    given = [passage.origin.score for passage in passages if passage.origin and passage.origin.score is not None]
    if len(given) < len(passages):
        given = [1 / rank for rank in range(1, len(passages) + 1)]
    return np.array(given, dtype=np.float64)


def external_id(kb_id: int, channel: str, url: str, text: str) -> int:
    """Negative, and the same for the same result of the same source."""
    named = "".join(f"{len(part)}:{part}" for part in (str(kb_id), channel, url, text))
    digest = hashlib.sha256(named.encode("utf-8", "surrogatepass")).digest()
    return -1 - (int.from_bytes(digest[:8], "big") >> (64 - _ID_BITS))


class SearchLexicon:
    """A knowledge base's statistics, under which texts that are none of its chunks are scored beside these.

    Looks the same chunks up once: two stages ask which of the query's terms the same candidates hold. `texts` are the
    terms of each text by its id, repeats kept.
    """

    def __init__(self, lexicon: Lexicon, texts: Mapping[int, Sequence[str]] = MappingProxyType({})) -> None:
        self.chunk_count = lexicon.chunk_count
        self.rarity = lexicon.rarity
        self.idf = lexicon.idf
        self.most = lexicon.most
        self.saturation_of = lexicon.saturation_of
        self._lexicon = lexicon
        self._lengths = {key: len(words) for key, words in texts.items()}
        self._counts = {key: Counter(hash_terms(words).tolist()) for key, words in texts.items()}
        self._known: dict[tuple[bytes, bytes], NDArray[np.float64]] = {}

    def contributions(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        return self.most(terms) * self.saturation(terms, chunk_ids)

    def saturation(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        place = terms.tobytes(), chunk_ids.tobytes()
        if place not in self._known:
            found = self._lexicon.saturation(terms, chunk_ids)
            rows, keys = self._texts_among(chunk_ids)
            if keys:
                lengths = np.array([self._lengths[key] for key in keys], dtype=np.float64)
                found[rows] = self.saturation_of(self._frequencies(terms, keys), lengths)
            self._known[place] = found
        return self._known[place]

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        found = self._lexicon.frequencies(terms, chunk_ids)
        rows, keys = self._texts_among(chunk_ids)
        if keys:
            found[rows] = self._frequencies(terms, keys)
        return found

    def _texts_among(self, chunk_ids: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        rows = [row for row, key in enumerate(chunk_ids.tolist()) if key in self._counts]
        return rows, chunk_ids[rows].tolist()

    def _frequencies(self, terms: NDArray[np.uint64], keys: Sequence[int]) -> NDArray[np.uint32]:
        wanted = terms.tolist()
        return np.array([[self._counts[key][term] for term in wanted] for key in keys], dtype=np.uint32)


def with_external_scores(
    rankings: Sequence[Ranking],
    passages: Mapping[int, Passage],
    analysis: Analysis,
    scopes: Sequence[Scope],
    deadline: float,
) -> list[Ranking]:
    """Rankings whose exact scores and term statistics know the passages that were brought along, as far as can be.

    Keywords are scored as those of chunks are, by the knowledge base's statistics. Cosines are made when they are asked
    for, where the scope can make them by the deadline (of `time.monotonic`); a passage without one is left out of that
    score.
    """
    by_kb: dict[int, list[Passage]] = {}
    for key in {key for ranking in rankings for key in ranking.chunk_ids.tolist() if key < 0}:
        by_kb.setdefault(passages[key].kb_id, []).append(passages[key])
    if not by_kb:
        return list(rankings)
    of = {scope.kb_id: scope for scope in scopes}
    return [
        _completed(ranking, of[ranking.kb_id], by_kb[ranking.kb_id], analysis, deadline)
        if ranking.kb_id in by_kb
        else ranking
        for ranking in rankings
    ]


def _completed(
    ranking: Ranking, scope: Scope, texts: Sequence[Passage], analysis: Analysis, deadline: float
) -> Ranking:
    if ranking.lexicon is not None and scope.tokenizer is not None:
        words = {each.chunk_id: scope.tokenizer(each.searchable) for each in texts}
        lexicon = SearchLexicon(ranking.lexicon, words)
        keywords = partial(_keyword_scores, lexicon, analysis, ranking.kb_id)
        return dataclasses.replace(ranking, lexicon=lexicon, score=_for_texts(ranking.score, keywords))
    vectors = scope.text_vectors if ranking.channel == "vector" else None
    cosines = None if vectors is None else _cosines(vectors, analysis, texts, deadline)
    return dataclasses.replace(ranking, score=_for_texts(ranking.score, cosines))


Score = Callable[[NDArray[np.int64]], NDArray[np.float64]]


def _for_texts(of_chunks: Score | None, of_texts: Score | None) -> Score | None:
    """Scores chunks by the one, and texts by the other, or not at all."""
    if of_chunks is None:
        return None

    def score(keys: NDArray[np.int64]) -> NDArray[np.float64]:
        found = np.full(keys.size, np.nan)
        is_text = keys < 0
        if (~is_text).any():
            found[~is_text] = of_chunks(keys[~is_text])
        if is_text.any() and of_texts is not None:
            found[is_text] = of_texts(keys[is_text])
        return found

    return score


def _keyword_scores(
    lexicon: SearchLexicon, analysis: Analysis, kb_id: int, keys: NDArray[np.int64]
) -> NDArray[np.float64]:
    queries = (hash_terms(query.search_tokens(kb_id)) for query in analysis.queries)
    best: NDArray[np.float64] = np.max([lexicon.contributions(terms, keys).sum(axis=1) for terms in queries], axis=0)
    return best


def _cosines(vectors: QueryVectors, analysis: Analysis, texts: Sequence[Passage], deadline: float) -> Score:
    """Scores texts by cosines, which are made once, when they are asked for."""

    @cache
    def made() -> dict[int, float]:
        try:
            found = vectors.similarities(analysis.text, [each.searchable for each in texts], deadline)
        except ChannelUnavailable as error:
            logger.info("results from elsewhere have no cosines: %s", error)
            return {}
        return dict(zip((each.chunk_id for each in texts), found.tolist(), strict=True))

    return lambda keys: np.array([made().get(key, np.nan) for key in keys.tolist()], dtype=np.float64)


def _address(url: str) -> str:
    """Blank for what is none: a link to `javascript:` would be a script of whoever answers, on every page that shows it."""
    found = storable(url).strip()
    return found if len(found) <= MOST_ADDRESS and _ADDRESS.match(found) else ""
