"""The profiles and versions that a field offers, and what pages call settings of RetrievalConfig and their values."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from django.db.models import F, Window
from django.db.models.functions import RowNumber
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.base.errors import NotVisible, Rejected
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import AT, SettingDifference, find_version, name_and_version, reference, scorer_text
from kb.web.admin import fields
from kb.web.admin.fields import Choices, labels_of, listed
from retrieval.config import SETTINGS
from retrieval.errors import InvalidConfiguration

VERSIONS_OFFERED = 20


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """A value of the field: NAME, which stands for the version that is live when the search is run, or NAME@VERSION.

    ID/ stands before it where several knowledge bases have a profile of that name. `profile` is the version that the
    value stands for now, `version` the one that it names, if any.
    """

    value: str
    profile: RetrievalProfile
    version: int | None

    @property
    def label(self) -> str:
        return _("%(profile)s (%(state)s)") % {"profile": self.profile, "state": profile_state(self.profile)}


def profile_choices(principal: Principal, asked: str = "", scope: Collection[int] = ()) -> list[ProfileChoice]:
    """The profiles that a principal may use, each with its newest versions, by name; the live one first, by its name.

    The value `asked` is among them if there is such a profile in the scope (see `find_version`), however old the
    version.
    """
    visible = RetrievalProfile.objects.visible_to(principal).select_related("knowledge_base")
    order = (F("published").desc(), F("version").desc())
    newest = visible.annotate(place=Window(RowNumber(), partition_by=[F("name"), F("knowledge_base")], order_by=order))
    rows = newest.filter(place__lte=VERSIONS_OFFERED).order_by("name", "knowledge_base_id", "place")
    profiles = [list(versions) for _key, versions in groupby(rows, key=_name_and_place)]
    places = Counter(live.name for live, *_others in profiles)
    choices: dict[tuple[RetrievalProfile, int | None], ProfileChoice] = {}
    for live, *others in profiles:
        name = reference(live) if places[live.name] > 1 else live.name
        for profile, version in [(live, None), *((other, other.version) for other in others)]:
            choices[profile, version] = ProfileChoice(profile_value(name, version), profile, version)
    if asked and asked not in {choice.value for choice in choices.values()}:
        # It names one of them in other words, or a version that is not among them.
        with suppress(Rejected, NotVisible):
            name, version = name_and_version(asked)
            profile = find_version(principal, name, version, scope=scope)
            choices[profile, version] = ProfileChoice(asked, profile, version)
    return list(choices.values())


_name_and_place = attrgetter("name", "knowledge_base_id")


def profile_value(name: str, version: int | None = None) -> str:
    """What the field holds for a profile: by its name alone, or one version of it."""
    return name if version is None else f"{name}{AT}{version}"


def profile_state(profile: RetrievalProfile) -> str:
    if profile.published:
        return _("published")
    return _("draft") if profile.published_at is None else _("earlier version")


def as_field_choices(choices: Sequence[ProfileChoice]) -> Choices:
    """Choices of a select: versions of one name, and the profiles of one knowledge base, stand together."""
    grouped: Choices = []
    for (name, _place), group in groupby(choices, key=lambda choice: _name_and_place(choice.profile)):
        of_one = list(group)
        options = [(choice.value, choice.label) for choice in of_one]
        if kb := of_one[0].profile.knowledge_base:
            grouped.append((_("%(profile)s, of “%(kb)s”") % {"profile": name, "kb": kb.name}, options))
        elif len(options) > 1:
            grouped.append((name, options))
        else:
            grouped += options
    return grouped


def profile_url(profile: RetrievalProfile) -> str:
    return reverse("admin:kb_retrievalprofile_change", args=[profile.pk])


def configuration_error(error: InvalidConfiguration) -> str:
    if error.field in {"keyword_weight", "hybrid_text_weight"}:
        return _("Both weights are 0: give at least one channel a weight.")
    return str(error)


def setting_label(name: str) -> str:
    """What a setting is called; its own name where it is none of this version."""
    return _(SETTINGS[name].label) if name in SETTINGS else name


def choices_of(name: str) -> dict[str, str]:
    """The labels of the values of a setting that is one of a few words."""
    return labels_of(SETTINGS.get(name))


def value_text(name: str, value: Any) -> str:
    """A setting's value as a page shows it, with rerankers by what they are called."""
    if isinstance(value, list | tuple):
        return listed(map(scorer_text, value)) or _("none")
    return fields.value_text(SETTINGS.get(name), value)


def in_order(names: Iterable[str]) -> list[str]:
    """The names of settings in the order of the form, unknown ones last."""
    places = {name: place for place, name in enumerate(SETTINGS)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def changes_text(differences: Iterable[SettingDifference]) -> list[str]:
    """One line a setting, as in “Vector weight: 0.6 → 0.4”."""
    return [
        _("%(setting)s: %(before)s → %(after)s")
        % {
            "setting": setting_label(each.name),
            "before": value_text(each.name, each.before),
            "after": value_text(each.name, each.after),
        }
        for each in differences
    ]
