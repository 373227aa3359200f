"""The channels: thin, with the store that answers them injected."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.bm25 import OkapiIndex
from retrieval.errors import ChannelUnavailable, ModelUnavailable
from retrieval.postings import hash_terms
from retrieval.protocols import Embedder, VectorStore
from retrieval.trace import Degradation, DegradationCode
from retrieval.types import Analysis, Ranking


class VectorChannel:
    """Cosine similarity of the query's vector and the chunks' vectors of one model."""

    name = "vector"
    in_memory = False

    def __init__(self, kb_id: int, embedder: Embedder, store: VectorStore, notes: Sequence[Degradation] = ()) -> None:
        self.kb_id = kb_id
        self._embedder = embedder
        self._store = store
        self._notes = tuple(notes)

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:  # noqa: ARG002 - models have timeouts of their own
        vector = self._embed(analysis.text)
        chunk_ids, scores = self._store.search(self.kb_id, self._embedder.model_id, vector, k)
        detail = {"model": self._embedder.model_id}
        return Ranking(self.name, self.kb_id, chunk_ids, scores, detail, self._notes)

    def _embed(self, text: str) -> NDArray[np.float32]:
        try:
            vector = self._embedder.embed_query(text)
        except ModelUnavailable as error:
            raise ChannelUnavailable(DegradationCode.MODEL_UNAVAILABLE, str(error)) from error
        if vector.shape != (self._embedder.dimension,) or not np.isfinite(vector).all():
            model = self._embedder.model_id
            raise ChannelUnavailable(
                DegradationCode.EMBEDDER_FAILED,
                f"model {model!r} returned an unusable query vector: check the model or its endpoint",
            )
        return vector


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    """An index, and what the trace should tell of where it came from."""

    index: OkapiIndex
    detail: Mapping[str, Any]


class BM25Channel:
    """BM25Okapi over the knowledge base's postings.

    Args:
        kb_id: the knowledge base.
        wait_for_index: given a deadline of `time.monotonic`; raises ChannelUnavailable if the index is not there by then.
        detail: what else the trace should tell.
    """

    name = "bm25"
    in_memory = True

    def __init__(
        self, kb_id: int, wait_for_index: Callable[[float], LoadedIndex], detail: Mapping[str, Any] | None = None
    ) -> None:
        self.kb_id = kb_id
        self._wait_for_index = wait_for_index
        self._detail = detail or {}

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        loaded = self._wait_for_index(deadline)
        chunk_ids, scores = loaded.index.search(hash_terms(analysis.tokens(self.kb_id)), k)
        return Ranking(
            self.name, self.kb_id, chunk_ids, scores, {**self._detail, **loaded.detail}, lexicon=loaded.index
        )


class UnavailableChannel:
    """Stands where a channel cannot be had, so that the search says why."""

    in_memory = True

    def __init__(self, name: str, kb_id: int, code: DegradationCode, detail: str) -> None:
        self.name = name
        self.kb_id = kb_id
        self._error = (code, detail)

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:  # noqa: ARG002 - the protocol's signature
        raise ChannelUnavailable(*self._error)
