"""Retrieval profiles: an edit makes a new version, publishing makes a version the one that the name stands for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from kb.conf import environment_config
from kb.models import KnowledgeBase, Principal, RetrievalProfile
from kb.services.errors import NotAllowed, Rejected
from kb.stores.locks import Purpose, lock_until_commit
from retrieval.config import RetrievalConfig
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
        if not RetrievalProfile.objects.filter(name=name).exists():
            RetrievalProfile.objects.create(
                name=name,
                description=description,
                settings=dict(settings),
                published=True,
                published_at=timezone.now(),
            )


def starting_profile(embedding_model: str) -> RetrievalProfile:
    """The profile that a new knowledge base starts with, by its embedding model."""
    return RetrievalProfile.objects.live(KEYWORD_LED if embedding_model == HASHING_MODEL_ID else DEFAULT)


def configuration_of(settings: Mapping[str, Any]) -> RetrievalConfig:
    """The configuration that a profile's settings make over the environment.

    Raises:
        InvalidConfiguration: a setting is unknown or out of range.
    """
    return environment_config().override(settings)


def create_version(
    principal: Principal,
    name: str,
    settings: Mapping[str, Any],
    *,
    description: str = "",
    knowledge_base: KnowledgeBase | None = None,
) -> RetrievalProfile:
    """Saves settings as the next version of a profile, or as the first of a new one: a draft until it is published.

    Args:
        principal: who saves it.
        name: of the profile.
        settings: those that differ from the environment, by the names of RetrievalConfig.
        description: what is different.
        knowledge_base: whose own profile a new one becomes; None: shared. Another version stays where the first is.

    Raises:
        Rejected: the name is blank or belongs to a profile of another place.
        NotAllowed: the principal may not change profiles there.
        InvalidConfiguration: a setting is unknown or out of range.
    """
    name = name.strip()
    if not name:
        raise Rejected("profile_unnamed", _("Give the profile a name."))
    configuration_of(settings)
    with transaction.atomic():
        lock_until_commit(Purpose.PROFILES)
        newest = RetrievalProfile.objects.filter(name=name).order_by("-version").first()
        if newest is not None and newest.knowledge_base != knowledge_base:
            raise Rejected(
                "profile_name_taken",
                _("There is a profile named “%(name)s” elsewhere: choose another name.") % {"name": name},
            )
        draft = RetrievalProfile(
            name=name,
            version=newest.version + 1 if newest else 1,
            knowledge_base=knowledge_base,
            description=description,
            settings=dict(settings),
            created_by_id=principal.user.pk,
        )
        draft.save()
        if not RetrievalProfile.objects.editable_by(principal).filter(pk=draft.pk).exists():
            raise NotAllowed(
                _(
                    "You may not change the profile “%(name)s”: save it under another name, for a knowledge base of yours."
                )
                % {"name": name}
            )
    return draft


def publish(principal: Principal, profile: RetrievalProfile) -> int:
    """Makes a version the one that its name stands for; an earlier version is rolled back to in the same way.

    Knowledge bases that search by another version of it move to this one.

    Returns:
        How many knowledge bases have moved.

    Raises:
        NotAllowed: the principal may not change the profile.
    """
    with transaction.atomic():
        lock_until_commit(Purpose.PROFILES)
        if not RetrievalProfile.objects.editable_by(principal).filter(pk=profile.pk).exists():
            raise NotAllowed(_("You may not publish the profile “%(name)s”.") % {"name": profile.name})
        versions = RetrievalProfile.objects.filter(name=profile.name)
        versions.filter(published=True).exclude(pk=profile.pk).update(published=False)
        versions.filter(pk=profile.pk).update(published=True, published_at=timezone.now())
        moved = (
            KnowledgeBase.objects.filter(profile__name=profile.name).exclude(profile=profile).update(profile=profile)
        )
    profile.refresh_from_db()
    return moved


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that two versions resolve differently."""

    name: str
    before: Any
    after: Any


def differences(before: RetrievalProfile, after: RetrievalProfile) -> list[SettingDifference]:
    """What differs between two versions, by the names of RetrievalConfig, with the environment under both."""
    first, second = configuration_of(before.settings).as_dict(), configuration_of(after.settings).as_dict()
    return [SettingDifference(name, value, second[name]) for name, value in first.items() if value != second[name]]
