"""Why a search has not found a chunk: the stages in their order, and the first that has lost it."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef
from django.utils.translation import gettext as _
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotVisible
from kb.content.models import Chunk, Document
from kb.index.filters import Filters, chunk_ids
from kb.index.models import ChunkEmbedding, ChunkPostings
from kb.quality.why_not.services.places import (
    CAPS,
    Places,
    PlaceState,
    Reason,
    Stage,
    State,
    Step,
    Terms,
    WhyNot,
    find_places,
    terms_of,
)
from kb.quality.why_not.services.sentences import sentence
from kb.search.services.search import SearchOutcome, SearchRequest, search
from retrieval.config import RetrievalConfig
from retrieval.scope import Scope
from retrieval.selection import result_count, stands_for_parent
from retrieval.trace import Dropped
from retrieval.types import Candidate


def why_not_found(principal: Principal, request: SearchRequest, chunk_id: int) -> WhyNot:
    """Runs a search, explained and kept out of the log, and follows one chunk through it.

    What the trace of the search does not hold is computed exactly, however deep the chunk stands.

    Raises:
        NotVisible: the chunk, a knowledge base or the profile does not exist for this principal.
        InvalidConfiguration: an override is unknown or out of range.
        NoChannelAvailable: no channel could answer.
    """
    chunk = _read(principal, chunk_id)
    outcome = search(principal, dataclasses.replace(request, explain=True, log=False))
    return _Walk(principal, request, chunk, outcome).explain()


def _read(principal: Principal, chunk_id: int) -> Chunk:
    """The chunk with its document, its knowledge base, and the ids of what it is indexed by."""
    postings = ChunkPostings.objects.filter(chunk=OuterRef("pk")).values("tokenizer_id")
    vectors = ChunkEmbedding.objects.filter(chunk=OuterRef("pk"), kind=ChunkEmbedding.Kind.CONTENT).values("model")
    found: Chunk | None = (
        Chunk.objects.visible_to(principal)
        .select_related("document", "knowledge_base")
        .annotate(tokenized_by=ArraySubquery(postings), embedded_by=ArraySubquery(vectors))
        .filter(pk=chunk_id)
        .first()
    )
    if found is None:
        raise NotVisible(_("There is no chunk with the id %(id)s: look for it by its text.") % {"id": chunk_id})
    return found


class _Walk:
    """One chunk's way through one search."""

    def __init__(self, principal: Principal, request: SearchRequest, chunk: Chunk, outcome: SearchOutcome) -> None:
        self._principal = principal
        self._request = request
        self._chunk = chunk
        self._outcome = outcome
        self._result = outcome.result
        self._config: RetrievalConfig = outcome.wiring.config
        searched = {scope.kb_id: scope for scope in outcome.wiring.pipeline.scopes}
        self._scope: Scope | None = searched.get(chunk.knowledge_base_id)

    def explain(self) -> WhyNot:
        steps: list[Step] = []
        is_lost = False
        for step in self._steps():
            # A stage after the one that lost the chunk has never seen it, unless it says something by itself.
            shown = Step(step.stage, State.NOT_ASKED) if is_lost and step.stage not in BY_THEMSELVES else step
            steps.append(dataclasses.replace(shown, sentence=sentence(shown, self._places.places)))
            is_lost = is_lost or step.state is State.LOST
        return WhyNot(
            request=self._request,
            chunk=self._chunk,
            outcome=self._outcome,
            steps=tuple(steps),
            places=self._places.places,
            terms=self._terms,
            chunk_count=self._places.index.chunk_count if self._places.index else 0,
        )

    def _steps(self) -> Iterator[Step]:
        figures = {"name": self._chunk.knowledge_base.name}
        if self._scope is None:
            yield Step(Stage.KNOWLEDGE_BASE, State.LOST, Reason.NOT_SEARCHED, figures)
            yield from (Step(stage, State.NOT_ASKED) for stage in list(Stage)[1:])
            return
        yield Step(Stage.KNOWLEDGE_BASE, State.PASSED, figures=figures)
        yield self._document()
        is_on = self._chunk.enabled
        yield Step(Stage.ENABLED, State.PASSED) if is_on else Step(Stage.ENABLED, State.LOST, Reason.DISABLED)
        yield self._postings()
        yield self._embedding()
        yield self._filters()
        yield self._channels()
        yield self._dedupe()
        yield self._fusion()
        yield self._rerank()
        yield self._gate()
        yield self._parent()
        yield self._per_source()
        yield self._top_k()
        rank = self._rank_of(self._candidate)
        yield Step(Stage.FOUND, State.PASSED if rank else State.NOT_ASKED, figures={"rank": rank})

    # -- What is known of the chunk --------------------------------------------------------------------------------------
    @cached_property
    def _kb(self) -> KnowledgeBase:
        """As it was read for the search."""
        return next(kb for kb in self._outcome.knowledge_bases if kb.pk == self._chunk.knowledge_base_id)

    @cached_property
    def _candidate(self) -> Candidate | None:
        return next((c for c in self._result.candidates if c.chunk_id == self._chunk.pk), None)

    @cached_property
    def _dropped(self) -> Dropped | None:
        """What the search tells of a chunk that it found, and that is no candidate."""
        return next((dropped for dropped in self._result.dropped if dropped.chunk_id == self._chunk.pk), None)

    @cached_property
    def _has_postings(self) -> bool:
        return self._kb.tokenizer_id in self._chunk.tokenized_by  # type: ignore[attr-defined]

    @cached_property
    def _has_vector(self) -> bool:
        return self._kb.embedding_model in self._chunk.embedded_by  # type: ignore[attr-defined]

    @cached_property
    def _only(self) -> NDArray[np.int64] | None:
        """The chunks of its knowledge base that pass the filters; None: all."""
        filters = self._request.filters
        return None if filters is None else chunk_ids(self._chunk.knowledge_base_id, self._principal, filters)

    @cached_property
    def _passes_filters(self) -> bool:
        return self._only is None or bool(np.isin(self._chunk.pk, self._only))

    @cached_property
    def _places(self) -> Places:
        """Empty where no channel may find it."""
        if self._scope is None or not self._chunk.enabled or not self._passes_filters:
            return Places(())
        return find_places(self._outcome, self._scope, self._chunk.pk, self._only)

    @cached_property
    def _terms(self) -> Terms | None:
        index, scope = self._places.index, self._scope
        if index is None or scope is None or scope.tokenizer is None:
            return None
        return terms_of(index, scope.tokenizer, self._result.analysis, self._chunk)

    @property
    def _is_carried(self) -> bool:
        """Whether a channel has found it, or a chunk that stands for it."""
        return self._candidate is not None or self._is_dropped_by("dedupe", "vector_only")

    def _is_dropped_by(self, *stages: str) -> bool:
        return self._dropped is not None and self._dropped.stage in stages

    # -- Before the search -----------------------------------------------------------------------------------------------
    def _document(self) -> Step:
        """A document that is not ready has lost a chunk only where the chunk is in no index: else searches find it."""
        document = self._chunk.document
        figures = {"document_id": document.pk, "title": str(document), "error_code": document.error_code}
        if document.status == Document.Status.READY:
            return Step(Stage.DOCUMENT, State.PASSED, figures=figures)
        reason = Reason.FAILED if document.status == Document.Status.FAILED else Reason.NOT_READY
        is_indexed = self._has_postings or self._has_vector
        return Step(Stage.DOCUMENT, State.WEAKENED if is_indexed else State.LOST, reason, figures)

    def _postings(self) -> Step:
        figures = {"tokenizer": self._kb.tokenizer_id}
        if self._has_postings:
            return Step(Stage.POSTINGS, State.PASSED, figures=figures)
        return Step(Stage.POSTINGS, self._without_one(other=self._has_vector), Reason.NO_POSTINGS, figures)

    def _embedding(self) -> Step:
        model, others = self._kb.embedding_model, sorted(self._chunk.embedded_by)  # type: ignore[attr-defined]
        figures = {"model": model, "others": [each for each in others if each != model]}
        if self._has_vector:
            return Step(Stage.EMBEDDING, State.PASSED, figures=figures)
        reason = Reason.OTHER_MODEL if others else Reason.NO_VECTOR
        return Step(Stage.EMBEDDING, self._without_one(other=self._has_postings), reason, figures)

    def _without_one(self, *, other: bool) -> State:
        """A chunk that lacks what one channel needs is lost there unless the other channel could have it, and has."""
        may_be_found = self._chunk.enabled and self._passes_filters
        return State.WEAKENED if other and (self._is_carried or not may_be_found) else State.LOST

    def _filters(self) -> Step:
        filters = self._request.filters
        if filters is None or filters.is_empty or not self._chunk.enabled:
            return Step(Stage.FILTERS, State.NOT_ASKED)
        if self._passes_filters:
            return Step(Stage.FILTERS, State.PASSED, figures={"filters": filters.as_dict()})
        return Step(Stage.FILTERS, State.LOST, Reason.FILTERED, {"failed": self._failed_filters(filters)})

    def _failed_filters(self, filters: Filters) -> list[str]:
        """The names of the filters that its document does not pass, those on metadata with their key."""
        one = Filters(document_ids=(self._chunk.document_id,))

        def passes(**conditions: Any) -> bool:
            found = chunk_ids(self._chunk.knowledge_base_id, self._principal, dataclasses.replace(one, **conditions))
            return found is None or bool(np.isin(self._chunk.pk, found))

        failed = []
        for name in filters.as_dict():
            if name == "document_ids":
                if self._chunk.document_id not in (filters.document_ids or ()):
                    failed.append(name)
            elif name == "metadata":
                failed += [f"metadata.{each.names[0]}" for each in filters.metadata if not passes(metadata=(each,))]
            elif not passes(**{name: getattr(filters, name)}):
                failed.append(name)
        return failed

    # -- The search ------------------------------------------------------------------------------------------------------
    def _channels(self) -> Step:
        found = {place.channel: place.rank for place in self._places.places if place.state is PlaceState.CANDIDATE}
        if self._is_carried:
            return Step(Stage.CHANNELS, State.PASSED, figures={"ranks": found})
        return Step(Stage.CHANNELS, State.LOST, self._why_in_no_channel())

    def _why_in_no_channel(self) -> Reason:
        if not self._result.analysis.text:
            return Reason.BLANK_QUERY
        states = {place.state for place in self._places.places}
        reasons = {
            PlaceState.CANDIDATE: Reason.CHANGED_MEANWHILE,  # the channel has it now, and had it not for the search
            PlaceState.MISSED: Reason.MISSED_BY_INDEX,
            PlaceState.DEEPER: Reason.TOO_DEEP,
            PlaceState.FAILED: Reason.CHANNEL_FAILED,
        }
        return next((reason for state, reason in reasons.items() if state in states), Reason.NOTHING_IN_COMMON)

    def _dedupe(self) -> Step:
        if not self._is_dropped_by("dedupe") or self._dropped is None:
            return Step(Stage.DEDUPE, State.PASSED)
        stands = next((c for c in self._result.candidates if c.chunk_id == self._dropped.represented_by), None)
        figures = {
            "chunk_id": self._dropped.represented_by,
            "rank": self._rank_of(stands),
            "cut_by": stands.cut_by if stands else "vector_only",
        }
        return Step(Stage.DEDUPE, State.LOST, Reason.DOUBLE, figures)

    def _fusion(self) -> Step:
        if self._candidate is None:
            return Step(Stage.FUSION, State.LOST, Reason.VECTOR_ONLY)
        depth = max(self._config.rerank_candidates, self._config.top_k)
        figures = {
            "rank": self._candidate.ranks["fused"],
            "score": self._candidate.scores["fused"],
            "depth": depth if self._config.use_rerank else None,
            "candidates": len(self._result.candidates),
        }
        if self._candidate.cut_by == "fusion":
            return Step(Stage.FUSION, State.LOST, Reason.BEYOND_CUT, figures)
        return Step(Stage.FUSION, State.PASSED, figures=figures)

    def _rerank(self) -> Step:
        if not self._config.use_rerank:
            return Step(Stage.RERANK, State.NOT_ASKED, Reason.RERANKER_OFF)
        detail: Mapping[str, Any] = next(
            (span.detail for span in self._result.spans if span.stage == "rerank"), {"reranker": None}
        )
        if self._candidate is None or "rerank" not in self._candidate.scores:
            return Step(Stage.RERANK, State.WEAKENED, Reason.NO_RERANKER)
        figures = {
            "reranker": detail["reranker"],
            "rank": self._candidate.ranks["rerank"],
            "score": self._candidate.scores["rerank"],
            "candidates": detail["scored"],
        }
        return Step(Stage.RERANK, State.PASSED, figures=figures)

    def _gate(self) -> Step:
        # The score that met the threshold, on the scale of the results.
        stage = {"cosine": "vector", "rrf": "fused"}.get(self._result.score_scale, "rerank")
        scores = self._candidate.scores if self._candidate else {}
        figures = {
            "score": scores.get("rerank", scores.get(stage)),
            "threshold": self._result.threshold,
            "scale": self._result.score_scale,
        }
        if self._candidate is not None and self._candidate.cut_by == "gate":
            return Step(Stage.GATE, State.LOST, Reason.BELOW, figures)
        reason = None if self._result.threshold else Reason.GATE_OPEN
        return Step(Stage.GATE, State.PASSED, reason, figures)

    def _parent(self) -> Step:
        if self._chunk.parent_id is None:
            return Step(Stage.PARENT, State.NOT_ASKED, Reason.NO_PARENT)
        if self._candidate is not None and self._candidate.cut_by == "parent":
            stands = stands_for_parent(self._result.candidates, self._candidate)
            return Step(Stage.PARENT, State.LOST, Reason.SAME_PARENT, {"chunk_id": stands})
        return Step(Stage.PARENT, State.PASSED)

    def _per_source(self) -> Step:
        if self._config.general_retrieval:
            return Step(Stage.PER_SOURCE, State.NOT_ASKED, Reason.NO_CAPS)
        kind = self._chunk.document.source_type
        cap = CAPS.get(kind, CAPS["book"])  # other kinds count as books
        before = [c.passage.source_type if c.passage else "book" for c in self._selected_before]
        place = sum(CAPS.get(each, CAPS["book"]) == cap for each in before) + 1
        figures = {"kind": kind, "cap": getattr(self._config, cap), "place": place}
        if self._candidate is not None and self._candidate.cut_by == "per_source":
            return Step(Stage.PER_SOURCE, State.LOST, Reason.CAP_FULL, figures)
        return Step(Stage.PER_SOURCE, State.PASSED, figures=figures)

    @property
    def _selected_before(self) -> list[Candidate]:
        """The candidates that the gate let pass and that stand before it."""
        before = []
        for candidate in self._result.candidates:
            if candidate.chunk_id == self._chunk.pk:
                break
            if candidate.cut_by not in ("fusion", "gate", "parent"):
                before.append(candidate)
        return before

    def _top_k(self) -> Step:
        # Those that their kind's cap took out have taken no place.
        place = sum(candidate.cut_by != "per_source" for candidate in self._selected_before) + 1
        figures = {"place": place, "count": result_count(self._config)}
        if self._candidate is not None and self._candidate.cut_by == "top_k":
            return Step(Stage.TOP_K, State.LOST, Reason.TOO_MANY, figures)
        return Step(Stage.TOP_K, State.PASSED, figures=figures)

    def _rank_of(self, candidate: Candidate | None) -> int | None:
        """Among the results."""
        ids = [hit.passage.chunk_id for hit in self._result.hits]
        return ids.index(candidate.chunk_id) + 1 if candidate and candidate.chunk_id in ids else None


BY_THEMSELVES = frozenset({Stage.DOCUMENT, Stage.ENABLED, Stage.POSTINGS, Stage.EMBEDDING, Stage.FILTERS})
