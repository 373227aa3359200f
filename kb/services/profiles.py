from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_noop

from kb.models import RetrievalProfile
from retrieval.embedders.hashing import HASHING_MODEL_ID

DEFAULT = "default"
KEYWORD_LED = "keyword-led"
WEIGHTED = "weighted"
BALANCED = "balanced"

# A hashed vector knows words, not meaning: as an equal voice it costs recall, as a faint one it only breaks ties.
BUILT_IN: dict[str, tuple[str, Mapping[str, Any]]] = {
    DEFAULT: (gettext_noop("Every setting is inherited from the environment."), {}),
    KEYWORD_LED: (
        gettext_noop(
            "Keywords lead. For knowledge bases on the hashing embedder, whose vectors compare words and not meaning: "
            "at the usual weight they would push better keyword matches down."
        ),
        {"vector_weight": 0.1, "keyword_weight": 0.9},
    ),
    WEIGHTED: (
        gettext_noop(
            "The sum of both channels’ scores, meaning counting most. For an embedding model that was trained on texts like "
            "these; it reads how much better a match is, where ranks only tell that it is."
        ),
        {"fusion": "weighted"},
    ),
    BALANCED: (
        gettext_noop(
            "The sum of both channels’ scores in equal parts. For a small or general embedding model, and for texts in which "
            "exact words matter."
        ),
        {"fusion": "weighted", "hybrid_vector_weight": 0.5, "hybrid_text_weight": 0.5},
    ),
}


def ensure_built_in_profiles() -> None:
    for name, (description, settings) in BUILT_IN.items():
        RetrievalProfile.objects.get_or_create(
            name=name, version=1, defaults={"description": description, "settings": dict(settings)}
        )


def starting_profile(embedding_model: str) -> RetrievalProfile:
    """The profile that a new knowledge base starts with, by its embedding model."""
    return newest_profile(KEYWORD_LED if embedding_model == HASHING_MODEL_ID else DEFAULT)


def newest_profile(name: str) -> RetrievalProfile:
    """The newest version of a profile.

    Raises:
        RetrievalProfile.DoesNotExist: there is none of that name.
    """
    return RetrievalProfile.objects.filter(name=name).latest("version")
