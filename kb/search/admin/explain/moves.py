"""How far each stage moved a candidate: from its best rank in a channel to the fused one, the reranker's, the final one."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.search.admin.stage_labels import stage_label
from retrieval.types import Candidate

FINAL = "final"
_LATER = ("fused", "rerank")


@dataclass(frozen=True, slots=True)
class Move:
    """How far a stage moved a candidate, from the stage before it: up is positive."""

    places: int
    words: str

    @property
    def distance(self) -> int:
        return abs(self.places)


def moves(candidate: Candidate, final_rank: int | None) -> dict[str, Move]:
    """The moves of a candidate, by the stage that moved it; `FINAL` is the last one of a result.

    Args:
        candidate: with its ranks.
        final_rank: its place among the results; None: it is none of them.
    """
    return {
        stage: _move(before, rank_before, rank)
        for (before, rank_before), (stage, rank) in _steps(candidate, final_rank)
    }


def _steps(candidate: Candidate, final_rank: int | None) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    channels = [(rank, stage) for stage, rank in candidate.ranks.items() if stage not in _LATER]
    way = [(stage, rank) for rank, stage in sorted(channels)[:1]]
    way += [(stage, candidate.ranks[stage]) for stage in _LATER if stage in candidate.ranks]
    if final_rank is not None:
        way.append((FINAL, final_rank))
    return pairwise(way)


def _move(before: str, rank_before: int, rank: int) -> Move:
    places = rank_before - rank
    known = {"n": abs(places), "rank": rank_before, "stage": stage_label("fusion" if before == "fused" else before)}
    if places == 0:
        return Move(0, _("the same rank as in “%(stage)s”") % known)
    if places > 0:
        words = ngettext(
            "up %(n)d place from rank %(rank)d in “%(stage)s”",
            "up %(n)d places from rank %(rank)d in “%(stage)s”",
            places,
        )
    else:
        words = ngettext(
            "down %(n)d place from rank %(rank)d in “%(stage)s”",
            "down %(n)d places from rank %(rank)d in “%(stage)s”",
            -places,
        )
    return Move(places, words % known)
