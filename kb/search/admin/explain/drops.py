"""What each stage of an explained search dropped, chunk by chunk."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.content.models import Chunk
from kb.search.admin.explain.rows import Row
from kb.search.admin.labels import listed, stage_label
from kb.search.services.search import SearchOutcome
from retrieval.config import RetrievalConfig
from retrieval.trace import Dropped

MOST_LISTED = 100
# The stage of the page, where it is not what cut a candidate or dropped a chunk.
_SHOWN_AT = {"parent": "selection", "per_source": "selection", "top_k": "selection", "vector_only": "fusion"}


@dataclass(frozen=True, slots=True)
class DroppedChunk:
    """A chunk that a stage dropped.

    Attributes:
        url: of its row, where it was a candidate, or of its own page; blank where it is gone or not to be seen.
        words: why it was dropped, with the figures.
    """

    chunk_id: int
    title: str
    url: str
    words: str


@dataclass(frozen=True, slots=True)
class Drops:
    """What one stage dropped; `chunks` are the first ones, best first."""

    count: int
    chunks: tuple[DroppedChunk, ...]

    @property
    def unlisted(self) -> int:
        return self.count - len(self.chunks)


def drops(outcome: SearchOutcome, rows: Iterable[Row], principal: Principal) -> dict[str, Drops]:
    """What was dropped, by stage of the page, in at most one query.

    Args:
        outcome: of an explained search.
        rows: its candidates.
        principal: who may see the titles of the chunks that are no candidates.
    """
    found: dict[str, list[Dropped | Row]] = {}
    for dropped in outcome.result.dropped:
        found.setdefault(_SHOWN_AT.get(dropped.stage, dropped.stage), []).append(dropped)
    for row in rows:
        if row.cut_by:
            found.setdefault(_SHOWN_AT.get(row.cut_by, row.cut_by), []).append(row)
    first = {stage: each[:MOST_LISTED] for stage, each in found.items()}
    early = [each.chunk_id for chunks in first.values() for each in chunks if isinstance(each, Dropped)]
    words = _Words(outcome, _titles(early, principal))
    return {stage: Drops(len(found[stage]), tuple(map(words.of, chunks))) for stage, chunks in first.items()}


def _titles(chunk_ids: Iterable[int], principal: Principal) -> dict[int, str]:
    """What the chunks that the principal may see are called."""
    wanted = list(chunk_ids)
    if not wanted:
        return {}
    chunks = Chunk.objects.visible_to(principal).filter(pk__in=wanted)
    named = chunks.values_list("pk", "document__title", "document__source", "position")
    return {
        pk: _("%(title)s, chunk %(number)d") % {"title": title or source or _("untitled"), "number": position + 1}
        for pk, title, source, position in named
    }


class _Words:
    """Tells of the dropped chunks of one search."""

    def __init__(self, outcome: SearchOutcome, titles: Mapping[int, str]) -> None:
        self._configs = {scope.kb_id: scope.config for scope in outcome.wiring.pipeline.scopes}
        self._titles = titles

    def of(self, dropped: Dropped | Row) -> DroppedChunk:
        if isinstance(dropped, Row):
            return DroppedChunk(dropped.chunk_id, dropped.name, f"#chunk-{dropped.chunk_id}", dropped.cut_words)
        title = self._titles.get(dropped.chunk_id)
        url = reverse("admin:kb_chunk_change", args=[dropped.chunk_id]) if title else ""
        shown = title or _("chunk %(number)d") % {"number": dropped.chunk_id}
        return DroppedChunk(dropped.chunk_id, shown, url, self._why(dropped))

    def _why(self, dropped: Dropped) -> str:
        if dropped.stage == "channels":
            return _("Too far back in every channel: %(places)s.") % {"places": listed(self._places(dropped))}
        if dropped.stage == "dedupe":
            return _("Chunk %(id)d stands for its content.") % {"id": dropped.represented_by}
        if dropped.stage == "vector_only":
            return _("Not found by vectors, which alone count without a reranker.")
        return _("It was deleted since the index was read, or you may not see it.")

    def _places(self, dropped: Dropped) -> Iterator[str]:
        for channel, rank in dropped.ranks.items():
            depth = _depth(channel, self._configs[dropped.kb_id])
            words = _("rank %(rank)d in “%(channel)s”, whose first %(depth)d go on")
            yield words % {"rank": rank, "channel": stage_label(channel), "depth": depth}


def _depth(channel: str, config: RetrievalConfig) -> int:
    return config.vector_candidates if channel in {"vector", "question"} else config.bm25_candidates
