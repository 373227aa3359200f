"""What the benchmarks search: tokens of chunks and of queries."""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrieval.postings import count_postings
from retrieval.tokenize import JiebaTokenizer

CHUNK_TERMS = 54
"""Distinct terms a chunk of the generated corpus holds on average, as in stard-law."""


@dataclass(frozen=True)
class Corpus:
    """Tokenised chunks and queries, and the passages that they were cut from where there are any."""

    name: str
    chunks: list[list[str]]
    queries: list[list[str]]
    passages: list[str]

    def rows(self):
        """The stored postings, as the database holds them; chunk ids start at 1."""
        for chunk_id, tokens in enumerate(self.chunks, start=1):
            postings = count_postings(tokens)
            yield chunk_id, postings.terms_bytes, postings.frequencies_bytes, postings.length


def read_beir(directory: Path, cache: Path) -> Corpus:
    """An evaluation set in BEIR layout, cut by the project's tokenizer; the tokens are kept in `cache`."""
    passages = [f"{entry['title']} {entry['text']}".strip() for entry in _lines(directory / "corpus.jsonl")]
    questions = [entry["text"] for entry in _lines(directory / "queries.jsonl")]
    tokenize = JiebaTokenizer()
    key = hashlib.sha256("\n".join([tokenize.id, *passages, *questions]).encode()).hexdigest()[:16]
    cached = cache / f"{directory.name}-{key}.json"
    if not cached.is_file():
        print(f"Cutting {len(passages)} passages, once ...", file=sys.stderr)
        cache.mkdir(parents=True, exist_ok=True)
        tokens = {"chunks": list(map(tokenize, passages)), "queries": list(map(tokenize, questions))}
        cached.write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    tokens = json.loads(cached.read_text(encoding="utf-8"))
    return Corpus(directory.name, tokens["chunks"], tokens["queries"], passages)


def generate(chunk_count: int, *, query_count: int = 1_500, vocabulary: int = 100_000, seed: int = 20) -> Corpus:
    """Chunks whose terms follow Zipf's law (flattened at its head, Mandelbrot), of log-normal lengths.

    A query is a sample of one chunk's terms, so it mixes frequent and rare ones; as a user's, it has some 15.
    """
    draw = np.random.default_rng(seed)
    shares = np.cumsum(1 / (np.arange(vocabulary) + 6) ** 1.05)
    words = np.array([f"t{rank}" for rank in range(vocabulary)], dtype=object)
    lengths = np.clip(draw.lognormal(np.log(0.9 * CHUNK_TERMS), 0.55, chunk_count), 5, 2_000).astype(int)
    tokens = words[np.searchsorted(shares, shares[-1] * draw.random(lengths.sum()))]
    chunks = [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]
    queries = []
    for chosen in draw.choice(chunk_count, query_count):
        terms = sorted(set(chunks[chosen]))
        queries.append(draw.choice(terms, min(len(terms), draw.integers(4, 28)), replace=False).tolist())
    return Corpus(f"generated, {chunk_count:,} chunks", chunks, queries, [])


def _lines(path: Path):
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
