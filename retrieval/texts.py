"""Texts that a program keeps in a knowledge base under ids of its own: the seam under the adapters for frameworks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from retrieval.protocols import Embedder


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text as it was given.

    Attributes:
        id: the program's own; that of a chunk for a passage that came in as part of a document.
        metadata: a JSON object.
    """

    id: str
    content: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundText:
    """A text that a search has found.

    Attributes:
        score: of the last stage, on the scale `score_scale`.
        provenance: where it comes from and how it was found: chunk_id, document_id, source, score, ranks and so on.
    """

    text: StoredText
    score: float
    score_scale: str
    provenance: Mapping[str, Any]


class KnowledgeBaseTexts(Protocol):
    """One knowledge base, under the rights of one caller."""

    def search(self, query: str, k: int, *, metadata: Mapping[str, Any] | None = None) -> Sequence[FoundText]:
        """Returns at most k texts, best first, none cut for its score.

        Args:
            query: any text.
            k: at most so many.
            metadata: only texts whose metadata have these values.
        """

    def add(self, texts: Sequence[StoredText]) -> None:
        """Keeps texts, each in place of the one that had its id; the last of several with one id stays."""

    def delete(self, ids: Sequence[str] | None) -> None:
        """Deletes those of the texts that are there; None: every text that was added under an id."""

    def get(self, ids: Sequence[str]) -> Mapping[str, StoredText]:
        """Returns, by id, those of the texts that are there."""

    def embedder(self) -> Embedder:
        """The knowledge base's own model, which embeds what is added and what is asked."""
