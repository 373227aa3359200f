"""Why a chunk was not found, as programs read it."""

from dataclasses import asdict
from typing import Any

from kb.base.messages import degradation_as_json
from kb.quality.why_not.services.remedies import remedies
from kb.quality.why_not.services.types import Remedy, Step, Terms, WhyNot
from kb.quality.why_not.services.words import sentence, verdict_sentence


def why_not_as_json(why: WhyNot) -> dict[str, Any]:
    """The response of POST /api/v1/why-not/, which `manage.py why_not --json` prints too."""
    result, profile, verdict = why.outcome.result, why.outcome.wiring.profile, why.verdict
    return {
        "query": result.query,
        "chunk": chunk_as_json(why),
        "found": why.rank is not None,
        "rank": why.rank,
        "verdict": {
            "stage": str(verdict.stage),
            "reason": verdict.reason and str(verdict.reason),
            "sentence": verdict_sentence(why),
        },
        "stages": [_step_as_json(step, why) for step in why.steps],
        "places": [asdict(place) for place in why.places],
        "terms": why.terms and _terms_as_json(why.terms),
        "remedies": [_remedy_as_json(remedy) for remedy in remedies(why)],
        "profile": {"name": profile.name, "version": profile.version},
        "degraded": [degradation_as_json(degradation) for degradation in result.degraded],
    }


def chunk_as_json(why: WhyNot) -> dict[str, Any]:
    chunk = why.chunk
    return {
        "chunk_id": chunk.pk,
        "document_id": chunk.document_id,
        "knowledge_base_id": chunk.knowledge_base_id,
        "title": chunk.document.title,
        "source": chunk.document.source,
        "page": chunk.page,
        "text": chunk.text,
        "enabled": chunk.enabled,
    }


def _step_as_json(step: Step, why: WhyNot) -> dict[str, Any]:
    return {
        "stage": str(step.stage),
        "state": str(step.state),
        "reason": step.reason and str(step.reason),
        "sentence": sentence(step, why),
        "figures": dict(step.figures),
    }


def _terms_as_json(terms: Terms) -> dict[str, Any]:
    return {
        "query": [asdict(row) for row in terms.rows],
        "missing": list(terms.missing),
        "chunk": [{"term": term, "count": count} for term, count in terms.chunk_terms],
        "words": list(terms.words),
    }


def _remedy_as_json(remedy: Remedy) -> dict[str, Any]:
    request = remedy.request
    return {
        "code": str(remedy.code),
        "about": remedy.key,
        "settings": dict(remedy.settings),
        "suggestions": list(remedy.suggestions),
        "chunk_id": remedy.chunk_id,
        "command": remedy.command,
        "request": request
        and {
            "knowledge_base_ids": list(request.knowledge_base_ids),
            "filters": None if request.filters is None else request.filters.as_dict(),
        },
    }
