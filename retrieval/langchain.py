"""LangChain's vector store and retriever over a knowledge base. Needs langchain-core.

A document comes back with the id, text and metadata that it was given. What Zhiku knows of a hit (`chunk_id`, `score`,
`score_scale`, `ranks`, the `profile` that it was found under ...) stands beside those metadata only where it is asked for: `similarity_search` adds nothing, so
that what was stored equals what is found; retrievers, and every search that returns scores, add it (`provenance=True`).
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from pydantic import model_validator

from retrieval.protocols import FoundText, KnowledgeBaseTexts, StoredText
from retrieval.selection import ScoreScale

PREFIX = "zhiku_"


@dataclass(frozen=True)
class KnowledgeBaseEmbeddings(Embeddings):
    """The knowledge base's own model, looked up at each use: a knowledge base may move to another one."""

    knowledge_base: KnowledgeBaseTexts

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self.knowledge_base.embedder().embed_documents(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        vector: list[float] = self.knowledge_base.embedder().embed_query(text).tolist()
        return vector


class KnowledgeBaseVectorStore(VectorStore):
    """Searches as every other caller does, with all channels and stages, not with vectors alone.

    A text is one document of one chunk. Equal texts under several ids are stored, but found once, under one of them.
    """

    def __init__(self, knowledge_base: KnowledgeBaseTexts) -> None:
        self.knowledge_base = knowledge_base

    @property
    def embeddings(self) -> Embeddings:
        return KnowledgeBaseEmbeddings(self.knowledge_base)

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Adds texts, none of them blank, or replaces those that have one of the ids, which are returned, one a text.

        Of the metadatas, JSON objects, `source` and `title`, where they are strings, name the text in citations, and
        the title is indexed with it. Empty ids are made up. `batch_size`, which LangChain's `index` passes on, changes
        nothing. Raises ValueError where there are not as many metadatas or ids as texts.
        """
        _refuse_unknown("add_texts", kwargs.keys() - {"batch_size"})
        contents = list(texts)
        given = _one_a_text("metadatas", metadatas or [{}] * len(contents), contents)
        names = [name or str(uuid.uuid4()) for name in _one_a_text("ids", ids or [""] * len(contents), contents)]
        stored = [StoredText(*row) for row in zip(names, contents, (dict(each or {}) for each in given), strict=True)]
        self.knowledge_base.add(stored)
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Deletes texts, or with None every text that was added under an id; documents that came in as files stay.

        Ids that are not there are passed over.
        """
        _refuse_unknown("delete", kwargs)
        self.knowledge_base.delete(ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents that are there, in the order of the ids, each once."""
        found = self.knowledge_base.get(ids)
        return [_document(found[name]) for name in dict.fromkeys(ids) if name in found]

    def similarity_search(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the name in LangChain's stores
        provenance: bool = False,
        **kwargs: Any,
    ) -> list[Document]:
        """At most `k` documents, best first; no threshold applies.

        With a filter only documents whose metadata have these values: texts, numbers, true, false or None. `provenance`
        adds the fields of the hit to the metadata, with the prefix `zhiku_` where the document has a field of that
        name.
        """
        _refuse_unknown("similarity_search", kwargs)
        found = self.knowledge_base.search(query, k, metadata=filter)
        return [_hit(each, provenance=provenance) for each in found]

    def similarity_search_with_score(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002
        provenance: bool = True,
        **kwargs: Any,
    ) -> list[tuple[Document, float]]:
        """As `similarity_search`, with the score of the last stage; higher is better, `score_scale` says what it means."""
        _refuse_unknown("similarity_search_with_score", kwargs)
        found = self.knowledge_base.search(query, k, metadata=filter)
        return [(_hit(each, provenance=provenance), each.score) for each in found]

    def as_retriever(self, **kwargs: Any) -> "KnowledgeBaseRetriever":
        """A retriever; takes `k` beside what LangChain's takes."""
        tags = kwargs.pop("tags", None) or self._get_retriever_tags()
        return KnowledgeBaseRetriever(vectorstore=self, tags=tags, **kwargs)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        knowledge_base: KnowledgeBaseTexts | None = None,
        **kwargs: Any,
    ) -> Self:
        """Adds texts to a knowledge base that is there, as `add_texts` does.

        `embedding` is None, or the `embeddings` of the knowledge base's vector store: it embeds with no other model,
        and raises ValueError for one. NotImplementedError is raised without a knowledge base; these are made and shared
        in the admin or over the API.
        """
        if knowledge_base is None:
            raise NotImplementedError(
                "texts alone make no knowledge base: create one, take store = RAGService().get_vector_store(user_id, its "
                "id), then store.add_texts(...) or from_texts(..., knowledge_base=store.knowledge_base)"
            )
        if embedding not in (None, KnowledgeBaseEmbeddings(knowledge_base)):
            raise ValueError(
                "a knowledge base embeds with its own model: leave embedding at None, or choose the model when you "
                "create the knowledge base"
            )
        store = cls(knowledge_base)
        store.add_texts(texts, metadatas, ids=ids, **kwargs)
        return store

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Raises ValueError where the last stage's scores have no scale, so that nothing can be cut by them."""
        metadata, provenance = kwargs.pop("filter", None), kwargs.pop("provenance", True)
        _refuse_unknown("similarity_search_with_relevance_scores", kwargs)
        found = self.knowledge_base.search(query, k, metadata=metadata)
        return [(_hit(each, provenance=provenance), _relevance(each)) for each in found]

    async def _asimilarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        return await run_in_executor(None, self._similarity_search_with_relevance_scores, query, k, **kwargs)


class KnowledgeBaseRetriever(VectorStoreRetriever):
    """LangChain's retriever; the number of results is also a parameter `k`, and documents carry their provenance."""

    @model_validator(mode="before")
    @classmethod
    def keep_k_among_search_kwargs(cls, values: dict[str, Any]) -> dict[str, Any]:
        search_kwargs = {"provenance": True, **values.get("search_kwargs", {})}
        if "k" in values:
            search_kwargs["k"] = values["k"]
        return {**{name: value for name, value in values.items() if name != "k"}, "search_kwargs": search_kwargs}


def _document(text: StoredText) -> Document:
    return Document(id=text.id, page_content=text.content, metadata=dict(text.metadata))


def _hit(found: FoundText, *, provenance: bool) -> Document:
    document = _document(found.text)
    if provenance:
        given = document.metadata
        document.metadata = {
            **given,
            **{PREFIX + name if name in given else name: value for name, value in found.provenance.items()},
        }
    return document


def _relevance(found: FoundText) -> float:
    if found.score_scale == ScoreScale.RRF:
        raise ValueError(
            "sums of reciprocal ranks say nothing about relevance: switch a reranker on in the "
            "knowledge base's profile, or search without a score threshold"
        )
    return min(max(found.score, 0.0), 1.0)


def _one_a_text(name: str, values: Sequence[Any], texts: Sequence[str]) -> Sequence[Any]:
    if len(values) != len(texts):
        raise ValueError(f"give as many {name} as texts: there are {len(values)} for {len(texts)}")
    return values


def _refuse_unknown(method: str, names: Iterable[str]) -> None:
    """A misspelt option must not pass for the default."""
    if unknown := sorted(names):
        raise TypeError(f"{method} knows no keyword {', '.join(unknown)}")
