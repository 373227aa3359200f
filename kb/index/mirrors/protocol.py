"""What a server must offer to hold a copy of a knowledge base's vectors, and of its texts."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kb.base.models import installation_id
from retrieval.errors import RetrievalError

T = TypeVar("T")

Found = tuple[NDArray[np.int64], NDArray[np.float64]]

ORDINALS = 1 << 16
"""More vectors of one kind than any chunk has, so that a chunk's id and a vector's place in it make one number."""


class StoreError(RetrievalError):
    """A store's server cannot be reached, or refuses what it is asked."""


class StoreNotConfigured(StoreError):
    """A store that this installation has no address or no package for."""


@dataclass(frozen=True, slots=True)
class VectorCollection:
    """Vectors that are compared with each other: those of one knowledge base, model, kind and dimension."""

    kb_id: int
    model_id: str
    kind: str
    dimension: int

    @property
    def name(self) -> str:
        return f"{vectors_prefix(self.kb_id, self.model_id)}{self.kind}_{self.dimension}"


@dataclass(frozen=True, slots=True)
class TextCollection:
    """The texts of one knowledge base, cut into terms as suits their language."""

    kb_id: int
    language: str

    @property
    def name(self) -> str:
        return f"{kb_prefix(self.kb_id)}t_{self.language}"


@dataclass(frozen=True, slots=True)
class StoredVector:
    """A vector of a chunk; `ordinal` numbers a chunk's questions."""

    chunk_id: int
    ordinal: int
    vector: NDArray[np.float32]

    @property
    def key(self) -> int:
        return self.chunk_id * ORDINALS + self.ordinal


class Mirror(Protocol):
    """A server with a collection for each knowledge base, model and kind, so that no search can reach another's.

    Every method raises StoreError where the server cannot be reached or refuses.

    Attributes:
        store: as in `KnowledgeBase.Store`.
        has_keywords: whether it ranks texts by keywords.
        most: how many results one search may ask for.
    """

    store: str
    has_keywords: bool
    most: int

    def ping(self) -> str:
        """Returns what answers, and its version."""

    def collections(self, kb_id: int) -> set[str]:
        """Returns the names of those that the knowledge base has."""

    def counts(self, kb_id: int) -> dict[str, int]:
        """Returns how many vectors or texts each of its collections holds, by name."""

    def nearest(
        self, collection: VectorCollection, vector: NDArray[np.float32], limit: int
    ) -> NDArray[np.int64] | None:
        """Returns the chunks of the nearest vectors, best first; one of several vectors may come several times.

        None where there is no such collection.
        """

    def write_vectors(
        self, collection: VectorCollection, chunk_ids: Sequence[int], vectors: Sequence[StoredVector]
    ) -> None:
        """Makes the vectors those that the collection holds of the chunks."""

    def write_texts(self, collection: TextCollection, chunk_ids: Sequence[int], texts: Mapping[int, str]) -> None:
        """Makes the texts those that the collection holds of the chunks."""

    def search_texts(
        self, collection: TextCollection, text: str, limit: int, *, only: Sequence[int] | None = None
    ) -> Found | None:
        """Returns chunks that hold any term of the text and their scores, higher is better, best first.

        None where there is no such collection.
        """

    def delete_chunks(self, collection_name: str, chunk_ids: Sequence[int]) -> None:
        """Deletes all that a collection of any sort holds of the chunks."""

    def drop(self, kb_id: int) -> None:
        """Deletes all collections of the knowledge base."""


def kb_prefix(kb_id: int) -> str:
    """Of the names of all its collections; the installation's id keeps those of others apart that share the server."""
    return f"zhiku_{installation_id().replace('-', '')[:16]}_{kb_id}_"


def vectors_prefix(kb_id: int, model_id: str) -> str:
    """Of the names of the collections of a model's vectors."""
    return f"{kb_prefix(kb_id)}v_{hashlib.sha256(model_id.encode()).hexdigest()[:12]}_"


def pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
