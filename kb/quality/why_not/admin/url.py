"""The URL of the page for a search and a chunk, and what it remembers of the search before a remedy."""

from dataclasses import dataclass
from typing import Any

from django.core import signing
from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.quality.debug.admin.form import parameters_of
from kb.quality.why_not.services.types import Stage, WhyNot
from kb.quality.why_not.services.words import channel_in_words, stage_in_words
from kb.search.services.search import SearchRequest

SALT = "why-not"
ABSENT = "–"
EXACT = ("vector", "bm25", "question")
STAGES = ("fused", "rerank")


def why_not_url(request: SearchRequest, chunk_id: int | None, before: str = "") -> str:
    """The page, for a search as its form could ask for it.

    Args:
        request: the search.
        chunk_id: the chunk; None: not chosen yet.
        before: from `remembered`, to compare with.
    """
    asked = {
        "overrides": request.overrides,
        "filters": None if request.filters is None else request.filters.as_dict(),
        "profile": request.profile,
        "profile_version": request.profile_version,
        "latency_budget_ms": request.latency_budget_ms,
    }
    query = QueryDict(mutable=True)
    query.setlist("kb", [str(kb_id) for kb_id in request.knowledge_base_ids])
    query["q"] = request.query
    query.update(parameters_of(asked))
    if chunk_id is not None:
        query["chunk"] = str(chunk_id)
    if before:
        query["before"] = before
    return f"{reverse('admin:why_not')}?{query.urlencode()}"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a remedy has changed: the verdicts, and a row for each figure (label, before, after, whether it differs)."""

    before: str
    after: str
    is_found_now: bool
    rows: tuple[tuple[str, str, str, bool], ...]


def remembered(why: WhyNot) -> str:
    """What the page after a remedy compares with, signed, so that a link cannot make it up."""
    return signing.dumps({"stage": str(why.verdict.stage), "places": _places(why)}, salt=SALT, compress=True)


def effect(token: str, why: WhyNot) -> Effect | None:
    """The search before a remedy beside this one; None for a token that this installation has not made."""
    try:
        before: dict[str, Any] = signing.loads(token, salt=SALT)
    except signing.BadSignature:
        return None
    was, now = before["places"], _places(why)
    labels = [*EXACT, *STAGES, "score", "result"]
    rows = [
        (_label(name), str(was.get(name, ABSENT)), str(now.get(name, ABSENT)), was.get(name) != now.get(name))
        for name in labels
        if name in was or name in now
    ]
    return Effect(_in_words(before["stage"]), _in_words(str(why.verdict.stage)), why.rank is not None, tuple(rows))


def _places(why: WhyNot) -> dict[str, str]:
    """What there is to say of the chunk, by name: exact ranks in the channels, then its ranks as a candidate."""
    found: dict[str, str] = {}
    for place in why.places:
        if place.channel in EXACT and place.rank is not None:
            best = found.get(place.channel)
            found[place.channel] = str(min(place.rank, int(best)) if best else place.rank)
    candidate = next((c for c in why.outcome.result.candidates if c.chunk_id == why.chunk.pk), None)
    if candidate is not None:
        found |= {stage: str(candidate.ranks[stage]) for stage in STAGES if stage in candidate.ranks}
        if "rerank" in candidate.scores:
            found["score"] = f"{candidate.scores['rerank']:.4f}"
    if why.rank is not None:
        found["result"] = str(why.rank)
    return found


def _label(name: str) -> str:
    if name in EXACT:
        return _("%(channel)s, exact rank") % {"channel": channel_in_words(name)}
    return {
        "fused": _("Fused rank"),
        "rerank": _("Rank after the reranker"),
        "score": _("Score of the reranker"),
        "result": _("Place among the results"),
    }[name]


def _in_words(stage: str) -> str:
    if stage == Stage.FOUND:
        return _("found")
    return _("lost at “%(stage)s”") % {"stage": stage_in_words(Stage(stage))}
