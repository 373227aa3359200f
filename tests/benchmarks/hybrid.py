"""A whole hybrid search beside LangChain's, on the same passages, tokens and vectors, in one run; no model runs in it.

Run by `make bench`, or alone as `python -m tests.benchmarks.hybrid`.
"""

import json
import os
import shutil
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from retrieval.tokenize import JiebaTokenizer
from tests.benchmarks.corpora import Corpus, read_beir
from tests.benchmarks.store import STARD, start_servers, store_corpus
from tests.benchmarks.table import Row, compare, note, print_table, timed

ROUNDS = 60
OURS_A_ROUND = 5
WARMING = 5
TOP_K = 5
OVERRIDES = {"top_k": TOP_K, "score_threshold": 0.0}
ROWS_A_CALL = 2_000


def measure(corpus: Corpus, questions: list[str]) -> list[Row]:
    """All rows.

    Args:
        corpus: the passages, with their tokens.
        questions: in the words of those who asked them.
    """

    from kb.index.vector_index import maintain_vector_indexes
    from kb.models import Chunk, Principal
    from kb.search.services.search import SearchRequest, search
    from retrieval.embedders.hashing import HashingEmbedder

    embedder = HashingEmbedder()
    seconds, vectors = timed(embedder.embed_documents, corpus.passages)
    note(f"embedded {len(corpus.passages)} passages in {seconds:.0f} s")
    kb = store_corpus(corpus)
    store_vectors(kb, list(Chunk.objects.filter(knowledge_base=kb).order_by("position")), vectors)
    seconds, _ = timed(maintain_vector_indexes, kb.pk)
    note(f"built the vector index in {seconds:.0f} s")
    principal = Principal(kb.owner)

    def ours(question: str) -> None:
        request = SearchRequest(query=question, knowledge_base_ids=[kb.pk], overrides=OVERRIDES, log=False)
        assert search(principal, request).result.hits

    with peer_connection() as connection:
        peer = ensemble(corpus, vectors, embedder, connection)
        found, other = map(percentiles, alternately(ours, peer.invoke, questions))
    size = f"{len(corpus.passages):,} passages, {embedder.dimension:,} dimensions"
    return [
        compare(
            f"hybrid search, {size}, {name}, against LangChain's EnsembleRetriever", corpus, found[name], other[name]
        )
        for name in found
    ]


def store_vectors(kb, chunks, vectors: np.ndarray) -> None:
    """The vectors as PostgreSQL keeps them, and statistics for its planner."""
    from django.db import connection

    from kb.index.services.writing import write_vectors

    for start in range(0, len(chunks), 5_000):
        write_vectors(
            zip(chunks[start : start + 5_000], vectors[start : start + 5_000], strict=True), kb.embedding_model
        )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def ensemble(corpus: Corpus, vectors: np.ndarray, embedder, connection):
    """LangChain's EnsembleRetriever over PGVector and BM25Retriever, with our vectors and our tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both are named for another package to come
        from langchain_classic.retrievers import EnsembleRetriever
        from langchain_community.retrievers import BM25Retriever

        store = peer_vectors(corpus, vectors, embedder, connection)
    numbers = list(map(str, range(len(corpus.chunks))))
    keywords = BM25Retriever.from_texts(numbers, preprocess_func=lambda number: corpus.chunks[int(number)], k=TOP_K)
    keywords.docs = [
        document.model_copy(update={"page_content": text})
        for document, text in zip(keywords.docs, corpus.passages, strict=True)
    ]
    keywords.preprocess_func = JiebaTokenizer()
    return EnsembleRetriever(retrievers=[store.as_retriever(search_kwargs={"k": TOP_K}), keywords], weights=[0.6, 0.4])


def peer_vectors(corpus: Corpus, vectors: np.ndarray, embedder, connection):
    """LangChain's PGVector with the passages and the vectors of them that we have."""
    from langchain_community.vectorstores import PGVector
    from langchain_core.embeddings import Embeddings

    known: dict[str, list[float]] = {}  # as ours keeps the vectors of its queries

    class Given(Embeddings):
        def embed_documents(self, texts):
            return embedder.embed_documents(texts).tolist()

        def embed_query(self, text):
            if text not in known:
                known[text] = embedder.embed_query(text).tolist()
            return known[text]

    store = PGVector(sqlalchemy_url(), Given(), collection_name="benchmark", connection=connection, use_jsonb=True)
    for start in range(0, len(corpus.passages), ROWS_A_CALL):
        texts = corpus.passages[start : start + ROWS_A_CALL]
        ids = list(map(str, range(start, start + len(texts))))
        rows = vectors[start : start + ROWS_A_CALL].tolist()
        store.add_embeddings(texts=texts, embeddings=rows, metadatas=[{} for _ in texts], ids=ids)
    return store


@contextmanager
def peer_connection():
    """One connection for all that LangChain asks."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(sqlalchemy_url())
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def sqlalchemy_url() -> str:
    """The database of the run, as SQLAlchemy names it."""
    from django.db import connection

    settings = connection.settings_dict
    place = f"host={settings['HOST']}&port={settings['PORT'] or 5432}"
    return f"postgresql+psycopg://{settings['USER']}@/{settings['NAME']}?{place}"


def alternately(ours, peer, questions: list[str]) -> tuple[list[float], list[float]]:
    """Seconds of each search, ours and the peer's, of questions whose vectors are cached.

    Both take turns, so that what else the machine does meanwhile slows both alike.
    """
    questions = questions[: WARMING + ROUNDS * OURS_A_ROUND]
    for question in questions:
        ours(question)
    for question in questions[:WARMING]:
        peer(question)
    seconds: tuple[list[float], list[float]] = ([], [])
    for start in range(WARMING, len(questions), OURS_A_ROUND):
        seconds[0].extend(timed(ours, question)[0] for question in questions[start : start + OURS_A_ROUND])
        seconds[1].append(timed(peer, questions[start])[0])
    return seconds


def percentiles(seconds: list[float]) -> dict[str, float]:
    return {"p50": float(np.percentile(seconds, 50)), "p95": float(np.percentile(seconds, 95))}


def main() -> None:
    """Measure and print."""
    directory = Path(os.environ.get("ZHIKU_EVAL_DATA") or ".", STARD)
    if not (directory / "corpus.jsonl").is_file():
        note(f"There is no {STARD} under ZHIKU_EVAL_DATA: set it to the folder that holds {STARD}/corpus.jsonl.")
        return
    os.environ["RERANKER_MODEL"] = ""  # no model runs
    corpus = read_beir(directory, Path(tempfile.gettempdir(), "zhiku-benchmarks"))
    lines = (directory / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    folder = start_servers()
    from config import embedded

    try:
        print_table(measure(corpus, [json.loads(line)["text"] for line in lines]))
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
