"""Which of the candidates that passed the gate are results: so many in all, and of each kind of source so many."""

from collections import Counter
from collections.abc import Sequence

from retrieval.config import RetrievalConfig
from retrieval.types import Candidate

_OTHER_KINDS = "book"


def result_count(config: RetrievalConfig) -> int:
    """How many results a search gives at most: the fewest that any of its settings allows."""
    if config.general_retrieval:
        return min(config.general_final_count, config.rerank_top_k or config.top_k)
    most = sum(_caps(config).values())
    return min(most, config.rerank_top_k or most)


def select(candidates: Sequence[Candidate], config: RetrievalConfig) -> list[Candidate]:
    """Marks the candidates that are too many, in their order, the best ones first.

    Of the chunks of one longer passage, which is given in their place, the best one stands for all; the others take no
    place in any count. A general search counts all alike. Otherwise each kind of source has its cap, and one beyond it takes no place in the
    count of all; kinds without a cap of their own share that of books.

    Returns:
        All candidates; those cut here with `cut_by` "parent", "per_source" or "top_k", those cut before as they were.
    """
    caps = {} if config.general_retrieval else _caps(config)
    left = result_count(config)
    taken: Counter[str] = Counter()
    parents: set[int] = set()
    marked = []
    for candidate in candidates:
        kind = candidate.passage.source_type if candidate.passage else _OTHER_KINDS
        parent = candidate.passage.parent_id if candidate.passage else None
        if kind not in caps:
            kind = _OTHER_KINDS
        if candidate.cut_by is not None:
            marked.append(candidate)
        elif parent in parents:
            marked.append(candidate._replace(cut_by="parent"))
        elif caps and taken[kind] >= caps[kind]:
            marked.append(candidate._replace(cut_by="per_source"))
        elif left == 0:
            marked.append(candidate._replace(cut_by="top_k"))
        else:
            taken[kind] += 1
            left -= 1
            if parent is not None:
                parents.add(parent)
            marked.append(candidate)
    return marked


def stands_for_parent(candidates: Sequence[Candidate], cut: Candidate) -> int | None:
    """The result for which another chunk of the same longer passage was cut."""
    parent = cut.passage.parent_id if cut.passage else None
    others = (each for each in candidates if each.cut_by is None and each.passage and each.passage.parent_id == parent)
    return next((each.chunk_id for each in others), None) if parent is not None else None


def _caps(config: RetrievalConfig) -> dict[str, int]:
    return {"book": config.max_books, "video": config.max_videos, "qa": config.max_qa, "web": config.max_web}
