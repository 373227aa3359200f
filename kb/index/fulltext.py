"""Stored postings: their full-text search, their change log, and the index that is built of them, each in one statement."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from django.db.models import F, Func, IntegerField, QuerySet
from numpy.typing import NDArray

from kb.base.db.transactions import binary_cursor, fetch_all, streaming_cursor
from kb.index.filters import enabled_among
from kb.index.models import NGRAM_PREFIX, ChunkPostings, quoted_lexeme, storable_lexemes
from kb.providers.embedding_models import tokenizer
from retrieval.bm25 import OkapiIndex, okapi_parameters
from retrieval.character_counts import CharacterCounter, CharacterCounts
from retrieval.errors import ScopeOutdated
from retrieval.postings import count_postings, hash_terms, inverse_document_frequency, ngrams
from retrieval.questions import ChunkQuestions, QuestionIndex
from retrieval.types import searchable_text

MAX_TERMS = 64
MAX_NGRAMS = 128

# Chunks with a smaller share of a query's n-grams have its function words in common with it, not its subject.
# Measured on cmrc2018-reject: 95 % of the right chunks hold as much, 1.8 chunks a query do, and of the questions without an
# answer 72 % find nothing (at 0.2: 99 %, 6.2 and 32 %).
LEAST_SHARE = 0.3

# One look-up in the index for each lexeme, and all its chunks as one value. The offset and the sum keep the
# planner from trying every row of the knowledge base with each lexeme.
HOLDERS = """
SELECT lexeme.place, string_agg(int8send(holder.chunk_id), '')
FROM unnest(%s::tsquery[]) WITH ORDINALITY AS lexeme (query, place)
CROSS JOIN LATERAL (
    SELECT p.chunk_id FROM kb_chunkpostings p
    WHERE p.lexemes @@ lexeme.query AND p.knowledge_base_id + 0 = %s AND p.tokenizer_id = %s OFFSET 0
) holder
GROUP BY lexeme.place ORDER BY lexeme.place
"""
CHUNK_POSTINGS = """
SELECT p.chunk_id, p.terms, p.frequencies, p.length
FROM kb_chunkpostings p JOIN kb_chunk c ON c.id = p.chunk_id AND c.enabled
WHERE p.chunk_id = ANY(%s::bigint[]) AND p.tokenizer_id = %s
"""

Found = tuple[NDArray[np.int64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class _Holders:
    """Chunks that hold any of some lexemes: ids, ascending, shape (n_chunks,), and how many hold each, (n_lexemes,).

    `chunks` and `lexemes` are, for each time that a chunk holds a lexeme, the places of the two.
    """

    chunk_ids: NDArray[np.int64]
    chunks: NDArray[np.int64]
    lexemes: NDArray[np.int64]
    counts: NDArray[np.int64]

    def totals(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of the weights of the lexemes that each chunk holds, shape (n_chunks,)."""
        return np.bincount(self.chunks, weights[self.lexemes], minlength=self.chunk_ids.size).astype(np.float64)


def without_lexemes(rows: QuerySet[ChunkPostings]) -> QuerySet[ChunkPostings]:
    """Those of texts with tokens that were tokenised before lexemes were kept. No lexeme is read for it."""
    size = Func(F("lexemes"), function="pg_column_size", output_field=IntegerField())
    return rows.filter(length__gt=0).annotate(lexeme_bytes=size).filter(lexeme_bytes__lte=8)


