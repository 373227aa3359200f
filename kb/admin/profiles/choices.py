"""Which retrieval profiles, and which of their versions, a search may be run under, as a field offers them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from django.db.models import F, Window
from django.db.models.functions import RowNumber
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.models import Principal, RetrievalProfile
from kb.models.search import RetrievalProfileQuerySet
from kb.models.validators import storable
from kb.services.errors import Rejected
from kb.services.profiles import AT, name_and_version

VERSIONS_OFFERED = 20

Choices = list[tuple[str, str | list[tuple[str, str]]]]


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """A value of the field.

    Attributes:
        value: NAME, which stands for the version that is live when the search is run, or NAME@VERSION.
        profile: the version that the value stands for now.
        version: the one that the value names; None where it names none.
        place: name of the knowledge base whose own profile it is; blank: shared.
    """

    value: str
    profile: RetrievalProfile
    version: int | None
    label: str
    place: str = ""


def profile_choices(principal: Principal, asked: str = "") -> list[ProfileChoice]:
    """The profiles that a principal may use, each with its newest versions, by name; the live one first, by its name.

    Args:
        principal: who searches.
        asked: a value that must be among them if there is such a profile, however old the version.
    """
    visible = RetrievalProfile.objects.visible_to(principal).select_related("knowledge_base")
    order = (F("published").desc(), F("version").desc())
    newest = visible.annotate(place=Window(RowNumber(), partition_by=F("name"), order_by=order))
    rows = list(newest.filter(place__lte=VERSIONS_OFFERED).order_by("name", "place"))
    choices = [
        choice for _name, versions in groupby(rows, key=lambda row: row.name) for choice in _of_one_name(list(versions))
    ]
    if asked and asked not in {choice.value for choice in choices}:
        choices += [_pinned(profile) for profile in _asked(visible, asked)]
    return choices


def _asked(visible: RetrievalProfileQuerySet, value: str) -> RetrievalProfileQuerySet:
    try:
        name, version = name_and_version(value)
    except Rejected:
        return visible.none()
    return visible.none() if version is None else visible.filter(name=storable(name), version=version)


def _of_one_name(versions: Sequence[RetrievalProfile]) -> Iterable[ProfileChoice]:
    """The first one is live."""
    live = versions[0]
    yield ProfileChoice(live.name, live, None, _labelled(live), _place(live))
    for profile in versions[1:]:
        yield _pinned(profile)


def _pinned(profile: RetrievalProfile) -> ProfileChoice:
    return ProfileChoice(
        profile_value(profile.name, profile.version), profile, profile.version, _labelled(profile), _place(profile)
    )


def _place(profile: RetrievalProfile) -> str:
    return profile.knowledge_base.name if profile.knowledge_base else ""


def _labelled(profile: RetrievalProfile) -> str:
    return _("%(profile)s (%(state)s)") % {"profile": profile, "state": profile_state(profile)}


def profile_value(name: str, version: int | None = None) -> str:
    """What the field holds for a profile: by its name alone, or one version of it."""
    return name if version is None else f"{name}{AT}{version}"


def profile_state(profile: RetrievalProfile) -> str:
    """Whether a version is published, a draft, or was published before."""
    if profile.published:
        return _("published")
    return _("draft") if profile.published_at is None else _("earlier version")


def as_field_choices(choices: Sequence[ProfileChoice]) -> Choices:
    """Choices of a select: versions of one name, and the profiles of one knowledge base, stand together."""
    grouped: Choices = []
    for (place, name), group in groupby(choices, key=lambda choice: (choice.place, choice.profile.name)):
        options = [(choice.value, choice.label) for choice in group]
        if place:
            grouped.append((_("%(profile)s, of “%(kb)s”") % {"profile": name, "kb": place}, options))
        elif len(options) > 1:
            grouped.append((name, options))
        else:
            grouped += options
    return grouped


def profile_url(profile: RetrievalProfile) -> str:
    """The page of a version."""
    return reverse("admin:kb_retrievalprofile_change", args=[profile.pk])
