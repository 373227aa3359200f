"""Searches a second that the shipped server answers over HTTP, beside one bare SQL statement for the same questions.

Both have the same passages, vectors and tokens, the same PostgreSQL and as many clients, and take turns within one run. The
vectors of the queries are cached, whole responses are not. The bare statement is what one would write without Zhiku: the
nearest vectors by an HNSW index and an OR of the query's tokens by a GIN index with ts_rank, fused by reciprocal ranks; no
HTTP, no permission, no reranking, no log.

Run by `make bench`, or alone as `python -m tests.benchmarks.throughput [SECONDS]`.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import psycopg

from tests.benchmarks.corpora import Corpus, read_beir
from tests.benchmarks.hybrid import store_vectors
from tests.benchmarks.store import STARD, start_servers, store_corpus
from tests.benchmarks.table import Row, note, print_table, timed
from tests.load.client import Answer, Target, searches, under_load
from tests.serving import free_port

CLIENTS = 8
TURNS = 4
SECONDS = 40.0
QUESTIONS = 400
TOP_K = 5
ROWS = 60
STARTS_WITHIN = 120.0

TABLE = """
CREATE TABLE bare (id bigint PRIMARY KEY, text text, tokens tsvector, vector halfvec({dimension}));
ALTER TABLE bare ALTER vector SET STORAGE MAIN
"""
INDEXES = """
CREATE INDEX ON bare USING hnsw (vector halfvec_cosine_ops);
CREATE INDEX ON bare USING gin (tokens);
ANALYZE bare
"""
STATEMENT = f"""
WITH near AS (
    SELECT id, row_number() OVER () AS rank FROM (
        SELECT id FROM bare ORDER BY vector <=> %(vector)s::halfvec LIMIT {ROWS}
    ) found
), held AS (
    SELECT id, row_number() OVER () AS rank FROM (
        SELECT id FROM bare WHERE tokens @@ %(tokens)s::tsquery
        ORDER BY ts_rank(tokens, %(tokens)s::tsquery) DESC, id LIMIT {ROWS}
    ) found
)
SELECT id, text, coalesce(0.6 / (60 + near.rank), 0) + coalesce(0.4 / (60 + held.rank), 0) AS score
FROM near FULL JOIN held USING (id) JOIN bare USING (id)
ORDER BY score DESC, id LIMIT {TOP_K}
"""


def store_bare(corpus: Corpus, vectors: np.ndarray) -> None:
    """The passages in a table of their own."""
    with _connect() as connection, connection.cursor() as cursor:
        cursor.execute(TABLE.format(dimension=vectors.shape[1]))
        copy = "COPY bare (id, text, tokens, vector) FROM STDIN"
        with cursor.copy(copy) as rows:
            for number, (text, tokens, vector) in enumerate(
                zip(corpus.passages, corpus.chunks, vectors, strict=True), start=1
            ):
                lexemes = " ".join(_quoted(token) for token in sorted(set(tokens)) if "\0" not in token)
                rows.write_row((number, text.replace("\0", ""), lexemes, json.dumps(vector.round(5).tolist())))
        cursor.execute("SET maintenance_work_mem = '512MB'")
        for statement in INDEXES.split(";"):
            cursor.execute(statement)


def bare_searches(vectors: dict[str, str], tokens: dict[str, str]) -> Callable[[], Callable[[str], Answer]]:
    """Clients for `under_load`, each with a connection of its own."""

    def client() -> Callable[[str], Answer]:
        connection = _connect()
        connection.execute("SET hnsw.ef_search = 128")

        def search(question: str) -> Answer:
            sent = time.monotonic()
            values = {"vector": vectors[question], "tokens": tokens[question]}
            rows = connection.execute(STATEMENT, values).fetchall()
            return Answer(sent, time.monotonic() - sent, 200, body={"results": rows}, question=question)

        return search

    return client


def measure(corpus: Corpus, questions: list[str], folder: Path, seconds: float) -> list[Row]:
    """The rows; raises where an answer is missing, empty or worse than it should be."""
    from kb.index.vector_index import maintain_vector_indexes
    from kb.models import Chunk
    from retrieval.embedders.hashing import HashingEmbedder
    from tests.factories import make_api_key

    embedder = HashingEmbedder()
    taken, vectors = timed(embedder.embed_documents, corpus.passages)
    note(f"embedded {len(corpus.passages)} passages in {taken:.0f} s")
    kb = store_corpus(corpus)
    store_vectors(kb, list(Chunk.objects.filter(knowledge_base=kb).order_by("position")), vectors)
    maintain_vector_indexes(kb.pk)
    store_bare(corpus, vectors)
    _key, secret = make_api_key(kb.owner)
    asked = {question: json.dumps(embedder.embed_query(question).round(5).tolist()) for question in questions}
    cut = dict(zip(questions, corpus.queries, strict=False))
    tokens = {question: " | ".join(map(_quoted, sorted(set(cut[question])))) for question in questions}
    with served(folder) as url:
        target = Target(url, secret, [kb.pk], {"top_k": TOP_K, "score_threshold": 0})
        ours, bare = searches(target), bare_searches(asked, tokens)
        for clients in (ours, bare):
            _checked(under_load(clients, questions, clients=CLIENTS, seconds=8.0))
        answers: tuple[list[Answer], list[Answer]] = ([], [])
        for _ in range(TURNS):
            for kept, clients in zip(answers, (ours, bare), strict=True):
                kept.extend(_checked(under_load(clients, questions, clients=CLIENTS, seconds=seconds / TURNS)))
    return _rows(corpus, *answers, seconds)


def _checked(answers: list[Answer]) -> list[Answer]:
    faults = [answer for answer in answers if answer.status != 200 or not answer.body["results"]]
    worse = {entry["code"] for answer in answers for entry in answer.body.get("degraded", ())} - {"hashing_embedder"}
    if faults or worse or any(answer.body.get("cached") for answer in answers):
        raise RuntimeError(f"{len(faults)} of {len(answers)} failed: {faults[:1]}; degraded: {worse}")
    return answers


def _rows(corpus: Corpus, ours: Sequence[Answer], bare: Sequence[Answer], seconds: float) -> list[Row]:
    rates = [len(answers) / seconds for answers in (ours, bare)]
    slow = [float(np.percentile([answer.seconds for answer in answers], 95)) * 1_000 for answers in (ours, bare)]
    label = f"hybrid search over HTTP, {CLIENTS} clients, against one bare SQL statement"
    return [
        Row(
            corpus.name,
            f"{label}: searches a second",
            f"{rates[0]:.0f}",
            f"{rates[1]:.0f}",
            f"{rates[1] / rates[0]:.2f}",
        ),
        Row(corpus.name, "the same: p95", f"{slow[0]:.0f} ms", f"{slow[1]:.0f} ms", f"{slow[1] / slow[0]:.2f}"),
    ]


@contextmanager
def served(folder: Path):
    """The web server as it is deployed, on a port of its own; yields its address."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name != "ZHIKU_EMBEDDED"} | {
        "SECRET_KEY": os.environ.get("SECRET_KEY") or secrets.token_urlsafe(64),
        "SECURE_SSL_REDIRECT": "false",
        "CACHE_ENABLED": "false",
        "RERANKER_MODEL": "",
    }
    command = [sys.executable, "-m", "gunicorn", "--config", "python:config.gunicorn", "--bind", f"127.0.0.1:{port}"]
    with (folder / "web.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        _await(f"http://127.0.0.1:{port}/api/v1/ready/", process, folder / "web.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _await(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(log.read_text()) from error
            time.sleep(0.5)
        else:
            return


def _connect() -> "psycopg.Connection[tuple]":
    return psycopg.connect(_dsn(), autocommit=True)


@cache
def _dsn() -> str:
    from django.db import connection

    connection.ensure_connection()
    return connection.connection.info.dsn


def _quoted(token: str) -> str:
    return "'" + token.replace("\\", "\\\\").replace("'", "''") + "'"


def main() -> None:
    """Measure and print."""
    directory = Path(os.environ.get("ZHIKU_EVAL_DATA") or ".", STARD)
    if not (directory / "corpus.jsonl").is_file():
        note(f"There is no {STARD} under ZHIKU_EVAL_DATA: set it to the folder that holds {STARD}/corpus.jsonl.")
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    corpus = read_beir(directory, Path(tempfile.gettempdir(), "zhiku-benchmarks"))
    lines = (directory / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["text"] for line in lines][:QUESTIONS]
    folder = start_servers()
    from config import embedded

    try:
        print_table(measure(corpus, questions, folder, seconds))
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
