"""Retrieval profiles: an edit makes a new version, publishing makes a version the one that the name stands for."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q, QuerySet
from django.dispatch import Signal
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_noop

from kb.access.models import KnowledgeBase, Principal, ScopedQuerySet
from kb.base.db.transactions import Purpose, lock_until_commit
from kb.base.errors import NotAllowed, NotVisible, Rejected, found_in
from kb.base.text import storable
from kb.profiles.models import RetrievalProfile
from retrieval.config import RetrievalConfig
from retrieval.embedders.hashing import HASHING_MODEL_ID

# Sent with `profile`, a version that was never published: a receiver returns why it has to stay, or a blank string.
version_deleting = Signal()

# Sent with `knowledge_base_id`, `before` and `after`: its content version, which only other settings have moved.
content_kept = Signal()

_CONTENT_VERSIONS = """
SELECT knowledge_base_id, content_version FROM kb_versions WHERE knowledge_base_id = ANY(%s)
ORDER BY knowledge_base_id FOR UPDATE
"""

DEFAULT = "default"
KEYWORD_LED = "keyword-led"
WEIGHTED = "weighted"
BALANCED = "balanced"
# Those that a knowledge base starts with where nobody chooses one.
STARTING = (DEFAULT, KEYWORD_LED, BALANCED)

AT, OF = "@", "/"
MAX_NAME_CHARACTERS = 80
# One stands between a name and a version, the other between a knowledge base and a name, and in addresses.
NOT_IN_NAMES = frozenset((AT, OF))
MAX_REFERENCE_CHARACTERS = MAX_NAME_CHARACTERS + 20
MAX_VERSION = 2**31 - 1
MAX_ID_DIGITS = 18
NAMED_IN_MESSAGE = 5

# A hashed vector knows words, not meaning: as an equal voice it costs recall, as a faint one it only breaks ties.
BUILT_IN: dict[str, tuple[str, Mapping[str, Any]]] = {
    DEFAULT: (gettext_noop("Every setting has the environment’s default."), {}),
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
    for name, (description, values) in BUILT_IN.items():
        if not RetrievalProfile.objects.filter(name=name, knowledge_base=None).exists():
            RetrievalProfile.objects.create(
                name=name, description=description, settings=dict(values), published=True, published_at=timezone.now()
            )


def suitable_name(embedding_model: str) -> str:
    """The name of the built-in profile that suits a model."""
    return KEYWORD_LED if embedding_model == HASHING_MODEL_ID else BALANCED


def starting_name(embedding_model: str) -> str:
    """The name of the profile that new knowledge bases on a model start with.

    It is the one that suits the model or, where the environment sets variables of the fusion, the one that inherits them.
    """
    return DEFAULT if settings.FUSION_VARIABLES else suitable_name(embedding_model)


def starting_profile(embedding_model: str) -> RetrievalProfile:
    return RetrievalProfile.objects.live(starting_name(embedding_model))


def other_start(kb: KnowledgeBase) -> str:
    """The name of the profile that a new knowledge base on the same model starts with, where this one has another start.

    Blank where it has the same one, or one that none starts with: somebody chose that.
    """
    own, start = reference(kb.profile), starting_name(kb.embedding_model)
    return start if own in STARTING and own != start else ""


def configuration_of(settings: Mapping[str, Any]) -> RetrievalConfig:
    """A profile's settings over the environment; raises InvalidConfiguration where one is unknown or out of range."""
    return environment_config().override(settings)


def scorer_text(name: str) -> str:
    """What pages call a reranker or the scale of its scores; one that this version does not know shows as it is written."""
    return {
        "cross_encoder": _("cross-encoder"),
        "http": _("rerank server"),
        "overlap": _("word overlap"),
        "cosine": _("cosine"),
        "rrf": _("RRF"),
    }.get(name, name)


def name_and_version(text: str) -> tuple[str, int | None]:
    """What NAME or NAME@VERSION names, None being the live version; raises Rejected where no number follows the @."""
    name, at, version = text.strip().rpartition(AT)
    if not at:
        return version, None
    if not (version.isascii() and version.isdecimal() and 0 < int(version[:20]) <= MAX_VERSION):
        message = _("“%(text)s” names no version of a profile: write NAME@NUMBER, or NAME for the one that is live.")
        raise Rejected("profile_version", message, text=text)
    return name, int(version)


def reference(profile: RetrievalProfile) -> str:
    """What names a profile and no other: NAME of a shared one, ID/NAME of one of a knowledge base's own."""
    return profile.name if profile.knowledge_base_id is None else f"{profile.knowledge_base_id}{OF}{profile.name}"


