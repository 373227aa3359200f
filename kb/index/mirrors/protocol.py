"""What a server must offer to hold a copy of a knowledge base's vectors, and of its texts."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from kb.base.models import installation_id
from retrieval.errors import Message, RetrievalError, message_of

T = TypeVar("T")

Found = tuple[NDArray[np.int64], NDArray[np.float64]]

# More vectors of one kind than any chunk has, so that a chunk's id and a vector's place in it make one number.
ORDINALS = 1 << 16

NO_KEYWORDS = "this store has no ranked keyword search: has_keywords says so"


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


class Mirror(ABC):
    """A server with a collection for each knowledge base, model and kind, so that no search can reach another's.

    Every method raises StoreError where the server cannot be reached or refuses.

    Args:
        url: of a server, such as http://milvus:19530; or a path, of what only one process may open.
        token: as the server wants it; blank: none.
        timeout_s: for one call, in seconds.

    Attributes:
        store: as in `KnowledgeBase.Store`.
        has_keywords: whether it ranks texts by keywords.
        most: how many results one search may ask for.
        unreachable: the template of a StoreError, of the address and the client's error.
        faults: the errors of its client.
    """

    store: ClassVar[str]
    has_keywords: ClassVar[bool] = False
    most: ClassVar[int]
    unreachable: ClassVar[str]
    faults: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s
        with self._calling():
            self._client = self._connect(token)

    @abstractmethod
    def ping(self) -> str:
        """Returns what answers, and its version."""

    def collections(self, kb_id: int) -> set[str]:
        with self._calling():
            return {name for name in self._names() if name.startswith(kb_prefix(kb_id))}

    def counts(self, kb_id: int) -> dict[str, int]:
        return {name: self._count(name) for name in self.collections(kb_id)}

    @abstractmethod
    def nearest(
        self, collection: VectorCollection, vector: NDArray[np.float32], limit: int
    ) -> NDArray[np.int64] | None:
        """Returns the chunks of the nearest vectors, best first, some several times; None: no such collection."""

    @abstractmethod
    def write_vectors(
        self, collection: VectorCollection, chunk_ids: Sequence[int], vectors: Sequence[StoredVector]
    ) -> None:
        """Makes the vectors those that the collection holds of the chunks."""

    def write_texts(self, collection: TextCollection, chunk_ids: Sequence[int], texts: Mapping[int, str]) -> None:
        """Makes the texts those that the collection holds of the chunks."""
        raise NotImplementedError(NO_KEYWORDS)

    def search_texts(
        self, collection: TextCollection, text: str, limit: int, *, only: Sequence[int] | None = None
    ) -> Found | None:
        """Returns chunks that hold any term of the text and their scores, best first; None: no such collection."""
        raise NotImplementedError(NO_KEYWORDS)

    @abstractmethod
    def delete_chunks(self, collection_name: str, chunk_ids: Sequence[int]) -> None:
        """Deletes all that a collection of any sort holds of the chunks."""

    def drop(self, kb_id: int) -> None:
        for name in self.collections(kb_id):
            with self._calling():
                self._drop(name)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except self.faults as error:
            # The templates name the address in two ways.
            raise StoreError(
                Message(self.unreachable, url=self._url, uri=self._url, error=message_of(error))
            ) from error

    @abstractmethod
    def _connect(self, token: str) -> Any: ...

    @abstractmethod
    def _names(self) -> Iterable[str]: ...

    @abstractmethod
    def _count(self, name: str) -> int: ...

    @abstractmethod
    def _drop(self, name: str) -> None: ...


def kb_prefix(kb_id: int) -> str:
    """Of the names of all its collections; the installation's id keeps those of others apart that share the server."""
    return f"zhiku_{installation_id().replace('-', '')[:16]}_{kb_id}_"


def vectors_prefix(kb_id: int, model_id: str) -> str:
    return f"{kb_prefix(kb_id)}v_{hashlib.sha256(model_id.encode()).hexdigest()[:12]}_"


def pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
