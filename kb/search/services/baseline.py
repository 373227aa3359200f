"""What searches of a knowledge base do without by how it and the server are set up, which its pages say once.

Pages show of a search only what differs from this; the API's `degraded` is complete.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import F, Func, JSONField

from kb.access.models import KnowledgeBase
from kb.profiles.services import environment_config
from kb.providers import embedding_models
from retrieval.config import RetrievalConfig
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import Degradation, DegradationCode
from retrieval.model_files import libraries_available, local_path
from retrieval.rerankers.cross_encoder import CrossEncoderReranker
from retrieval.rerankers.overlap import OverlapReranker
from retrieval.selection import ScoreScale

# Only what somebody has chosen, or not set up, has these codes; a model that is set up and fails has others.
CHOSEN = frozenset({DegradationCode.HASHING_EMBEDDER, DegradationCode.LLM_NOT_CONFIGURED})


def baseline(kb: KnowledgeBase) -> tuple[DegradationCode, ...]:
    """The codes of what all searches of a knowledge base, read with its profile, do without; no model is asked."""
    found = {
        DegradationCode.HASHING_EMBEDDER: kb.embedding_model == HASHING_MODEL_ID,
        DegradationCode.RERANKER_UNAVAILABLE: not has_reranker(environment_config().override(kb.profile.settings)),
        DegradationCode.LLM_NOT_CONFIGURED: embedding_models.generator() is None,
    }
    return tuple(code for code, is_so in found.items() if is_so)


def beyond_baseline(
    degraded: Iterable[Degradation], knowledge_bases: Iterable[KnowledgeBase]
) -> tuple[Degradation, ...]:
    """The degradations of a search of knowledge bases, read with their profiles, that are not in the baseline of any."""
    unusual = tuple(each for each in degraded if each.code not in CHOSEN)
    if not any(each.code == DegradationCode.RERANKER_UNAVAILABLE for each in unusual):
        return unusual
    usual = {code for kb in knowledge_bases for code in baseline(kb)}
    return tuple(each for each in unusual if each.code not in usual)


def usual_codes() -> frozenset[DegradationCode]:
    """What `beyond_baseline` leaves out of searches that are told of by their rows, whose profiles nobody reads."""
    return CHOSEN if has_reranker(environment_config()) else CHOSEN | {DegradationCode.RERANKER_UNAVAILABLE}


def beyond_usual(degraded: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As `beyond_baseline`, of the degradations of a row."""
    usual = usual_codes()
    return [each for each in degraded if each["code"] not in usual]


def codes_beyond_usual() -> Func:
    """As `beyond_usual`, in the database: the codes of a row's `degraded`, an array of JSON."""
    is_unusual = " && ".join(f'@ != "{code}"' for code in sorted(usual_codes()))
    return Func(
        F("degraded"),
        template=f"jsonb_path_query_array(%(expressions)s, '$[*].code ? ({is_unusual})')",
        output_field=JSONField(),
    )


def has_reranker(config: RetrievalConfig) -> bool:
    """Whether a model that reads query and passage together is set up, and is on this machine where it is to run here."""
    return any(map(_is_here, embedding_models.rerankers(config, OverlapReranker({}))))


def _is_here(link: Any) -> bool:
    if isinstance(link, CrossEncoderReranker):
        return libraries_available() and local_path(link.model_id) is not None
    return bool(link.scale == ScoreScale.CROSS_ENCODER)