def find_version(
    principal: Principal, name: str, version: int | None = None, *, scope: Collection[int] = ()
) -> RetrievalProfile:
    """A version, or the live one, of the profile that a principal means by NAME or ID/NAME in a scope; see `named_at`.

    Raises:
        NotVisible: there is no such profile for this principal, or no such version of it.
        Rejected: several knowledge bases have a profile of that name.
    """
    visible = RetrievalProfile.objects.visible_to(principal)
    live = named_at(principal, name, scope=scope)
    if live is None:
        names = ", ".join(visible.order_by("name").values_list("name", flat=True).distinct())
        raise NotVisible(
            _("There is no retrieval profile named “%(name)s”; there are: %(names)s.") % {"name": name, "names": names}
        )
    if version in (None, live.version):
        return live
    otherwise = _("The retrieval profile “%(name)s” has no version %(version)s: name another.")
    return found_in(visible.versions_of(live).filter(version=version), otherwise % {"name": name, "version": version})


def named_at(principal: Principal, name: str, *, scope: Collection[int] = ()) -> RetrievalProfile | None:
    """The live version of the profile that a principal means by NAME or ID/NAME; None: there is none.

    Where several places have the name, that of a knowledge base in the scope (those that a request is about) comes
    first, then the shared one; raises Rejected where that leaves several.
    """
    rows = RetrievalProfile.objects.visible_to(principal)
    place, is_exact, own = storable(name).partition(OF)
    if not is_exact:
        rows = rows.filter(name=place)
    elif place.isascii() and place.isdecimal() and len(place) <= MAX_ID_DIGITS:
        rows = rows.filter(name=own, knowledge_base_id=int(place))
    else:
        return None
    found = list(rows.order_by("knowledge_base_id", "-published", "-version").distinct("knowledge_base_id"))
    in_scope = [row for row in found if row.knowledge_base_id in scope]
    meant = in_scope or [row for row in found if row.knowledge_base_id is None] or found
    if len(meant) > 1:
        message = _(
            "Several knowledge bases have a profile named “%(name)s”: put the knowledge base’s id before it, as in "
            "%(exact)s."
        )
        exact = ", ".join(map(reference, meant[:NAMED_IN_MESSAGE]))
        raise Rejected("profile_ambiguous", message, name=meant[0].name, exact=exact)
    return meant[0] if meant else None


def place_of(principal: Principal, name: str) -> KnowledgeBase | None:
    """The knowledge base that the profile of a name belongs to; None for a shared one, and where there is none.

    Raises Rejected where several knowledge bases have a profile of that name.
    """
    try:
        profile = named_at(principal, name)
    except Rejected as error:
        message = _("Several knowledge bases have a profile named “%(name)s”: say which of them this version is for.")
        raise Rejected("profile_place_ambiguous", message, name=name) from error
    return profile.knowledge_base if profile else None


def choosable_profiles(kb: KnowledgeBase | None) -> QuerySet[RetrievalProfile]:
    """The versions that a knowledge base may be told to search by, one a profile: published ones, shared or its own.

    The profile that it searches by now is always among them, as the version that is live. None: a knowledge base that is
    still to be made.
    """
    offered = Q(published=True, knowledge_base=None)
    if kb is not None and kb.pk is not None:
        offered |= Q(published=True, knowledge_base=kb)
        offered |= Q(name=kb.profile.name, knowledge_base=kb.profile.knowledge_base_id)
    rows = RetrievalProfile.objects.filter(offered).order_by("name", "knowledge_base_id", "-published", "-version")
    return rows.distinct("name", "knowledge_base_id")


def create_version(
    principal: Principal,
    name: str,
    settings: Mapping[str, Any],
    *,
    description: str = "",
    knowledge_base: KnowledgeBase | None = None,
    begun_with: RetrievalProfile | None = None,
) -> RetrievalProfile:
    """Saves settings as the next version of a profile, or as the first of a new one: a draft until it is published.

    The settings are those that differ from the environment. Without a knowledge base, whose own it would be, it is
    shared. `begun_with` is the version whose settings were changed, of the same profile or another one.

    Raises:
        Rejected: the name is blank, holds / or @, or is that of a shared profile and so not for a knowledge base's own. A
            shared one takes no name that a knowledge base uses. Knowledge bases share names, and learn nothing of it.
        NotAllowed: the principal may not change profiles there.
        InvalidConfiguration: a setting is unknown or out of range.
    """
    name = name.strip()
    if not name:
        raise Rejected("profile_unnamed", _("Give the profile a name."))
    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable() or NOT_IN_NAMES & set(name):
        message = _("A profile’s name has at most %(most)d characters, and neither / nor @ among them: choose another.")
        raise Rejected("profile_name_invalid", message, most=MAX_NAME_CHARACTERS)
    configuration_of(settings)
    with transaction.atomic():
        lock_until_commit(Purpose.PROFILES)
        namesakes = RetrievalProfile.objects.filter(name=name)
        newest = namesakes.filter(knowledge_base=knowledge_base).order_by("-version").first()
        draft = RetrievalProfile.objects.create(
            name=name,
            version=newest.version + 1 if newest else 1,
            knowledge_base=knowledge_base,
            description=description,
            settings=dict(settings),
            created_by_id=principal.user.pk,
            copied_from=begun_with
            if begun_with and (begun_with.name, begun_with.knowledge_base) != (name, knowledge_base)
            else None,
        )
        if not RetrievalProfile.objects.editable_by(principal).filter(pk=draft.pk).exists():
            message = _(
                "You may not change the profile “%(name)s”: save it under another name, for a knowledge base of yours."
            )
            raise NotAllowed(message % {"name": name})
        # After the rights: who may not make a shared one learns nothing of the names of others.
        if newest is None and namesakes.filter(knowledge_base__isnull=knowledge_base is not None).exists():
            message = _("There is a profile named “%(name)s” elsewhere: choose another name.")
            raise Rejected("profile_name_taken", message, name=name)
    return draft


