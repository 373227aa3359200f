from dataclasses import dataclass

from retrieval.config import RetrievalConfig
from retrieval.protocols import Channel, QueryVectors, Tokenizer
from retrieval.trace import Degradation


@dataclass(frozen=True, slots=True)
class Fallback:
    """A channel that is searched only where others could not do their part.

    Attributes:
        failed: names of channels; one of them has failed.
        short: names of channels; together they found fewer chunks than `below`.
    """

    channel: Channel
    failed: frozenset[str] = frozenset()
    short: frozenset[str] = frozenset()
    below: int = 0


@dataclass(frozen=True, slots=True)
class Scope:
    """One knowledge base of a search: its channels, and its own weights.

    Attributes:
        space: id of the embedding model; cosines of different spaces are never compared.
        tokenizer: None when there is none to be had.
        fallbacks: searched after the channels, in this order, where they are needed.
        text_vectors: gives texts from elsewhere cosines in that space; None where that would take too long.
        notes: what of the scope is left out of this search in any case.
    """

    kb_id: int
    space: str
    tokenizer: Tokenizer | None
    channels: tuple[Channel, ...]
    config: RetrievalConfig
    fallbacks: tuple[Fallback, ...] = ()
    text_vectors: QueryVectors | None = None
    notes: tuple[Degradation, ...] = ()