class PgTextStore:
    """Finds chunks by lexemes as the tokenizer and `ngrams` made them; no dictionary of PostgreSQL is involved.

    Its own ts_rank knows neither how rare a term is nor how often a chunk holds it: NDCG@10 of cmrc2018's first 300 queries
    is .888 with it, .934 by the idf of the terms held, and .962 by BM25 over the best of those (BM25 over all: .957).
    """

    def search_terms(
        self, kb_id: int, tokenizer_id: str, terms: Sequence[str], k: int, *, only: NDArray[np.int64] | None = None
    ) -> Found:
        """BM25 over the chunks that hold the rarest terms; rarity and mean length are those of the chunks found."""
        wanted = storable_lexemes(term for term in terms if not term.startswith(NGRAM_PREFIX))[:MAX_TERMS]
        holders = _holders(kb_id, tokenizer_id, wanted, only)
        idf = inverse_document_frequency(holders.counts, holders.chunk_ids.size)
        candidates, _ = _best(holders.chunk_ids, holders.totals(idf), _candidates(k))
        return _bm25(candidates, tokenizer_id, wanted, idf, k)

    def search_ngrams(
        self, kb_id: int, tokenizer_id: str, text: str, k: int, *, only: NDArray[np.int64] | None = None
    ) -> Found:
        wanted = storable_lexemes(NGRAM_PREFIX + gram for gram in ngrams(text))[:MAX_NGRAMS]
        holders = _holders(kb_id, tokenizer_id, wanted, only)
        shares = holders.totals(np.ones(len(wanted))) / max(len(wanted), 1)
        enough = shares >= LEAST_SHARE
        chunk_ids, shares = _best(holders.chunk_ids[enough], shares[enough], _candidates(k))
        there = enabled_among(kb_id, chunk_ids)
        return chunk_ids[there][:k], shares[there][:k]


def _candidates(k: int) -> int:
    # More than the results wanted, since some turn out to be switched off. To score more of the chunks with the rarest
    # terms changed no result of 300 queries of cmrc2018.
    return max(100, 2 * k)


def _holders(kb_id: int, tokenizer_id: str, lexemes: Sequence[str], only: NDArray[np.int64] | None) -> _Holders:
    rows = fetch_all(HOLDERS, [list(map(quoted_lexeme, lexemes)), kb_id, tokenizer_id])
    found = {place - 1: np.frombuffer(ids, dtype=">i8").astype(np.int64) for place, ids in rows}
    counts = np.array([found[place].size if place in found else 0 for place in range(len(lexemes))], dtype=np.int64)
    held = np.concatenate([*found.values(), np.empty(0, dtype=np.int64)])  # the rows are in the order of the lexemes
    places = np.repeat(np.arange(counts.size), counts)
    if only is not None:
        passes = np.isin(held, only)
        held, places = held[passes], places[passes]
    chunk_ids, chunks = np.unique(held, return_inverse=True)
    return _Holders(chunk_ids, chunks, places, counts)


def _best(chunk_ids: NDArray[np.int64], scores: NDArray[np.float64], most: int) -> Found:
    order = np.lexsort((chunk_ids, -scores))[:most]
    return chunk_ids[order], scores[order]


def _bm25(
    chunk_ids: NDArray[np.int64], tokenizer_id: str, terms: Sequence[str], idf: NDArray[np.float64], k: int
) -> Found:
    with binary_cursor() as cursor:
        rows = cursor.execute(CHUNK_POSTINGS, [chunk_ids.tolist(), tokenizer_id], binary=True).fetchall()
    if not rows:
        return np.empty(0, dtype=np.int64), np.empty(0)
    lengths = np.array([length for *_, length in rows], dtype=np.float64)
    parameters = okapi_parameters()
    norm = parameters.k1 * (1 - parameters.b + parameters.b * lengths / max(lengths.mean(), 1.0))
    frequencies = _frequencies(rows, hash_terms(terms))
    scores = (idf * frequencies * (parameters.k1 + 1) / (frequencies + norm[:, None])).sum(axis=1)
    return _best(np.array([chunk_id for chunk_id, *_ in rows], dtype=np.int64), scores, k)


