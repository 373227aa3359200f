"""Milvus: vectors in HNSW indexes, and keyword search by its own BM25."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import grpc  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray
from pymilvus import DataType, Function, FunctionType, MilvusClient, MilvusException

from kb.access.models import KnowledgeBase
from kb.index.mirrors.registry import Mirror, StoredVector, StoreError, TextCollection, VectorCollection, pieces
from kb.index.pgvector import Found
from retrieval.errors import gettext_noop
from retrieval.tokenize import CHINESE_PARTICLES_ALONE

LEAST_EF = 256
MAX_TEXT_BYTES = 65_535
ROWS_A_CALL = 500
IDS_A_FILTER = 10_000
PUNCTUATION = "，。、；：？！“”‘’（）《》【】—…·,.;:?!()[]'\" "
CHINESE = {
    "tokenizer": "jieba",
    "filter": ["lowercase", {"type": "stop", "stop_words": sorted({*CHINESE_PARTICLES_ALONE, *PUNCTUATION})}],
}
# Milvus Lite has no English analyser.
ENGLISH_WITHOUT_STEMS = {"tokenizer": "standard", "filter": ["lowercase"]}


class MilvusMirror(Mirror):
    """Of a server or cluster by its address, or of Milvus Lite by the path of a file, which one process may open.

    Its token is USER:PASSWORD or an API key.
    """

    store = KnowledgeBase.Store.MILVUS.value
    has_keywords = True
    most = 16_384
    unreachable = gettext_noop("Milvus at {uri}: {error}")
    faults = (MilvusException, grpc.RpcError, OSError)

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        self._is_lite = "://" not in url
        self._ready: set[str] = set()
        super().__init__(url, token, timeout_s)

    def ping(self) -> str:
        with self._calling():
            return f"Milvus {self._client.get_server_version(timeout=self._timeout_s)}"

    def nearest(
        self, collection: VectorCollection, vector: NDArray[np.float32], limit: int
    ) -> NDArray[np.int64] | None:
        hits = self._search(
            collection.name,
            data=[vector.astype(np.float32)],
            anns_field="vector",
            limit=limit,
            search_params={"params": {"ef": max(LEAST_EF, 2 * limit)}},
            output_fields=["chunk_id"],
        )
        return None if hits is None else np.array([hit["entity"]["chunk_id"] for hit in hits], dtype=np.int64)

    def write_vectors(
        self, collection: VectorCollection, chunk_ids: Sequence[int], vectors: Sequence[StoredVector]
    ) -> None:
        rows = [{"pk": each.key, "chunk_id": each.chunk_id, "vector": each.vector} for each in vectors]
        self._write(collection, chunk_ids, rows)

    def write_texts(self, collection: TextCollection, chunk_ids: Sequence[int], texts: Mapping[int, str]) -> None:
        rows = [{"pk": key, "chunk_id": key, "text": _bounded(text)} for key, text in texts.items()]
        self._write(collection, chunk_ids, rows)

    def search_texts(
        self, collection: TextCollection, text: str, limit: int, *, only: Sequence[int] | None = None
    ) -> Found | None:
        # Milvus Lite weighs words by the chunks that pass a filter, and not by all: there the filter comes afterwards.
        is_filtered_here = self._is_lite and only is not None
        wanted, asked_for = (None, self.most) if is_filtered_here else (only, limit)
        scores: dict[int, float] = {}
        # One condition for each piece of the ids: scores of the same collection can be put together.
        for condition in [""] if wanted is None else map(_among, pieces(wanted, IDS_A_FILTER)):
            hits = self._search(
                collection.name,
                data=[_bounded(text)],
                anns_field="sparse",
                limit=asked_for,
                filter=condition,
                search_params={"metric_type": "BM25"},
                output_fields=["chunk_id"],
            )
            if hits is None:
                return None
            # Milvus Lite returns the negative of a score.
            scores |= {hit["entity"]["chunk_id"]: abs(float(hit["distance"])) for hit in hits}
        if is_filtered_here:
            scores = {chunk_id: scores[chunk_id] for chunk_id in only or () if chunk_id in scores}
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:limit]
        return np.array([key for key, _ in best], dtype=np.int64), np.array([score for _, score in best])

    def delete_chunks(self, collection_name: str, chunk_ids: Sequence[int]) -> None:
        self._is_there(collection_name)
        for ids in pieces(chunk_ids, IDS_A_FILTER):
            with self._using(collection_name):
                self._client.delete(collection_name, filter=_among(ids), timeout=self._timeout_s)

    # -- Collections -------------------------------------------------------------------------------------------------
    def _connect(self, token: str) -> Any:
        return MilvusClient(self._url, token=token, timeout=self._timeout_s)

    def _names(self) -> Iterable[str]:
        return list(self._client.list_collections(timeout=self._timeout_s))

    def _drop(self, name: str) -> None:
        self._client.drop_collection(name, timeout=self._timeout_s)
        self._ready.discard(name)

    def _create(self, collection: VectorCollection | TextCollection) -> None:
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("pk", DataType.INT64, is_primary=True)
        schema.add_field("chunk_id", DataType.INT64)
        indexes = MilvusClient.prepare_index_params()
        if isinstance(collection, VectorCollection):
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=collection.dimension)
            indexes.add_index(
                "vector", index_type="HNSW", metric_type="COSINE", params={"M": 24, "efConstruction": 200}
            )
        else:
            english = ENGLISH_WITHOUT_STEMS if self._is_lite else {"type": "english"}
            schema.add_field(
                "text",
                DataType.VARCHAR,
                max_length=MAX_TEXT_BYTES,
                enable_analyzer=True,
                analyzer_params=CHINESE if collection.language == KnowledgeBase.Language.CHINESE else english,
            )
            schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
            schema.add_function(Function("bm25", FunctionType.BM25, ["text"], ["sparse"]))
            indexes.add_index(
                "sparse",
                index_type="SPARSE_INVERTED_INDEX",
                metric_type="BM25",
                params={"bm25_k1": 1.5, "bm25_b": 0.75},
            )
        name = collection.name
        with self._calling():
            # Strong: a change that was applied is found by the next search of any process.
            self._client.create_collection(name, schema=schema, consistency_level="Strong", timeout=self._timeout_s)
            # The client would wait half a second before it asks whether the index of no rows is built.
            self._client.create_index(name, indexes, timeout=self._timeout_s, sync=False)

    def _is_there(self, name: str) -> bool:
        """Loads a collection that is there: one of a server that was restarted may be loaded by nobody yet."""
        if name not in self._ready:
            with self._calling():
                if not self._client.has_collection(name, timeout=self._timeout_s):
                    return False
                self._client.load_collection(name, timeout=self._timeout_s)
            self._ready.add(name)
        return True

    @contextmanager
    def _using(self, name: str) -> Iterator[None]:
        """A collection that fails may have been dropped, or its server restarted: it is looked for again."""
        try:
            with self._calling():
                yield
        except StoreError:
            self._ready.discard(name)
            raise

    # -- Rows --------------------------------------------------------------------------------------------------------
    def _write(
        self, collection: VectorCollection | TextCollection, chunk_ids: Sequence[int], rows: Sequence[dict[str, Any]]
    ) -> None:
        if not self._is_there(collection.name):
            self._create(collection)
        self.delete_chunks(collection.name, chunk_ids)
        for part in pieces(rows, ROWS_A_CALL):
            with self._using(collection.name):
                self._client.upsert(collection.name, list(part), timeout=self._timeout_s)

    def _search(self, name: str, **asked: Any) -> Sequence[Mapping[str, Any]] | None:
        """None where there is no such collection."""
        if not self._is_there(name):
            return None
        with self._using(name):
            found = self._client.search(name, consistency_level="Strong", timeout=self._timeout_s, **asked)
        return cast("Sequence[Mapping[str, Any]]", found[0] if found else [])

    def _count(self, name: str) -> int:
        self._is_there(name)
        with self._using(name):
            rows = self._client.query(
                name, output_fields=["count(*)"], consistency_level="Strong", timeout=self._timeout_s
            )
        return int(rows[0]["count(*)"])


def _among(chunk_ids: Sequence[int]) -> str:
    return f"chunk_id in [{','.join(str(int(chunk_id)) for chunk_id in chunk_ids)}]"


def _bounded(text: str) -> str:
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs, with a traceback, each error that it raises as well
