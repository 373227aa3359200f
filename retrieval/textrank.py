"""TextRank: words that stand near many telling words are telling themselves."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

WINDOW: Final = 5
DAMPING: Final = 0.85
MOST_ROUNDS: Final = 50
SETTLED: Final = 1e-4


def textrank(words: Sequence[str], *, window: int = WINDOW) -> Mapping[str, float]:
    """Ranks words by the words that they stand near, as PageRank ranks pages by links.

    Source: Mihalcea, Tarau, "TextRank: Bringing Order into Texts", 2004, with weighted edges.

    Args:
        words: of a text in their order, those that are no keywords left out.
        window: how many words in a row count as near each other.

    Returns:
        By word, its score; the sum is the number of different words, but for what words without neighbours lack.
    """
    weights: dict[str, dict[str, float]] = {word: defaultdict(float) for word in words}
    for start in range(len(words)):
        for other in words[start + 1 : start + window]:
            if other != words[start]:
                weights[words[start]][other] += 1.0
                weights[other][words[start]] += 1.0
    totals = {word: sum(near.values()) for word, near in weights.items()}
    scores = dict.fromkeys(weights, 1.0)
    for _round in range(MOST_ROUNDS):
        renewed = {
            word: 1 - DAMPING + DAMPING * sum(weight / totals[other] * scores[other] for other, weight in near.items())
            for word, near in weights.items()
        }
        change = max((abs(renewed[word] - scores[word]) for word in scores), default=0.0)
        scores = renewed
        if change < SETTLED:
            break
    return scores
