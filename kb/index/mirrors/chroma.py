"""ChromaDB: vectors in HNSW indexes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import chromadb
import httpx
import numpy as np
from chromadb.api.client import AdminClient, Client
from chromadb.api.fastapi import FastAPI
from chromadb.auth import UserIdentity
from chromadb.config import Settings
from chromadb.errors import ChromaError, NotFoundError
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase
from kb.index.mirrors.protocol import (
    Found,
    StoredVector,
    StoreError,
    TextCollection,
    VectorCollection,
    kb_prefix,
    pieces,
)
from retrieval.messages import Message, gettext_noop, message_of

INDEX = {"hnsw": {"space": "cosine", "ef_construction": 200, "max_neighbors": 24, "ef_search": 512}}
ROWS_A_CALL = 500
IDS_A_FILTER = 2_000
COLLECTIONS_A_PAGE = 500


class ChromaMirror:
    """Of a server by its address, or embedded in this process by the path of a directory, which no other may open.

    Args:
        url: such as http://chroma:8000.
        token: sent as a bearer token; blank: none.
        timeout_s: for one call, in seconds.
    """

    store = KnowledgeBase.Store.CHROMA.value
    has_keywords = False
    most = 10_000

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        self._url = url
        with _as_store_error(url):
            self._client = _client(url, token, timeout_s)

    def ping(self) -> str:
        with _as_store_error(self._url):
            return f"ChromaDB {self._client.get_version()}"

    def collections(self, kb_id: int) -> set[str]:
        with _as_store_error(self._url):
            return {name for name in self._names() if name.startswith(kb_prefix(kb_id))}

    def counts(self, kb_id: int) -> dict[str, int]:
        names = self.collections(kb_id)
        with _as_store_error(self._url):
            return {name: self._open(name).count() for name in names}

    def nearest(
        self, collection: VectorCollection, vector: NDArray[np.float32], limit: int
    ) -> NDArray[np.int64] | None:
        with _as_store_error(self._url):
            try:
                rows = self._open(collection.name)
            except NotFoundError:
                return None
            found = rows.query(query_embeddings=[vector.astype(np.float32)], n_results=limit, include=["metadatas"])
        metadatas = (found["metadatas"] or [[]])[0]
        return np.array([each["chunk_id"] for each in metadatas], dtype=np.int64)

    def write_vectors(
        self, collection: VectorCollection, chunk_ids: Sequence[int], vectors: Sequence[StoredVector]
    ) -> None:
        with _as_store_error(self._url):
            rows = self._client.get_or_create_collection(
                collection.name,
                embedding_function=None,
                configuration=INDEX,
            )
        self.delete_chunks(collection.name, chunk_ids)
        for part in pieces(vectors, ROWS_A_CALL):
            with _as_store_error(self._url):
                rows.upsert(
                    ids=[str(each.key) for each in part],
                    embeddings=[each.vector for each in part],
                    metadatas=[{"chunk_id": each.chunk_id} for each in part],
                )

    def delete_chunks(self, collection_name: str, chunk_ids: Sequence[int]) -> None:
        with _as_store_error(self._url):
            rows = self._open(collection_name)
            for ids in pieces(chunk_ids, IDS_A_FILTER):
                rows.delete(where={"chunk_id": {"$in": [int(chunk_id) for chunk_id in ids]}})

    def drop(self, kb_id: int) -> None:
        for name in self.collections(kb_id):
            with _as_store_error(self._url):
                self._client.delete_collection(name)

    def write_texts(self, collection: TextCollection, chunk_ids: Sequence[int], texts: Mapping[int, str]) -> None:
        raise NotImplementedError("ChromaDB has no ranked keyword search: has_keywords says so")

    def search_texts(
        self, collection: TextCollection, text: str, limit: int, *, only: Sequence[int] | None = None
    ) -> Found:
        raise NotImplementedError("ChromaDB has no ranked keyword search: has_keywords says so")

    def _open(self, name: str) -> Any:
        """Asked of the server each time: a collection that was dropped and made again has another id."""
        return self._client.get_collection(name, embedding_function=None)

    def _names(self) -> Iterator[str]:
        offset = 0
        while page := self._client.list_collections(limit=COLLECTIONS_A_PAGE, offset=offset):
            offset += len(page)
            yield from (collection.name for collection in page)


class _BoundedClient(Client):
    """As chromadb.HttpClient, but its calls end.

    Those of HttpClient have no time limit, from its constructor on: a server that hangs would hold every search up.
    """

    def __init__(self, settings: Settings, timeout_s: float) -> None:
        self._timeout = httpx.Timeout(timeout_s)
        super().__init__(settings=settings)

    def get_user_identity(self) -> UserIdentity:
        """The constructor's first call."""
        cast(FastAPI, self._server)._session.timeout = self._timeout
        return super().get_user_identity()

    def _validate_tenant_database(self, tenant: str, database: str) -> None:
        """Its last ones, which another client of its own sends."""
        cast(FastAPI, cast(AdminClient, self._admin_client)._server)._session.timeout = self._timeout
        super()._validate_tenant_database(tenant, database)


def _client(url: str, token: str, timeout_s: float) -> Any:
    settings = Settings(anonymized_telemetry=False)
    if "://" not in url:
        return chromadb.PersistentClient(url, settings=settings)
    parts = urlsplit(url)
    settings.chroma_api_impl = "chromadb.api.fastapi.FastAPI"
    settings.chroma_server_host = parts.hostname or ""
    settings.chroma_server_http_port = parts.port or (443 if parts.scheme == "https" else 80)
    settings.chroma_server_ssl_enabled = parts.scheme == "https"
    settings.chroma_server_headers = {"Authorization": f"Bearer {token}"} if token else None
    return _BoundedClient(settings, timeout_s)


@contextmanager
def _as_store_error(url: str) -> Iterator[None]:
    try:
        yield
    except (ChromaError, httpx.HTTPError, OSError, ValueError) as error:
        raise StoreError(
            Message(gettext_noop("ChromaDB at {url}: {error}"), url=url, error=message_of(error))
        ) from error
