"""What became of a chunk at each stage, in one sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _, gettext_noop

from kb.quality.why_not.services.places import Place, PlaceState, Reason, Stage, State, Step

# By stage and state, then by reason where a stage has several.
SENTENCES: Mapping[tuple[Stage, State | Reason], str] = {
    (Stage.KNOWLEDGE_BASE, State.PASSED): gettext_noop("Its knowledge base “%(name)s” was searched."),
    (Stage.KNOWLEDGE_BASE, Reason.NOT_SEARCHED): gettext_noop("Its knowledge base “%(name)s” was not searched."),
    (Stage.DOCUMENT, State.PASSED): gettext_noop("Its document “%(title)s” is ready."),
    (Stage.DOCUMENT, State.WEAKENED): gettext_noop(
        "Its document “%(title)s” is not ready; what was indexed of it before is still searched."
    ),
    (Stage.DOCUMENT, Reason.NOT_READY): gettext_noop(
        "Its document “%(title)s” is not processed yet, so the chunk is in no index."
    ),
    (Stage.DOCUMENT, Reason.FAILED): gettext_noop(
        "Its document “%(title)s” could not be processed, so the chunk is in no index."
    ),
    (Stage.ENABLED, State.PASSED): gettext_noop("It is switched on."),
    (Stage.ENABLED, Reason.DISABLED): gettext_noop("It is switched off, so no search finds it."),
    (Stage.POSTINGS, State.PASSED): gettext_noop("Its terms are in the keyword index."),
    (Stage.POSTINGS, Reason.NO_POSTINGS): gettext_noop(
        "It has no terms of the tokenizer in use, so keywords cannot find it."
    ),
    (Stage.EMBEDDING, State.PASSED): gettext_noop("It has a vector of the model %(model)s."),
    (Stage.EMBEDDING, Reason.NO_VECTOR): gettext_noop("It has no vector, so the vector channel cannot find it."),
    (Stage.EMBEDDING, Reason.OTHER_MODEL): gettext_noop(
        "It has a vector of the model %(others)s only, and the search compares those of %(model)s."
    ),
    (Stage.FILTERS, State.PASSED): gettext_noop("It passes the filters."),
    (Stage.FILTERS, State.NOT_ASKED): gettext_noop("No filter was given."),
    (Stage.FILTERS, Reason.FILTERED): gettext_noop("It does not pass the filters: %(failed)s."),
    (Stage.CHANNELS, State.PASSED): gettext_noop("It was found: %(ranks)s."),
    (Stage.CHANNELS, Reason.TOO_DEEP): gettext_noop("It stands too far down in every channel: %(places)s."),
    (Stage.CHANNELS, Reason.MISSED_BY_INDEX): gettext_noop(
        "The vector search has missed it: by its exact similarity it stands among the candidates (%(places)s)."
    ),
    (Stage.CHANNELS, Reason.CHANNEL_FAILED): gettext_noop(
        "The channel that could have found it did not answer: %(failed)s."
    ),
    (Stage.CHANNELS, Reason.NOTHING_IN_COMMON): gettext_noop(
        "No channel knows of anything that it has in common with the query."
    ),
    (Stage.CHANNELS, Reason.BLANK_QUERY): gettext_noop("The query holds nothing to search for."),
    (Stage.CHANNELS, Reason.CHANGED_MEANWHILE): gettext_noop(
        "What is searched has changed in this very moment: run it again."
    ),
    (Stage.DEDUPE, State.PASSED): gettext_noop("No other chunk of the same content stands for it."),
    (Stage.DEDUPE, Reason.DOUBLE): gettext_noop("Chunk %(chunk_id)s has the same content and stands for it: %(fate)s."),
    (Stage.FUSION, State.PASSED): gettext_noop("Fused rank %(rank)s of %(candidates)s candidates%(depth)s."),
    (Stage.FUSION, Reason.BEYOND_CUT): gettext_noop("Its fused rank is %(rank)s, and the first %(depth)s go on."),
    (Stage.FUSION, Reason.VECTOR_ONLY): gettext_noop(
        "Without a reranker only what the vectors find counts, and they have not found it."
    ),
    (Stage.RERANK, State.PASSED): gettext_noop(
        "The reranker %(reranker)s gives it %(score)s: rank %(rank)s of %(candidates)s."
    ),
    (Stage.RERANK, Reason.RERANKER_OFF): gettext_noop("The reranker is off."),
    (Stage.RERANK, Reason.NO_RERANKER): gettext_noop("No reranker could answer, so an earlier order counts."),
    (Stage.GATE, State.PASSED): gettext_noop(
        "Its score %(score)s reaches the threshold %(threshold)s on the scale %(scale)s."
    ),
    (Stage.GATE, Reason.GATE_OPEN): gettext_noop("The gate is open on the scale %(scale)s: no score is cut."),
    (Stage.GATE, Reason.BELOW): gettext_noop(
        "Its score %(score)s is below the threshold %(threshold)s on the scale %(scale)s."
    ),
    (Stage.PARENT, State.PASSED): gettext_noop("No other chunk of the same longer passage stands for it."),
    (Stage.PARENT, Reason.NO_PARENT): gettext_noop("It was not cut from a longer passage."),
    (Stage.PARENT, Reason.SAME_PARENT): gettext_noop(
        "Chunk %(chunk_id)s is a result and gives the longer passage that both were cut from, this one’s text included."
    ),
    (Stage.PER_SOURCE, State.PASSED): gettext_noop("It is number %(place)s of the %(cap)s of its kind, “%(kind)s”."),
    (Stage.PER_SOURCE, Reason.NO_CAPS): gettext_noop("Kinds of source have no caps."),
    (Stage.PER_SOURCE, Reason.CAP_FULL): gettext_noop(
        "The results of its kind, “%(kind)s”, are capped at %(cap)s, and it would be number %(place)s."
    ),
    (Stage.TOP_K, State.PASSED): gettext_noop("It has place %(place)s of %(count)s."),
    (Stage.TOP_K, Reason.TOO_MANY): gettext_noop("It would be result %(place)s, and the search gives %(count)s."),
    (Stage.FOUND, State.PASSED): gettext_noop("It is result %(rank)s."),
}


def sentence(step: Step, places: Sequence[Place]) -> str:
    """What a stage did with a chunk that has these places, in the reader's language."""
    for key in (step.reason if step.state is not State.WEAKENED else None, step.state, step.reason):
        if key is not None and (message := SENTENCES.get((step.stage, key))):
            return _(message) % _figures(step, places)
    return _("It was lost before.")


