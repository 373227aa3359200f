"""ChromaDB: vectors in HNSW indexes."""

from collections.abc import Iterator, Sequence
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
from kb.index.mirrors.registry import Mirror, StoredVector, VectorCollection, pieces
from retrieval.errors import gettext_noop

INDEX = {"hnsw": {"space": "cosine", "ef_construction": 200, "max_neighbors": 24, "ef_search": 512}}
ROWS_A_CALL = 500
IDS_A_FILTER = 2_000


class ChromaMirror(Mirror):
    """Of a server by its address, or embedded in this process by the path of a directory, which no other may open."""

    store = KnowledgeBase.Store.CHROMA.value
    most = 10_000
    unreachable = gettext_noop("ChromaDB at {url}: {error}")
    faults = (ChromaError, httpx.HTTPError, OSError, ValueError)

    def ping(self) -> str:
        with self._calling():
            return f"ChromaDB {self._client.get_version()}"

    def nearest(
        self, collection: VectorCollection, vector: NDArray[np.float32], limit: int
    ) -> NDArray[np.int64] | None:
        with self._calling():
            try:
                rows = self._open(collection.name)
            except NotFoundError:
                return None
            found = rows.query(query_embeddings=[vector.astype(np.float32)], n_results=limit, include=["metadatas"])
        return np.array([each["chunk_id"] for each in (found["metadatas"] or [[]])[0]], dtype=np.int64)

    def write_vectors(
        self, collection: VectorCollection, chunk_ids: Sequence[int], vectors: Sequence[StoredVector]
    ) -> None:
        with self._calling():
            rows = self._client.get_or_create_collection(collection.name, embedding_function=None, configuration=INDEX)
            self.delete_chunks(collection.name, chunk_ids)
            for part in pieces(vectors, ROWS_A_CALL):
                rows.upsert(
                    ids=[str(each.key) for each in part],
                    embeddings=[each.vector for each in part],
                    metadatas=[{"chunk_id": each.chunk_id} for each in part],
                )

    def delete_chunks(self, collection_name: str, chunk_ids: Sequence[int]) -> None:
        with self._calling():
            rows = self._open(collection_name)
            for ids in pieces(chunk_ids, IDS_A_FILTER):
                rows.delete(where={"chunk_id": {"$in": [int(chunk_id) for chunk_id in ids]}})

    def _open(self, name: str) -> Any:
        """Asked of the server each time: a collection that was dropped and made again has another id."""
        return self._client.get_collection(name, embedding_function=None)

    def _names(self) -> Iterator[str]:
        offset = 0
        while page := self._client.list_collections(limit=500, offset=offset):
            offset += len(page)
            yield from (collection.name for collection in page)

    def _count(self, name: str) -> int:
        with self._calling():
            return int(self._open(name).count())

    def _drop(self, name: str) -> None:
        self._client.delete_collection(name)

    def _connect(self, token: str) -> Any:
        if "://" not in self._url:
            return chromadb.PersistentClient(self._url, settings=Settings(anonymized_telemetry=False))
        parts = urlsplit(self._url)
        settings = Settings(
            anonymized_telemetry=False,
            chroma_api_impl="chromadb.api.fastapi.FastAPI",
            chroma_server_host=parts.hostname or "",
            chroma_server_http_port=parts.port or (443 if parts.scheme == "https" else 80),
            chroma_server_ssl_enabled=parts.scheme == "https",
            chroma_server_headers={"Authorization": f"Bearer {token}"} if token else None,
        )
        return _BoundedClient(settings, self._timeout_s)


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
