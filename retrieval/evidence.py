"""What of a query counts as evidence: its telling words, and the characters and pairs of scripts without spaces."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrieval.character_counts import query_codes
from retrieval.protocols import Scope, Tokenizer
from retrieval.tokenize import CHINESE_PARTICLES_ALONE, CHINESE_STOP_WORDS, ENGLISH_FUNCTION_WORDS
from retrieval.types import Analysis, Passage, Ranking

CHARACTERS = "characters"


class Wording(NamedTuple):
    """One way to put a query: as it is, as one of its sub-queries, or with another name of a concept."""

    terms: tuple[
        str, ...
    ]  # distinct; without function words where there are others, which are rare in a small knowledge base
    codes: NDArray[np.uint32]  # ascending; see `query_codes`


def wordings(analysis: Analysis, kb_id: int, tokenizer: Tokenizer) -> list[Wording]:
    """The wordings that have terms; of a variant, whose text is not kept, only pairs within words count."""
    found = []
    for query in analysis.queries:
        variants = query.variants_by_kb.get(kb_id, ())
        texts = (tokenizer.simplify(query.text), *map("\n".join, variants))
        for text, tokens in zip(texts, (query.tokens(kb_id), *variants), strict=True):
            if tokens:
                terms = tuple(dict.fromkeys(tokens))
                telling = tuple(term for term in terms if term not in function_terms(tokenizer)) or terms
                found.append(Wording(telling, query_codes(text, telling)))
    return found


_function_terms: dict[str, frozenset[str]] = {}


def function_terms(tokenizer: Tokenizer) -> frozenset[str]:
    """The terms that a tokenizer makes of function words; made once for each tokenizer."""
    if tokenizer.id not in _function_terms:
        words_of_both = CHINESE_STOP_WORDS | CHINESE_PARTICLES_ALONE | ENGLISH_FUNCTION_WORDS
        _function_terms[tokenizer.id] = frozenset(term for word in words_of_both for term in tokenizer(word))
    return _function_terms[tokenizer.id]


def searched_texts(passages: Iterable[Passage | None], tokenizer: Tokenizer) -> list[str]:
    """The passages as they were indexed, in the characters that were; empty for a candidate without passage."""
    return ["" if each is None else tokenizer.simplify(each.searchable) for each in passages]


def character_rankings(
    scopes: Sequence[Scope], rankings: Sequence[Ranking], passages: Mapping[int, Passage], analysis: Analysis
) -> list[Ranking]:
    """All candidates of a knowledge base by BM25 over words, pairs and characters together; see `character_counts`.

    None for a query without such characters, and for a knowledge base whose keyword index has not answered.
    """
    tokenizers = {scope.kb_id: scope.tokenizer for scope in scopes}
    found = []
    for keywords in rankings:
        tokenizer = tokenizers[keywords.kb_id]
        counts, of_words = keywords.characters, keywords.score
        if counts is None or of_words is None or tokenizer is None:
            continue
        codes = [wording.codes for wording in wordings(analysis, keywords.kb_id, tokenizer) if wording.codes.size]
        if not codes:
            continue
        own = np.unique(np.concatenate([each.chunk_ids for each in rankings if each.kb_id == keywords.kb_id]))
        texts = searched_texts([passages[chunk_id] for chunk_id in own.tolist()], tokenizer)
        sums = [counts.saturation(each, texts) @ counts.most(each) for each in codes]
        scores = np.nan_to_num(of_words(own)) + np.max(sums, axis=0)
        order = np.lexsort((own, -scores))
        order = order[scores[order] > 0]
        found.append(
            Ranking(
                CHARACTERS,
                keywords.kb_id,
                own[order],
                scores[order],
                score=lambda wanted, own=own, scores=scores: scores[np.searchsorted(own, wanted)],  # type: ignore[misc]
            )
        )
    return found
