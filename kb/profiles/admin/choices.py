"""Which retrieval profiles, and which of their versions, a search may be run under, as a field offers them."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from django.db.models import F, Window
from django.db.models.functions import RowNumber
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.base.errors import NotVisible, Rejected
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import AT, find_version, name_and_version, reference

VERSIONS_OFFERED = 20

Choices = list[tuple[str, str | list[tuple[str, str]]]]


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """A value of the field.

    Attributes:
        value: NAME, which stands for the version that is live when the search is run, or NAME@VERSION; with ID/ before
            it where several knowledge bases have a profile of that name.
        profile: the version that the value stands for now.
        version: the one that the value names; None where it names none.
        place: name of the knowledge base whose own profile it is; blank: shared.
    """

    value: str
    profile: RetrievalProfile
    version: int | None
    label: str
    place: str = ""


def profile_choices(principal: Principal, asked: str = "", scope: Collection[int] = ()) -> list[ProfileChoice]:
    """The profiles that a principal may use, each with its newest versions, by name; the live one first, by its name.

    Args:
        principal: who searches.
        asked: a value that must be among them if there is such a profile, however old the version.
        scope: the knowledge bases that are searched; see `find_version`.
    """
    visible = RetrievalProfile.objects.visible_to(principal).select_related("knowledge_base")
    order = (F("published").desc(), F("version").desc())
    newest = visible.annotate(place=Window(RowNumber(), partition_by=[F("name"), F("knowledge_base")], order_by=order))
    rows = list(newest.filter(place__lte=VERSIONS_OFFERED).order_by("name", "knowledge_base_id", "place"))
    profiles = [list(versions) for _key, versions in groupby(rows, key=_name_and_place)]
    places = Counter(versions[0].name for versions in profiles)
    choices = [
        choice
        for versions in profiles
        for choice in _of_one_profile(versions, has_namesakes=places[versions[0].name] > 1)
    ]
    if asked and asked not in {choice.value for choice in choices}:
        return _with_asked(choices, principal, asked, scope)
    return choices


def _name_and_place(profile: RetrievalProfile) -> tuple[str, int | None]:
    return profile.name, profile.knowledge_base_id


def _with_asked(
    choices: Sequence[ProfileChoice], principal: Principal, asked: str, scope: Collection[int]
) -> list[ProfileChoice]:
    """The choices with a value that names one of them in other words, or a version that is not among them."""
    try:
        name, version = name_and_version(asked)
        profile = find_version(principal, name, version, scope=scope)
    except (Rejected, NotVisible):
        return list(choices)
    wanted = ProfileChoice(asked, profile, version, _labelled(profile), _place(profile))
    known = [(each.profile, each.version) for each in choices]
    if (profile, version) not in known:
        return [*choices, wanted]
    place = known.index((profile, version))
    return [*choices[:place], wanted, *choices[place + 1 :]]


def _of_one_profile(versions: Sequence[RetrievalProfile], *, has_namesakes: bool) -> Iterable[ProfileChoice]:
    """The first one is live."""
    name = reference(versions[0]) if has_namesakes else versions[0].name
    for profile in versions:
        version = None if profile is versions[0] else profile.version
        yield ProfileChoice(profile_value(name, version), profile, version, _labelled(profile), _place(profile))


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
    for (name, _place_id), group in groupby(choices, key=lambda choice: _name_and_place(choice.profile)):
        of_one = list(group)
        options = [(choice.value, choice.label) for choice in of_one]
        if place := of_one[0].place:
            grouped.append((_("%(profile)s, of “%(kb)s”") % {"profile": name, "kb": place}, options))
        elif len(options) > 1:
            grouped.append((name, options))
        else:
            grouped += options
    return grouped


def profile_url(profile: RetrievalProfile) -> str:
    """The page of a version."""
    return reverse("admin:kb_retrievalprofile_change", args=[profile.pk])