def _frequencies(rows: Sequence[tuple[int, bytes, bytes, int]], hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    """How often each chunk holds each term, shape (n_chunks, n_terms)."""
    terms = np.frombuffer(b"".join(terms for _, terms, _, _ in rows), dtype="<u8")
    counts = np.frombuffer(b"".join(counts for _, _, counts, _ in rows), dtype="<u4")
    chunks = np.repeat(np.arange(len(rows)), [len(terms) // 8 for _, terms, _, _ in rows])
    order = np.argsort(hashes)
    places = np.minimum(np.searchsorted(hashes[order], terms), hashes.size - 1)
    asked = hashes[order][places] == terms
    frequencies = np.zeros((len(rows), hashes.size))
    frequencies[chunks[asked], order[places[asked]]] = counts[asked]
    return frequencies


# Questions are read as texts only where they were not tokenised, or were changed since by a process of a version that
# does not tokenise them.
POSTINGS = """
SELECT v.version, k.tokenizer_id, p.chunk_id, p.terms, p.frequencies, p.length,
    CASE WHEN cardinality(p.questions) = cardinality(c.questions) THEN p.questions END,
    CASE WHEN cardinality(p.questions) IS DISTINCT FROM cardinality(c.questions) THEN nullif(c.questions, '{}') END,
    d.title, c.heading_path, c.text
FROM kb_versions v
JOIN kb_knowledgebase k ON k.id = v.knowledge_base_id
LEFT JOIN (
    kb_chunkpostings p JOIN kb_chunk c ON c.id = p.chunk_id AND c.enabled JOIN kb_document d ON d.id = c.document_id
) ON p.knowledge_base_id = v.knowledge_base_id AND p.tokenizer_id = %(tokenizer)s
WHERE v.knowledge_base_id = %(kb)s
"""

CHANGES = """
WITH change AS MATERIALIZED (
    SELECT chunk_id, bool_or(operation = 'reset') AS is_reset FROM kb_chunkchange
    WHERE knowledge_base_id = %(kb)s AND version > %(base)s GROUP BY chunk_id LIMIT %(limit)s + 1
)
SELECT v.version, k.tokenizer_id, change.chunk_id, change.is_reset, p.terms, p.frequencies, p.length,
    p.packed, p.unread, p.title, p.heading_path, p.text
FROM kb_versions v
JOIN kb_knowledgebase k ON k.id = v.knowledge_base_id
LEFT JOIN (
    change LEFT JOIN LATERAL (
        -- A look-up by chunk, whatever the statistics of a table just filled may say: the limit keeps the planner from
        -- reading all rows once, the sum from reading the knowledge base's rows for each chunk.
        SELECT p.terms, p.frequencies, p.length,
            CASE WHEN cardinality(p.questions) = cardinality(c.questions) THEN p.questions END AS packed,
            CASE WHEN cardinality(p.questions) IS DISTINCT FROM cardinality(c.questions) THEN nullif(c.questions, '{}') END AS unread,
            d.title, c.heading_path, c.text
        FROM kb_chunkpostings p JOIN kb_chunk c ON c.id = p.chunk_id AND c.enabled
            JOIN kb_document d ON d.id = c.document_id
        WHERE p.chunk_id = change.chunk_id AND p.tokenizer_id = %(tokenizer)s AND p.knowledge_base_id + 0 = %(kb)s
            AND (SELECT count(*) <= %(limit)s AND NOT bool_or(is_reset) FROM change)  -- else nobody reads them
        LIMIT 1
    ) p ON true
) ON true
WHERE v.knowledge_base_id = %(kb)s
"""

MIN_CHANGES_TO_MERGE = 500
CHANGED_SHARE_TO_MERGE = 0.02

LONG_LOGS = """
SELECT log.knowledge_base_id
FROM (SELECT knowledge_base_id, count(DISTINCT chunk_id) AS changed FROM kb_chunkchange GROUP BY 1) log
LEFT JOIN bm25_indexes i ON i.knowledge_base_id = log.knowledge_base_id
WHERE log.changed > greatest(%(min)s, %(share)s * coalesce(i.chunk_count, 0))
  AND (%(only)s::bigint[] IS NULL OR log.knowledge_base_id = ANY(%(only)s))
"""

MOVED = "the knowledge base has moved to another tokenizer: try again"


@dataclass(frozen=True, slots=True)
class Built:
    """Everything that an index holds, and the version that it holds; 0 for a knowledge base that was deleted."""

    version: int
    index: OkapiIndex
    characters: CharacterCounts
    questions: QuestionIndex


@dataclass(frozen=True, slots=True)
class Changes:
    """What to apply to an index of an older version."""

    version: int  # of the knowledge base when this was read
    chunk_ids: NDArray[np.int64]  # those that have changed, shape (n_changed,), ascending
    rows: tuple[tuple[int, bytes, bytes, int], ...]  # postings of those that are there and enabled
    texts: tuple[str, ...]  # theirs, as they are indexed
    questions: tuple[ChunkQuestions, ...]  # of those that have any


def build_index(kb_id: int, tokenizer_id: str) -> Built:
    """Raises ScopeOutdated where the knowledge base has another tokenizer by now, so that these postings are no longer complete."""
    counter = CharacterCounter()
    questions: list[ChunkQuestions] = []
    simplify = _simplifier(tokenizer_id)

    def postings(rows: Iterable[Any]) -> Iterator[tuple[int, bytes, bytes, int]]:
        for _version, _tokenizer, chunk_id, terms, frequencies, length, packed, unread, *text in rows:
            if chunk_id is not None:
                counter.add(simplify(searchable_text(*text)))
                questions.extend(_questions(tokenizer_id, chunk_id, packed, unread))
                yield chunk_id, terms, frequencies, length

    with streaming_cursor(1_000) as cursor:
        cursor.execute(POSTINGS, {"kb": kb_id, "tokenizer": tokenizer_id}, binary=True)
        first = cursor.fetchone()
        if first is None:
            return Built(0, OkapiIndex.build(()), counter.counts(), QuestionIndex.build(()))
        version, active, *_ = first
        if active != tokenizer_id:
            raise ScopeOutdated(MOVED)
        index = OkapiIndex.build(postings(chain([first], cursor)))
    return Built(version, index, counter.counts(), QuestionIndex.build(questions))


def _questions(
    tokenizer_id: str, chunk_id: int, packed: list[bytes] | None, unread: list[str] | None
) -> Iterator[ChunkQuestions]:
    """A chunk's questions if it has any; what was written before they were tokenised is tokenised here."""
    cutter = tokenizer(tokenizer_id) if unread else None
    if packed is None and cutter is not None:
        packed = [count_postings(cutter(question)).packed for question in unread or ()]
    if packed:
        yield chunk_id, packed


def _simplifier(tokenizer_id: str) -> Callable[[str], str]:
    cutter = tokenizer(tokenizer_id)
    return str if cutter is None else cutter.simplify


def changes_since(kb_id: int, tokenizer_id: str, version: int, *, limit: int) -> Changes | None:
    """None where the log does not reach back to the version or holds more than `limit` chunks; raises as `build_index`."""
    values = {"kb": kb_id, "tokenizer": tokenizer_id, "base": version, "limit": limit}
    with binary_cursor() as cursor:
        found = cursor.execute(CHANGES, values, binary=True).fetchall()
    if not found or len(found) > limit:
        return None
    if found[0][1] != tokenizer_id:
        raise ScopeOutdated(MOVED)
    if any(is_reset for _, _, _, is_reset, *_ in found):
        return None
    changed = np.sort(np.array([row[2] for row in found if row[2] is not None], dtype=np.int64))
    there = [row for row in found if row[4] is not None]
    simplify = _simplifier(tokenizer_id)
    return Changes(
        found[0][0],
        changed,
        tuple((row[2], *row[4:7]) for row in there),
        tuple(simplify(searchable_text(*row[9:])) for row in there),
        tuple(found for row in there for found in _questions(tokenizer_id, row[2], *row[7:9])),
    )


def log_start(kb_id: int) -> int:
    """The oldest version of an index from which the change log leads to the present."""
    latest = "SELECT coalesce(max(version), 0) FROM kb_chunkchange WHERE knowledge_base_id = %s AND operation = 'reset'"
    return int(fetch_all(latest, [kb_id])[0][0])


def long_change_logs(kb_ids: list[int] | None = None) -> list[int]:
    """The knowledge bases, or those of the given ones, of which so much has changed that a new base is due."""
    values = {"min": MIN_CHANGES_TO_MERGE, "share": CHANGED_SHARE_TO_MERGE, "only": kb_ids}
    return [kb_id for (kb_id,) in fetch_all(LONG_LOGS, values)]
