"""Retrieval profiles as their readers see them: one row a profile, the state of a version, and who searches by it."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import chain, count, groupby
from typing import Annotated, Any, Self

from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils.translation import gettext as _, ngettext
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, Principal, ScopedQuerySet
from kb.base.errors import Rejected
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import (
    MAX_NAME_CHARACTERS,
    NOT_IN_NAMES,
    SettingDifference,
    configuration_of,
    create_version,
    differences,
    publish,
)
from kb.search.services.search import UsedProfile

# By name and place of a profile, the visible knowledge bases that search by it, and how many others do.
Used = dict[tuple[str, int | None], tuple[list[KnowledgeBase], int]]


class VersionState(StrEnum):
    """`EARLIER`: it was published, and another version is now, or none."""

    PUBLISHED = "published"
    DRAFT = "draft"
    EARLIER = "earlier"


@dataclass(frozen=True, slots=True)
class ProfileOverview:
    """A profile in all its versions; the knowledge bases that search by it: the visible ones, and how many others."""

    newest: RetrievalProfile
    published: RetrievalProfile | None
    version_count: int
    used_by: tuple[KnowledgeBase, ...]
    used_elsewhere: int

    @property
    def live(self) -> RetrievalProfile:
        return self.published or self.newest

    @property
    def draft(self) -> RetrievalProfile | None:
        return self.newest if state_of(self.newest) is VersionState.DRAFT else None

    def as_dict(self) -> dict[str, Any]:
        """A row of GET /api/v1/profiles/."""
        return {
            "name": self.newest.name,
            "knowledge_base_id": self.newest.knowledge_base_id,
            "published_version": self.published.version if self.published else None,
            "newest_version": self.newest.version,
            "version_count": self.version_count,
            "used_by": [{"id": kb.pk, "name": kb.name} for kb in self.used_by],
            "used_elsewhere": self.used_elsewhere,
        }


def state_of(profile: RetrievalProfile) -> VersionState:
    if profile.published:
        return VersionState.PUBLISHED
    return VersionState.DRAFT if profile.published_at is None else VersionState.EARLIER


def waiting_drafts_of(principal: Principal) -> list[RetrievalProfile]:
    """The newest versions that were never published and stand over a published one, of profiles that the principal may change."""
    rows = RetrievalProfile.objects.editable_by(principal).filter(Q(published=True) | Q(published_at=None))
    newest: dict[tuple[str, int | None], RetrievalProfile] = {}
    published: set[tuple[str, int | None]] = set()
    for row in rows.defer("settings", "description").order_by("name", "knowledge_base_id", "-version"):
        key = (row.name, row.knowledge_base_id)
        newest.setdefault(key, row)
        if row.published:
            published.add(key)
    return [row for key, row in newest.items() if key in published and not row.published]


def profile_names(principal: Principal) -> QuerySet[RetrievalProfile, str]:
    return RetrievalProfile.objects.visible_to(principal).order_by("name").values_list("name", flat=True).distinct()


def profile_overviews(principal: Principal, names: Collection[str]) -> list[ProfileOverview]:
    """The visible ones of the profiles with these names, ascending, in three queries."""
    visible = RetrievalProfile.objects.visible_to(principal).filter(name__in=names)
    return _overviews(visible, _used(principal, KnowledgeBase.objects.filter(profile__name__in=names)))


def profile_overview(principal: Principal, profile: RetrievalProfile) -> ProfileOverview:
    (overview,) = _overviews(RetrievalProfile.objects.versions_of(profile), _used(principal, _searching_by(profile)))
    return overview


def _searching_by(profile: RetrievalProfile) -> ScopedQuerySet:
    found: ScopedQuerySet = KnowledgeBase.objects.filter(
        profile__name=profile.name, profile__knowledge_base=profile.knowledge_base_id
    )
    return found


def _overviews(versions: QuerySet[RetrievalProfile], used: Used) -> list[ProfileOverview]:
    ordered = (
        versions.select_related("knowledge_base").defer("settings").order_by("name", "knowledge_base_id", "-version")
    )
    overviews = []
    for key, group in groupby(ordered, key=lambda row: (row.name, row.knowledge_base_id)):
        own = list(group)
        published = next((profile for profile in own if profile.published), None)
        used_by, used_elsewhere = used.get(key, ([], 0))
        overviews.append(ProfileOverview(own[0], published, len(own), tuple(used_by), used_elsewhere))
    return overviews


def _used(principal: Principal, using: ScopedQuerySet) -> Used:
    seen = defaultdict(list)
    for kb in using.select_related("profile").visible_to(principal):
        seen[kb.profile.name, kb.profile.knowledge_base_id].append(kb)
    counts = using.order_by().values_list("profile__name", "profile__knowledge_base").annotate(Count("pk"))
    return {(name, place): (seen[name, place], count - len(seen[name, place])) for name, place, count in counts}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileVersion:
    name: str
    version: int
    state: Annotated[VersionState, Doc("`earlier`: it was published, and can be rolled back to.")]
    knowledge_base_id: int | None
    description: str
    settings: Annotated[Mapping[str, Any], Doc("Those that are not inherited from the environment.")]
    created_by: str | None
    created_at: datetime
    published_at: Annotated[datetime | None, Doc("The last time; null: never.")]

    @classmethod
    def of(cls, profile: RetrievalProfile, **further: Any) -> Self:
        return cls(
            name=profile.name,
            version=profile.version,
            state=state_of(profile),
            knowledge_base_id=profile.knowledge_base_id,
            description=profile.description,
            settings=profile.settings,
            created_by=profile.created_by.get_username() if profile.created_by else None,
            created_at=profile.created_at,
            published_at=profile.published_at,
            **further,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedProfile(ProfileVersion):
    configuration: Annotated[
        Mapping[str, Any], Doc("The settings of a search under it, with those that are inherited.")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedProfile(ProfileVersion):
    moved: Annotated[int, Doc("How many knowledge bases search by another version than before.")]


def resolved(profile: RetrievalProfile) -> ResolvedProfile:
    return ResolvedProfile.of(profile, configuration=configuration_of(profile.settings).as_dict())


@dataclass(frozen=True, slots=True)
class ProfileDifference:
    before: Annotated[UsedProfile | None, Doc("null: the environment's defaults.")]
    after: UsedProfile
    differences: Annotated[tuple[SettingDifference, ...], Doc("The settings that they resolve differently.")]


def profile_difference(before: RetrievalProfile | None, after: RetrievalProfile) -> ProfileDifference:
    """What differs between two versions; None: the environment's defaults."""
    found = tuple(differences(before or RetrievalProfile(settings={}), after))
    return ProfileDifference(UsedProfile.of(before) if before else None, UsedProfile.of(after), found)


