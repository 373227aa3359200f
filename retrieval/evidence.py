"""What of a query counts as evidence: its telling words, and the characters and pairs of scripts without spaces."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from retrieval.cache import Recent
from retrieval.character_counts import CharacterCounts, counts, query_codes
from retrieval.protocols import Scope, Tokenizer
from retrieval.tokenize import CHINESE_PARTICLES_ALONE, CHINESE_STOP_WORDS, ENGLISH_FUNCTION_WORDS
from retrieval.types import Analysis, Passage, Ranking, Trace

CHARACTERS = "characters"
# Of a query, which may be a long text: what comes after that adds little, and would cost each passage as much again.
MOST_TERMS = 512
MOST_CHARACTERS = 256


class Wording(NamedTuple):
    """One way to put a query: as it is, as one of its sub-queries, or with another name of a concept."""

    terms: tuple[str, ...]  # distinct
    codes: NDArray[np.uint32]  # ascending; see `query_codes`


def wordings(analysis: Analysis, kb_id: int, tokenizer: Tokenizer) -> list[Wording]:
    """The wordings that have terms, with what tells in them.

    Characters are those of the core of the question; of a variant, whose text is not kept, pairs count within its words.
    """
    found = []
    for query in analysis.queries:
        variants = query.variants_by_kb.get(kb_id, ())
        texts = (tokenizer.simplify(query.intent or query.text), *map("\n".join, variants))
        for text, tokens in zip(texts, (query.tokens(kb_id), *variants), strict=True):
            if tokens:
                terms = _telling(tokens, function_terms(tokenizer))
                found.append(Wording(terms, query_codes(text[:MOST_CHARACTERS], terms)))
    return found


def _telling(tokens: Iterable[str], without: Set[str]) -> tuple[str, ...]:
    """The first distinct words that tell what a query is about.

    Function words, which are rare in a small knowledge base, do not count where there are others. A word of characters
    within another one would count its characters once more: without those AUROC on cmrc2018-reject rises from .961 to .963.
    """
    terms = tuple(dict.fromkeys(tokens))
    terms = (tuple(term for term in terms if term not in without) or terms)[:MOST_TERMS]
    within = {part for term in terms if counts(term) for part in _parts(term)}
    return tuple(term for term in terms if term not in within)


def _parts(term: str) -> Iterator[str]:
    """What stands within a term and is shorter."""
    return (term[start:end] for start in range(len(term)) for end in range(start + 1, len(term) + (start > 0)))


MOST_TOKENIZERS = 64
_function_terms: Recent[str, frozenset[str]] = Recent(MOST_TOKENIZERS)  # each counts 1


def function_terms(tokenizer: Tokenizer) -> frozenset[str]:
    """The terms that a tokenizer makes of function words; kept for those tokenizers that were used last."""
    if (terms := _function_terms.get(tokenizer.id)) is None:
        words_of_both = CHINESE_STOP_WORDS | CHINESE_PARTICLES_ALONE | ENGLISH_FUNCTION_WORDS
        terms = frozenset(term for word in words_of_both for term in tokenizer(word))
        _function_terms.put(tokenizer.id, terms, 1)
    return terms


def searched_texts(passages: Iterable[Passage | None], tokenizer: Tokenizer) -> list[str]:
    """The passages as they were indexed, in the characters that were; empty for a candidate without passage."""
    return ["" if each is None else tokenizer.simplify(each.searchable) for each in passages]


@dataclass(frozen=True, slots=True, eq=False)
class CharacterEvidence:
    """How much of a query's characters and pairs the candidates of a knowledge base hold, from one look at their texts."""

    counts: CharacterCounts
    ways: Sequence[Wording]
    codes: NDArray[np.uint32]  # of all wordings, ascending
    chunk_ids: NDArray[np.int64]  # ascending
    held: NDArray[np.float64]  # the saturation of each of these chunks with each code

    @classmethod
    def of(
        cls, counts: CharacterCounts, ways: Sequence[Wording], chunk_ids: NDArray[np.int64], texts: Sequence[str]
    ) -> Self:
        """Chunk ids ascending, and the text of each as it was indexed."""
        codes = np.unique(np.concatenate([way.codes for way in ways]))
        return cls(counts, ways, codes, chunk_ids, counts.saturation(codes, texts))

    def saturation(self, chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Shape (n_chunks, n_codes), of chunks that are among these."""
        return self.held[np.searchsorted(self.chunk_ids, chunk_ids)]

    def adds(self, chunk_ids: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        """What each code of each wording adds to the scores of chunks that are among these, (n_chunks, n_codes) each."""
        adds = self.saturation(chunk_ids) * self.counts.most(self.codes)
        return [adds[:, np.searchsorted(self.codes, way.codes)] for way in self.ways]


def character_rankings(
    scopes: Sequence[Scope],
    rankings: Sequence[Ranking],
    passages: Mapping[int, Passage],
    analysis: Analysis,
    trace: Trace,
) -> tuple[list[Ranking], dict[int, CharacterEvidence]]:
    """All candidates of a knowledge base by BM25 over words, pairs and characters together; see `character_counts`.

    None, and no span, for a query without such characters, and for a knowledge base whose keyword index has not answered.
    Beside them what the candidates hold of the characters, by knowledge base.
    """
    tokenizers = {scope.kb_id: scope.tokenizer for scope in scopes}
    found, evidence = [], {}
    for keywords in rankings:
        tokenizer = tokenizers[keywords.kb_id]
        counts, of_words = keywords.characters, keywords.score
        if counts is None or of_words is None or tokenizer is None:
            continue
        ways = wordings(analysis, keywords.kb_id, tokenizer)
        if not any(way.codes.size for way in ways):
            continue
        with trace.span(CHARACTERS, kb_id=keywords.kb_id) as detail:
            own = np.unique(np.concatenate([each.chunk_ids for each in rankings if each.kb_id == keywords.kb_id]))
            texts = searched_texts(map(passages.__getitem__, own.tolist()), tokenizer)
            held = evidence[keywords.kb_id] = CharacterEvidence.of(counts, ways, own, texts)
            scores = np.nan_to_num(of_words(own)) + np.max([each.sum(axis=1) for each in held.adds(own)], axis=0)
            order = np.lexsort((own, -scores))
            order = order[scores[order] > 0]
            detail["found"] = order.size
        found.append(
            Ranking(
                CHARACTERS,
                keywords.kb_id,
                own[order],
                scores[order],
                score=lambda wanted, own=own, scores=scores: scores[np.searchsorted(own, wanted)],  # type: ignore[misc]
            )
        )
    return found, evidence
