"""A LangChain vector store over a search function. Needs langchain-core."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

SearchFunction = Callable[[str, int], Sequence[Mapping[str, Any]]]


class SearchVectorStore(VectorStore):
    """Reads through a search function, so that a chain gets what every other caller gets."""

    def __init__(self, search: SearchFunction) -> None:
        """Takes a function of query and k that returns chunks as RAGService does, best first."""
        self._search = search

    def similarity_search(self, query: str, k: int = 4, **_: Any) -> list[Document]:
        return [document for document, _ in self.similarity_search_with_score(query, k)]

    def similarity_search_with_score(self, query: str, k: int = 4, **_: Any) -> list[tuple[Document, float]]:
        """Documents with the score of the last stage; its scale is in the document's metadata."""
        return [(_document(chunk), float(chunk["score"])) for chunk in self._search(query, k)]

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Not offered: documents enter through a knowledge base, which parses, chunks and indexes them."""
        raise NotImplementedError("add documents to the knowledge base, then ask RAGService().get_retriever(...)")


def _document(chunk: Mapping[str, Any]) -> Document:
    metadata = {name: value for name, value in chunk.items() if name != "text"}
    return Document(id=str(chunk["chunk_id"]), page_content=chunk["text"], metadata=metadata)