def verdict_sentence(verdict: Step) -> str:
    if verdict.stage is Stage.FOUND:
        return _("The search finds this chunk: %(sentence)s") % {"sentence": verdict.sentence}
    named = {"stage": stage_text(verdict.stage), "sentence": verdict.sentence}
    return _("Lost at the stage “%(stage)s”. %(sentence)s") % named


def _figures(step: Step, places: Sequence[Place]) -> dict[str, Any]:
    figures = {name: _as_text(value) for name, value in step.figures.items()}
    if step.stage is Stage.CHANNELS:
        figures |= {
            "ranks": _listed(
                _("%(channel)s rank %(rank)s") % {"channel": channel_text(each.channel), "rank": each.channel_rank}
                for each in places
                if each.state is PlaceState.CANDIDATE
            )
            or _("a chunk of the same content"),
            "places": _listed(
                _("%(channel)s rank %(rank)s of %(total)s (%(depth)s become candidates)")
                % {"channel": channel_text(each.channel), "rank": each.rank, "total": each.total, "depth": each.depth}
                for each in places
                if each.rank is not None
            ),
            "failed": _listed(channel_text(place.channel) for place in places if place.error),
        }
    if "threshold" in step.figures:
        figures["threshold"] = f"{step.figures['threshold']:g}"
    if step.stage is Stage.FILTERS:
        figures["failed"] = _listed(filter_text(name) for name in step.figures.get("failed", ()))
    if step.stage is Stage.FUSION and step.state is State.PASSED:
        depth = step.figures["depth"]
        figures["depth"] = _("; the first %(depth)s go on") % {"depth": depth} if depth else ""
    if step.reason is Reason.DOUBLE:
        rank, cut_by = step.figures["rank"], step.figures["cut_by"]
        stage = stage_text(Stage.FUSION if cut_by == "vector_only" else Stage(cut_by)) if cut_by else ""
        cut = _("it was cut by the stage “%(stage)s”") % {"stage": stage}
        figures["fate"] = _("it is result %(rank)s") % {"rank": rank} if rank else cut
    return figures


def _as_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1 else f"{value:g}"
    return _listed(map(str, value)) if isinstance(value, list) else str(value)


def _listed(parts: Any) -> str:
    return _(", ").join(dict.fromkeys(parts))


def stage_text(stage: Stage) -> str:
    return {
        Stage.KNOWLEDGE_BASE: _("Knowledge base"),
        Stage.DOCUMENT: _("Document"),
        Stage.ENABLED: _("Switched on"),
        Stage.POSTINGS: _("Keyword index"),
        Stage.EMBEDDING: _("Vector"),
        Stage.FILTERS: _("Filters"),
        Stage.CHANNELS: _("Channels"),
        Stage.DEDUPE: _("Deduplication"),
        Stage.FUSION: _("Fusion"),
        Stage.RERANK: _("Rerank"),
        Stage.GATE: _("Gate"),
        Stage.PARENT: _("Passage"),
        Stage.PER_SOURCE: _("Kind of source"),
        Stage.TOP_K: _("Top K"),
        Stage.FOUND: _("Results"),
    }[stage]


def channel_text(channel: str) -> str:
    return {
        "vector": _("Vector"),
        "bm25": _("BM25"),
        "question": _("Question"),
        "fts": _("Full text"),
        "lexical": _("N-grams"),
    }.get(channel, channel)


def filter_text(name: str) -> str:
    """A filter, by its name in `Filters`, one on metadata with its key."""
    field, _dot, key = name.partition(".")
    if key:
        return _("metadata “%(key)s”") % {"key": key}
    return {
        "document_ids": _("documents"),
        "tags": _("tags"),
        "concepts": _("concepts"),
        "source_types": _("source type"),
        "created_after": _("created after"),
        "created_before": _("created before"),
    }.get(field, field)
