"""Where a chunk stands in each channel of a search, also far below what the channel was read for."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kb.index.exact_ranks import exact_place
from kb.index.models.index import ChunkEmbedding
from kb.quality.why_not.services.types import Place, PlaceState
from kb.search.services.search import SearchOutcome
from retrieval.bm25 import OkapiIndex
from retrieval.errors import ChannelUnavailable
from retrieval.external import ExternalChannel
from retrieval.protocols import Channel
from retrieval.recall import RANKS_A_CANDIDATE
from retrieval.scope import Scope
from retrieval.types import Analysis, Ranking

SECONDS = 30.0
"""How long a channel may take to answer once more; what it needs is in memory, or cheap, after the search."""

EVERY_CHUNK = 2**31 - 1
TEXT_MATCHES = 2_000
"""So many chunks of full text and n-grams are ranked: each costs a row."""

VECTOR_KINDS: Mapping[str, str] = {
    "vector": ChunkEmbedding.Kind.CONTENT,
    "question": ChunkEmbedding.Kind.QUESTION,
}


@dataclass(frozen=True, slots=True)
class Places:
    """By channel and query; `index` is the keyword index that was searched, if one was."""

    places: tuple[Place, ...]
    index: OkapiIndex | None = None


def find_places(outcome: SearchOutcome, scope: Scope, chunk_id: int, only: NDArray[np.int64] | None) -> Places:
    """Asks the channels of a search that was run for one chunk.

    Args:
        outcome: of the search.
        scope: the knowledge base of the chunk, as it was searched.
        chunk_id: one that the search may find.
        only: ids of the chunks that pass the filters, ascending; None: all.
    """
    asked = _Asked(outcome, scope, chunk_id, only)
    channels = (*scope.channels, *(stand_in.channel for stand_in in scope.stand_ins))
    channels = tuple(each for each in channels if not isinstance(each, ExternalChannel))  # these find no chunks
    places = [asked.place(channel, query) for channel in channels for query in asked.queries_of(channel)]
    return Places(tuple(places), asked.index)


class _Asked:
    """The channels of one knowledge base, after they were searched."""

    def __init__(self, outcome: SearchOutcome, scope: Scope, chunk_id: int, only: NDArray[np.int64] | None) -> None:
        self._scope = scope
        self._chunk_id = chunk_id
        self._only = only
        self._analysis = outcome.result.analysis
        self._vectors = {vectors.model_id: vectors for vectors in outcome.wiring.vectors}
        self._spans = {
            (span.stage, span.detail.get("query", 0)): span.detail
            for span in outcome.result.spans
            if span.detail.get("kb_id") == scope.kb_id
        }
        self._dropped = next((each for each in outcome.result.dropped if each.chunk_id == chunk_id), None)
        # A double is told of by the candidate that stands for it.
        self._provenance = [
            found
            for candidate in outcome.result.candidates
            for found in candidate.provenance
            if found.chunk_id == chunk_id
        ]
        self.index: OkapiIndex | None = None

    def queries_of(self, channel: Channel) -> Iterable[int]:
        """The queries that a channel was searched for; one that was not searched at all is told of once."""
        asked = [query for query in range(len(self._analysis.queries)) if (channel.name, query) in self._spans]
        return asked or (0,)

    def place(self, channel: Channel, number: int) -> Place:
        config = self._scope.config
        depth = config.vector_candidates if channel.name in VECTOR_KINDS else config.bm25_candidates
        place = Place(channel.name, number, PlaceState.NOT_ASKED, depth=depth)
        detail = self._spans.get((channel.name, number))
        if detail is None:
            return place
        if "error" in detail:
            return replace(place, state=PlaceState.FAILED, error=str(detail["error"]))
        query = self._analysis.queries[number]
        try:
            if channel.name in VECTOR_KINDS:
                return self._among_vectors(query, place, detail.get("keyword_share", 0.0))
            return self._among_texts(channel, query, place)
        except ChannelUnavailable as error:
            return replace(place, state=PlaceState.FAILED, error=error.code.value)

    def _among_vectors(self, query: Analysis, place: Place, keyword_share: float) -> Place:
        vector, _source = self._vectors[self._scope.space].embed(query.text, time.monotonic() + SECONDS)
        exact = exact_place(
            self._scope.kb_id,
            self._scope.space,
            vector,
            self._chunk_id,
            kind=VECTOR_KINDS[place.channel],
            keyword_share=keyword_share,
            only=self._only,
        )
        return _judged(
            replace(
                place,
                rank=exact.rank,
                channel_rank=self._told_rank(place, exact.rank),
                score=exact.similarity,
                total=exact.total,
                is_indexed=exact.is_indexed,
            )
        )

    def _told_rank(self, place: Place, exact: int | None) -> int | None:
        """The rank that the channel gave the chunk in this search; None where it did not return it.

        A candidate's ranks are exact as far as the channel's own candidates go; what stands behind them has moved up by
        as many as were left out.
        """
        if self._dropped is not None and self._dropped.stage == "channels":
            only_query = len(self._analysis.queries) == 1
            return self._dropped.ranks.get(place.channel) if only_query else None
        told = next(
            (found.rank for found in self._provenance if (found.channel, found.query) == (place.channel, place.query)),
            None,
        )
        return told if told is None or told <= place.depth else max(told, exact or told)

    def _among_texts(self, channel: Channel, query: Analysis, place: Place) -> Place:
        most = EVERY_CHUNK if channel.name == "bm25" else TEXT_MATCHES
        found = channel.search(query, most, time.monotonic() + SECONDS)
        if isinstance(found.lexicon, OkapiIndex):
            self.index = found.lexicon
        rank = _rank_in(found, self._chunk_id)
        is_read = rank is not None and rank <= RANKS_A_CANDIDATE * place.depth
        score = None if rank is None else float(found.scores[rank - 1])
        total = found.chunk_ids.size
        return _judged(replace(place, rank=rank, channel_rank=rank if is_read else None, score=score, total=total))


def _rank_in(ranking: Ranking, chunk_id: int) -> int | None:
    places = np.flatnonzero(ranking.chunk_ids == chunk_id)
    return int(places[0]) + 1 if places.size else None


def _judged(place: Place) -> Place:
    if place.channel_rank is not None and place.channel_rank <= place.depth:
        state = PlaceState.CANDIDATE
    elif place.rank is None:
        state = PlaceState.ABSENT
    else:
        state = PlaceState.MISSED if place.rank <= place.depth else PlaceState.DEEPER
    return replace(place, state=state)
