"""BM25 of one chunk, term by term, and which words its text shares with the query without sharing the terms."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from kb.content.models.documents import Chunk
from kb.index.services.chunk_batches import searchable_text_of
from kb.quality.why_not.services.types import TermRow, Terms
from retrieval.bm25 import OkapiIndex
from retrieval.dictionary import MAX_WORD_CHARACTERS, DictionaryWord
from retrieval.postings import hash_terms
from retrieval.protocols import Tokenizer
from retrieval.segmenters import SEGMENTABLE
from retrieval.tokenize import JiebaTokenizer, normalize
from retrieval.types import Analysis

MOST_TERMS = 64
MOST_WORDS = 5
LEAST_CHARACTERS = 2
MOST_KNOWN_WORDS = 2_000
"""A dictionary of more words takes too long to load for a try, which then goes without it."""

MOST_QUERY_CHARACTERS = 300
"""Words in common are looked for from each place of the query, so in the beginning of a long one only."""


def terms_of(index: OkapiIndex, cutter: Tokenizer, analysis: Analysis, chunk: Chunk) -> Terms:
    """BM25 of a chunk for the query itself, without its sub-queries.

    Args:
        index: the one that was searched.
        cutter: the knowledge base's tokenizer.
        analysis: of the query.
        chunk: read with its document.
    """
    text = searchable_text_of(chunk)
    in_chunk = Counter(cutter(text))
    own = Counter(analysis.tokens(chunk.knowledge_base_id))
    terms = list(dict.fromkeys(analysis.search_tokens(chunk.knowledge_base_id)))[:MOST_TERMS]
    hashes, ids = hash_terms(terms), np.array([chunk.pk], dtype=np.int64)
    counts = np.array([max(own[term], 1) for term in terms])
    columns = zip(
        terms,
        index.idf(hashes).tolist(),
        index.frequencies(hashes, ids)[0].tolist(),
        (index.contributions(hashes, ids)[0] * counts).tolist(),
        strict=True,
    )
    written = _folded(text, cutter)
    rows = tuple(
        TermRow(
            term=term,
            in_query=own[term],
            is_other=term not in own,
            idf=idf,
            in_chunks=_holders(index, term),
            in_chunk=held,
            contribution=contribution,
            is_written=not held and _is_word(term) and term in written,
        )
        for term, idf, held, contribution in columns
    )
    shared = in_chunk.keys() & own.keys()
    words = dict.fromkeys(
        [row.term for row in rows if row.is_written]
        + [
            word
            for word in _common_words(_folded(analysis.text, cutter), written)
            if not shared.issuperset(cutter(word))
        ]
    )
    joining = _joining(list(words)[:MOST_WORDS], cutter, analysis.text, text)
    return Terms(rows, tuple(in_chunk.items()), index.chunk_count, joining)


def _joining(words: Sequence[str], cutter: Tokenizer, query: str, text: str) -> tuple[str, ...]:
    """The words that query and chunk would both be cut into if the dictionary had them: some never prevail there."""
    if not words or not isinstance(cutter, JiebaTokenizer):
        return ()
    options = cutter.options
    known = options.dictionary if len(options.dictionary) <= MOST_KNOWN_WORDS else ()
    changed = JiebaTokenizer(replace(options, dictionary=(*known, *map(DictionaryWord, words))))
    both = set(changed(query)) & set(changed(text))
    return tuple(word for word in words if word in both)


def _is_word(term: str) -> bool:
    """Whether it depends on the dictionary that a term is found: other scripts are cut by rules."""
    return len(term) >= LEAST_CHARACTERS and SEGMENTABLE.fullmatch(term) is not None


def _holders(index: OkapiIndex, term: str) -> int:
    found, _scores = index.search(hash_terms([term]), max(index.chunk_count, 1))
    return int(found.size)


def _folded(text: str, cutter: Tokenizer) -> str:
    return cutter.simplify(normalize(text)).casefold()


def _common_words(query: str, text: str) -> Iterator[str]:
    """The longest pieces of Chinese that stand in both, from left to right in the query."""
    place = 0
    query = query[:MOST_QUERY_CHARACTERS]
    while place < len(query):
        length = 0
        while (
            length < MAX_WORD_CHARACTERS
            and place + length < len(query)
            and SEGMENTABLE.fullmatch(query[place : place + length + 1])
            and query[place : place + length + 1] in text
        ):
            length += 1
        if length >= LEAST_CHARACTERS:
            yield query[place : place + length]
        place += max(length, 1)