def moving_with(profile: RetrievalProfile, *, adopt: bool = False) -> ScopedQuerySet:
    """The knowledge bases that will search by a version once it is published, and do not yet; see `publish`."""
    moving = Q(profile__name=profile.name, profile__knowledge_base=profile.knowledge_base_id)
    if adopt and profile.knowledge_base_id is not None:
        moving |= Q(pk=profile.knowledge_base_id)
    found: ScopedQuerySet = KnowledgeBase.objects.filter(moving).exclude(profile=profile)
    return found


@contextmanager
def keeping_content(kb_ids: Collection[int]) -> Iterator[None]:
    """In a transaction: what changes in the block is how knowledge bases are searched or called, and not what they hold."""
    bases = KnowledgeBase.objects.filter(pk__in=kb_ids).order_by("pk")
    list(bases.select_for_update(no_key=True).values_list("pk"))  # first, as every writer of chunks does
    with connection.cursor() as cursor:
        before = dict(cursor.execute(_CONTENT_VERSIONS, [list(kb_ids)]).fetchall())
        yield
        after = dict(cursor.execute(_CONTENT_VERSIONS, [list(kb_ids)]).fetchall())
    for kb_id, version in after.items():
        content_kept.send(KnowledgeBase, knowledge_base_id=kb_id, before=before[kb_id], after=version)


def publish(principal: Principal, profile: RetrievalProfile, *, adopt: bool = False) -> int:
    """Makes a version the one that its name stands for; an earlier version is rolled back to in the same way.

    Knowledge bases that search by another version of it move to this one; returns how many. With `adopt` the one that
    the profile belongs to does so whatever it has searched by. Raises NotAllowed where the principal may not change the
    profile.
    """
    with transaction.atomic():
        lock_until_commit(Purpose.PROFILES)
        if not RetrievalProfile.objects.editable_by(principal).filter(pk=profile.pk).exists():
            raise NotAllowed(_("You may not publish the profile “%(name)s”.") % {"name": profile.name})
        versions = RetrievalProfile.objects.versions_of(profile)
        versions.filter(published=True).exclude(pk=profile.pk).update(published=False)
        versions.filter(pk=profile.pk).update(published=True, published_at=timezone.now())
        kb_ids = list(moving_with(profile, adopt=adopt).values_list("pk", flat=True))
        with keeping_content(kb_ids):
            moved = KnowledgeBase.objects.filter(pk__in=kb_ids).update(profile=profile)
    profile.refresh_from_db()
    return moved


def delete_draft(principal: Principal, profile: RetrievalProfile) -> None:
    """Deletes a version that was never published and that nothing has used.

    Raises NotAllowed where the principal may not change the profile, Rejected where there is a `reason_to_keep` it.
    """
    with transaction.atomic():
        lock_until_commit(Purpose.PROFILES)
        found = RetrievalProfile.objects.editable_by(principal).filter(pk=profile.pk).first()
        if found is None:
            raise NotAllowed(_("You may not delete versions of the profile “%(name)s”.") % {"name": profile.name})
        if reason := reason_to_keep(found):
            raise Rejected("profile_in_use", reason)
        found.delete()


def reason_to_keep(profile: RetrievalProfile) -> str:
    """Why a version cannot be deleted; blank where it can: responses, runs and logs that name it must stay true."""
    if profile.published or profile.published_at is not None:
        return _(
            "This version was published: it stays, so that searches of the past can be explained and it can be "
            "rolled back to."
        )
    if profile.knowledge_bases.exists():
        return _("A knowledge base searches by this version: publish another one first.")
    if profile.runs.exists():
        return _("An evaluation run has measured this version: delete its runs first.")
    answers = version_deleting.send(RetrievalProfile, profile=profile)
    return next((reason for _receiver, reason in answers if reason), "")


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


def environment_config() -> RetrievalConfig:
    return RetrievalConfig(**settings.RETRIEVAL)
