"""One content, one candidate: the best rank counts, and every place where it was found is in its provenance.

Texts that say almost the same, found by their terms: MinHash signatures, banded, and the exact share for what is alike.

Sources: Broder, "On the resemblance and containment of documents", 1997; the bands are those of Leskovec, Rajaraman,
Ullman, "Mining of Massive Datasets", chapter 3.
"""

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from retrieval.types import Passage, Provenance, Ranking

Score = Callable[[NDArray[np.int64]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """Rankings in which every content stands for itself."""

    rankings: tuple[Ranking, ...]  # one for each channel and knowledge base
    # The chunk that represents its content, by each chunk that no longer stands in a ranking.
    dropped: Mapping[int, int]
    found: tuple[Ranking, ...]  # what the channels found, query by query

    def provenance_of(self, chunk_ids: Collection[int]) -> dict[int, tuple[Provenance, ...]]:
        """Every place where each of some candidates, or a chunk of the same content, was found.

        Ranks and scores are as the channel gave them, before chunks without a passage were taken out.
        """
        wanted = {chunk_id: chunk_id for chunk_id in chunk_ids}
        wanted |= {member: stands for member, stands in self.dropped.items() if stands in wanted}
        places: dict[int, list[Provenance]] = {chunk_id: [] for chunk_id in chunk_ids}
        for ranking in self.found:
            found = zip(ranking.chunk_ids.tolist(), ranking.scores.tolist(), strict=True)
            for rank, (chunk_id, score) in enumerate(found, start=1):
                if chunk_id in wanted:
                    place = Provenance(ranking.channel, ranking.kb_id, chunk_id, ranking.query, rank, score)
                    places[wanted[chunk_id]].append(place)
        return {chunk_id: tuple(found) for chunk_id, found in places.items()}


def fingerprint(passage: Passage) -> bytes:
    """SHA-256 of url, snippet (the path of headings) and content, each with its length before it."""
    parts = (passage.source, *passage.heading_path, passage.text)
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).digest()


def merge_queries(rankings: Sequence[Ranking]) -> list[Ranking]:
    """Makes one ranking of those of one channel and knowledge base for several queries.

    A chunk keeps its best rank and the score that it has there; equal ranks go by the position of the query, then by
    chunk id. A chunk's exact score is the best over the queries. A ranking that is alone is returned as it is.
    """
    by_place: dict[tuple[str, int], list[Ranking]] = defaultdict(list)
    for ranking in rankings:
        by_place[ranking.channel, ranking.kb_id].append(ranking)
    return [same[0] if len(same) == 1 else _merge(same) for same in by_place.values()]


def deduplicate(rankings: Sequence[Ranking], passages: Mapping[int, Passage]) -> Deduplicated:
    """Merges the queries of each channel, then the chunks of equal content across channels and knowledge bases.

    Chunks without a passage (it is gone, or may not be seen) are taken out first. What comes from elsewhere has the
    same content as a chunk where the texts are the same but for blanks: the addresses and headings of the two may well
    differ. The chunk stands for both.

    Of equal chunks the one with the best rank in any ranking stands for all; ties go by the order in which the rankings
    name their knowledge bases, then by chunk id. In a channel's ranking of its knowledge base it takes the best rank that
    any of them has in that channel; rankings of other knowledge bases lose them. Scores follow the chunks, so they need
    not descend. NaN is the score of one that its own knowledge base's channel has not found: a score of another
    knowledge base, perhaps of another model, is not one of this.
    """
    merged = [_with_passages(ranking, passages) for ranking in merge_queries(rankings)]
    alike = _equal_chunks(merged, passages)
    if not alike:
        return Deduplicated(tuple(merged), {}, tuple(rankings))
    representatives = _representatives(merged, alike)
    # By channel, the best rank of each content that several chunks have.
    best: dict[str, dict[int, int]] = defaultdict(dict)
    for ranking in merged:
        ranks = best[ranking.channel]
        for rank, chunk_id in enumerate(ranking.chunk_ids.tolist(), start=1):
            if chunk_id in representatives:
                first = representatives[chunk_id]
                ranks[first] = min(rank, ranks.get(first, rank))
    homes = {chunk_id: ranking.kb_id for ranking in merged for chunk_id in ranking.chunk_ids.tolist()}
    kept = []
    for ranking in merged:
        own = {each: rank for each, rank in best[ranking.channel].items() if homes[each] == ranking.kb_id}
        kept.append(_represented(ranking, representatives, own))
    dropped = {member: first for member, first in representatives.items() if member != first}
    return Deduplicated(tuple(kept), dropped, tuple(rankings))


def _merge(rankings: Sequence[Ranking]) -> Ranking:
    ids = np.concatenate([ranking.chunk_ids for ranking in rankings])
    ranks = np.concatenate([np.arange(len(ranking.chunk_ids)) for ranking in rankings])
    queries = np.concatenate([np.full(len(ranking.chunk_ids), ranking.query) for ranking in rankings])
    order = np.lexsort((ids, queries, ranks))
    first = order[np.sort(np.unique(ids[order], return_index=True)[1])]
    return dataclasses.replace(
        rankings[0],
        chunk_ids=ids[first],
        scores=np.concatenate([ranking.scores for ranking in rankings])[first],
        query=min(ranking.query for ranking in rankings),
        detail={key: value for ranking in reversed(rankings) for key, value in ranking.detail.items()},
        degradations=tuple(dict.fromkeys(each for ranking in rankings for each in ranking.degradations)),
        lexicon=next((ranking.lexicon for ranking in rankings if ranking.lexicon is not None), None),
        score=_best_score([ranking.score for ranking in rankings if ranking.score is not None]),
    )


def _best_score(functions: Sequence[Score]) -> Score | None:
    if len(functions) < 2:
        return functions[0] if functions else None

    def score(chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        best: NDArray[np.float64] = np.fmax.reduce([function(chunk_ids) for function in functions])
        return best

    return score


def _with_passages(ranking: Ranking, passages: Mapping[int, Passage]) -> Ranking:
    present = [chunk_id in passages for chunk_id in ranking.chunk_ids.tolist()]
    if all(present):
        return ranking
    return dataclasses.replace(ranking, chunk_ids=ranking.chunk_ids[present], scores=ranking.scores[present])


def _equal_chunks(rankings: Iterable[Ranking], passages: Mapping[int, Passage]) -> list[list[int]]:
    """Chunks of equal fingerprints; only those of one text are hashed, as most have no equal."""
    found = dict.fromkeys(chunk_id for ranking in rankings for chunk_id in ranking.chunk_ids.tolist())
    if any(chunk_id < 0 for chunk_id in found):
        # What comes from elsewhere joins the first group of chunks that has its text.
        by_text: dict[str, dict[bytes, list[int]]] = defaultdict(dict)
        for chunk_id in sorted(found, key=lambda each: each < 0):
            passage = passages[chunk_id]
            groups = by_text[" ".join(passage.text.split())]
            key = next(iter(groups), b"") if chunk_id < 0 else fingerprint(passage)
            groups.setdefault(key, []).append(chunk_id)
        return [members for groups in by_text.values() for members in groups.values() if len(members) > 1]
    similar: dict[str, list[int]] = defaultdict(list)
    for chunk_id in found:
        similar[passages[chunk_id].text].append(chunk_id)
    equal: dict[bytes, list[int]] = defaultdict(list)
    for chunk_ids in similar.values():
        if len(chunk_ids) > 1:
            for chunk_id in chunk_ids:
                equal[fingerprint(passages[chunk_id])].append(chunk_id)
    return [chunk_ids for chunk_ids in equal.values() if len(chunk_ids) > 1]


def _representatives(rankings: Sequence[Ranking], alike: Sequence[Sequence[int]]) -> dict[int, int]:
    """The chunk that stands for each of those that have equals, itself included."""
    bases = list(dict.fromkeys(ranking.kb_id for ranking in rankings))
    places: dict[int, tuple[int, int]] = {}
    for ranking in rankings:
        base = bases.index(ranking.kb_id)
        for rank, chunk_id in enumerate(ranking.chunk_ids.tolist(), start=1):
            places[chunk_id] = min((rank, base), places.get(chunk_id, (rank, base)))
    representatives: dict[int, int] = {}
    for members in alike:
        first = min(members, key=lambda chunk_id: (chunk_id < 0, places[chunk_id], chunk_id))
        representatives |= dict.fromkeys(members, first)
    return representatives


def _represented(ranking: Ranking, representatives: Mapping[int, int], own: Mapping[int, int]) -> Ranking:
    """The ranking with representatives in place of the chunks they stand for; they go before others of their rank.

    `own` holds the best ranks in the channel of the representatives that are chunks of the ranking's knowledge base.
    """
    places: dict[int, tuple[int, float]] = {}
    found = zip(ranking.chunk_ids.tolist(), ranking.scores.tolist(), strict=True)
    for rank, (chunk_id, score) in enumerate(found, start=1):
        first = representatives.get(chunk_id)
        if first is None:
            places[chunk_id] = (rank, score)
        elif first in own:
            places.setdefault(first, (own[first], score))
    for first, rank in own.items():
        places.setdefault(first, (rank, np.nan))
    order = sorted(places, key=lambda chunk_id: (places[chunk_id][0], chunk_id not in representatives, chunk_id))
    return dataclasses.replace(
        ranking,
        chunk_ids=np.array(order, dtype=np.int64),
        scores=np.array([places[chunk_id][1] for chunk_id in order], dtype=np.float64),
    )


# Two texts with nine of ten terms in common are a candidate pair with probability 0.9999997, with eight 0.999, with
# half 0.6.
BANDS: Final = 14
ROWS: Final = 4
# Of texts that share a band each is paired with so many that follow it: a phrase of all texts makes no square of them.
NEIGHBOURS: Final = 8
# What is found in common of two sketches is off by so much in one of ten thousand pairs that have 0.8 in common.
MARGIN: Final = 0.2
_PAIRS_AT_ONCE: Final = 100_000
_HASHES: Final = np.random.default_rng(20_260_101).integers(
    1, 2**63, size=(2, BANDS * ROWS), dtype=np.uint64
) | np.uint64(1)
_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)

Ids = NDArray[np.int64]
Terms = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Sketches:
    """Sketches of texts, a row each, to find those that are alike.

    Texts that share a key in its column are a candidate pair; two have about as large a share of marks in common as of
    terms.
    """

    keys: NDArray[np.uint64]  # shape (n_texts, BANDS)
    marks: NDArray[np.uint8]  # shape (n_texts, BANDS * ROWS)

    @classmethod
    def of(cls, terms: Terms, starts: Ids) -> Self:
        """Of the 64-bit hashes of all texts' terms, one text after another, and where those of each begin; none is empty."""
        keys = np.zeros((len(starts), BANDS), dtype=np.uint64)
        marks = np.empty((len(starts), BANDS * ROWS), dtype=np.uint8)
        for each, (mask, factor) in enumerate(_HASHES.T):
            band = each // ROWS
            least = _least(terms, starts, mask, factor)
            marks[:, each] = least >> np.uint64(56) ^ least
            keys[:, band] = (keys[:, band] ^ least) * _MIX
            keys[:, band] ^= keys[:, band] >> np.uint64(29)
        return cls(keys, marks)

    @classmethod
    def joined(cls, parts: "Sequence[Sketches]") -> Self:
        return cls(np.concatenate([part.keys for part in parts]), np.concatenate([part.marks for part in parts]))


def _least(terms: Terms, starts: Ids, mask: np.uint64, factor: np.uint64) -> Terms:
    if not len(starts):
        return np.empty(0, dtype=np.uint64)
    hashed = (terms ^ mask) * factor
    hashed ^= hashed >> np.uint64(32)
    return np.minimum.reduceat(hashed * _MIX, starts)


def candidate_pairs(sketches: Sketches, alike: float) -> Ids:
    """Pairs of texts that may have at least a share of their terms in common; few that have are missing.

    Shape (n_pairs, 2): positions, the lower first, each pair once.
    """
    pairs = _sharing_a_key(sketches.keys)
    marks = sketches.marks
    batches = np.split(pairs, range(_PAIRS_AT_ONCE, len(pairs), _PAIRS_AT_ONCE))
    shares = ((marks[batch[:, 0]] == marks[batch[:, 1]]).mean(axis=1) for batch in batches)
    return np.concatenate([batch[share >= alike - MARGIN] for batch, share in zip(batches, shares, strict=True)])


def _sharing_a_key(keys: NDArray[np.uint64]) -> Ids:
    found = [np.empty(0, dtype=np.int64)]
    count = len(keys)
    for band in range(keys.shape[1]):
        order = np.argsort(keys[:, band], kind="stable")
        key = keys[order, band]
        for distance in range(1, min(NEIGHBOURS, count - 1) + 1):
            same = np.flatnonzero(key[distance:] == key[:-distance])
            if not same.size:
                break
            # Positions within a key ascend, since the sort is stable.
            found.append(order[same] * count + order[same + distance])
    pairs = np.unique(np.concatenate(found))
    return np.stack([pairs // max(count, 1), pairs % max(count, 1)], axis=1)


def shared_shares(first: Sequence[Terms], second: Sequence[Terms]) -> NDArray[np.float64]:
    """The Jaccard similarity of pairs of sets of terms, each term once: shared ones as a share of all, shape (n_pairs,)."""
    sizes = np.array([[len(one), len(other)] for one, other in zip(first, second, strict=True)], dtype=np.int64)
    if not sizes.size:
        return np.empty(0)
    pair = np.repeat(np.concatenate([np.arange(len(sizes))] * 2), sizes.T.reshape(-1))
    terms = np.concatenate([*first, *second])
    order = np.lexsort((terms, pair))
    pair, terms = pair[order], terms[order]
    is_shared = (pair[1:] == pair[:-1]) & (terms[1:] == terms[:-1])
    shared = np.bincount(pair[1:][is_shared], minlength=len(sizes))
    shares: NDArray[np.float64] = shared / np.maximum(sizes.sum(axis=1) - shared, 1)
    return shares


def groups_of(pairs: Ids, count: int) -> list[Ids]:
    """What pairs of positions, shape (n_pairs, 2), connect: the positions of each group of two or more, ascending."""
    labels = np.arange(count)
    first, second = pairs.T
    while True:
        # Each takes the lowest label around it, and whoever bore that one's label follows: few rounds, however long a chain.
        before = labels.copy()
        lowest = np.minimum(before[first], before[second])
        for bearers in (first, second, before[first], before[second]):
            np.minimum.at(labels, bearers, lowest)
        labels = labels[labels]
        if np.array_equal(labels, before):
            break
    members = np.unique(pairs)
    if not members.size:
        return []
    members = members[np.argsort(labels[members], kind="stable")]
    return np.split(members, np.flatnonzero(np.diff(labels[members])) + 1)