# -- Drafts for one knowledge base -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class DraftPlace:
    """Where settings that begin with those of a profile are saved for one knowledge base.

    Attributes:
        name: of the knowledge base's own profile that they become a version of.
        is_copy: whether that is a copy, because others share the profile.
        may_change: whether the caller may save them as a version of the profile itself.
        used_by: the other visible knowledge bases that search by it.
        used_elsewhere: how many others do.
    """

    name: str
    is_copy: bool
    may_change: bool
    used_by: tuple[KnowledgeBase, ...]
    used_elsewhere: int


def draft_place(principal: Principal, knowledge_base: KnowledgeBase, profile: RetrievalProfile) -> DraftPlace:
    others = _searching_by(profile).exclude(pk=knowledge_base.pk)
    used_by, used_elsewhere = _used(principal, others).get((profile.name, profile.knowledge_base_id), ([], 0))
    is_copy = bool(profile.knowledge_base_id != knowledge_base.pk or used_by or used_elsewhere)
    half = MAX_NAME_CHARACTERS // 2
    copy = f"{profile.name[: half - 1]}-{knowledge_base.name[:half]}"
    copy = "".join("-" if each in NOT_IN_NAMES or not each.isprintable() else each for each in copy)
    may_change = RetrievalProfile.objects.editable_by(principal).filter(pk=profile.pk).exists()
    name = _free_name(knowledge_base, copy.strip()) if is_copy else profile.name
    return DraftPlace(name, is_copy, may_change, tuple(used_by), used_elsewhere)


def _free_name(knowledge_base: KnowledgeBase, name: str) -> str:
    """The name of a profile of the knowledge base's own, with a number behind it where a shared one has that name."""
    named = RetrievalProfile.objects.values_list("name", flat=True)
    own = named.filter(knowledge_base=knowledge_base)
    taken = set(named.filter(knowledge_base=None).exclude(name__in=own))
    endings = chain([""], (f"-{number}" for number in count(2)))
    names = (f"{name[: MAX_NAME_CHARACTERS - len(ending)]}{ending}" for ending in endings)
    return next(each for each in names if each not in taken)


def save_draft(
    principal: Principal,
    knowledge_base: KnowledgeBase,
    profile: RetrievalProfile,
    settings: Mapping[str, Any],
    *,
    description: str,
    name: str = "",
    confirm_shared: bool = False,
) -> RetrievalProfile:
    """Saves settings that began with those of a profile as a draft for one knowledge base.

    Without a name it is the next version of the profile or, where others share that, of a copy that is the knowledge
    base's own: see `draft_place`. Another name is that of a profile of its own, too. With the profile's own name, or
    `confirm_shared` and no name, it is a version of the profile itself. Raises Rejected where other knowledge bases
    search by that and `confirm_shared` is not given, and as `create_version`.
    """
    place = draft_place(principal, knowledge_base, profile)
    name = name.strip() or (profile.name if confirm_shared else place.name)
    is_same = name == profile.name
    if is_same and place.may_change and not confirm_shared and (place.used_by or place.used_elsewhere):
        others = [kb.name for kb in place.used_by]
        if unseen := place.used_elsewhere:
            text = ngettext("and %(counter)s that you may not see", "and %(counter)s that you may not see", unseen)
            others.append(text % {"counter": unseen})
        message = _(
            "Other knowledge bases search by “%(name)s”: %(others)s. Confirm that it is changed for them too, or choose "
            "another name, which makes a profile for this knowledge base alone."
        )
        raise Rejected("profile_shared", message, name=name, others=", ".join(others))
    return create_version(
        principal,
        name,
        settings,
        description=description,
        knowledge_base=profile.knowledge_base if is_same else knowledge_base,
        begun_with=profile,
    )


def publish_for(principal: Principal, knowledge_base: KnowledgeBase, version: RetrievalProfile) -> RetrievalProfile:
    """Publishes the settings of a version as a profile of one knowledge base's own, by which it searches from then on.

    The profile that others share stays as it is. Raises as `save_draft` and `publish`.
    """
    with transaction.atomic():
        draft = save_draft(principal, knowledge_base, version, version.settings, description=version.description)
        publish(principal, draft, adopt=True)
    return draft
