"""The page that compares two versions of profiles, or a version with the environment's defaults."""

from dataclasses import dataclass
from typing import Any

from django.http import Http404
from django.urls import reverse
from django.utils.translation import gettext as _
from unfold.widgets import SELECT_CLASSES

from kb.profiles.admin.choices import as_field_choices, profile_choices, profile_state
from kb.profiles.admin.setting_labels import in_order, setting_label, value_in_words
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import configuration_of, differences
from kb.quality.profiles.admin.page import ENVIRONMENT, PAGE, PUBLISH, ProfilePage, diff_url, visible_version
from kb.web.admin.ids import row_id


@dataclass(frozen=True, slots=True)
class ShownDifference:
    """A setting that differs, in words; `before_set` says that the version sets it itself, likewise `after_set`."""

    name: str
    label: str
    before: str
    after: str
    before_set: bool
    after_set: bool


@dataclass(frozen=True, slots=True)
class ShownSide:
    """One of the two: a version, or with None the environment's defaults."""

    version: RetrievalProfile | None
    name: str
    state: str
    url: str


def shown_differences(before: RetrievalProfile | None, after: RetrievalProfile) -> list[ShownDifference]:
    """What differs, in the order of the form; None: the environment's defaults."""
    first = before or RetrievalProfile(settings={})
    found = {each.name: each for each in differences(first, after)}
    return [
        ShownDifference(
            name,
            setting_label(name),
            value_in_words(name, found[name].before),
            value_in_words(name, found[name].after),
            name in first.settings,
            name in after.settings,
        )
        for name in in_order(found)
    ]


class DiffView(ProfilePage):
    """?before=ID&after=ID; `environment` stands for its defaults."""

    template_name = "quality/profiles/diff.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        before, after = self._version("before"), self._version("after")
        if after is None:
            raise Http404
        found = shown_differences(before, after)
        may_edit = RetrievalProfile.objects.editable_by(self.caller).filter(pk=after.pk).exists()
        return super().get_context_data(
            **kwargs,
            title=_("What differs between two versions"),
            before=_side(before),
            after=_side(after),
            sides=[_side(before), _side(after)],
            select_classes=" ".join(SELECT_CLASSES),
            differences=found,
            same_count=len(configuration_of(after.settings).as_dict()) - len(found),
            options=self._options(before, after),
            defaults=ENVIRONMENT,
            swap_url=diff_url(after, before) if before else "",
            publish_url=reverse(PUBLISH, args=[after.pk]) if may_edit and not after.published else "",
        )

    def _version(self, side: str) -> RetrievalProfile | None:
        """None: the environment."""
        asked = self.request.GET.get(side, "")
        if asked == ENVIRONMENT:
            return None
        if (version_id := row_id(asked)) is None:
            raise Http404
        return visible_version(self.caller, version_id)

    def _options(self, *chosen: RetrievalProfile | None) -> Any:
        """The versions to choose from, by their ids."""
        choices = profile_choices(self.caller)
        offered = {choice.profile.pk for choice in choices}
        further = [version for version in chosen if version and version.pk not in offered]
        by_value = {choice.value: choice.profile.pk for choice in choices}
        grouped = as_field_choices(choices)
        options = [
            (label, [(by_value[value], words) for value, words in inner])
            if isinstance(inner, list)
            else ("", [(by_value[label], inner)])
            for label, inner in grouped
        ]
        return [*options, *(("", [(version.pk, str(version))]) for version in further)]


def _side(version: RetrievalProfile | None) -> ShownSide:
    if version is None:
        return ShownSide(None, _("the environment’s defaults"), "", "")
    return ShownSide(version, str(version), profile_state(version), reverse(PAGE, args=[version.pk]))
