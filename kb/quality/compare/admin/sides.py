"""The two sides that are compared: for each a profile, any version of it, and perhaps settings that are not saved."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.profiles.admin.choices import ProfileChoice, in_order, setting_label, value_text
from kb.profiles.services import SettingDifference
from kb.quality.debug.admin.form import (
    FILTERS,
    SETTINGS,
    WEIGHTS,
    SearchForm,
    SearchPage,
    inherited_settings,
    open_search_page,
)


def setting_changes(differences: Iterable[SettingDifference]) -> list[dict[str, str]]:
    """Settings that differ between two sides as text, in the order of the form.

    Each value stands by itself: an arrow between them would be one more in a chain of rerankers.
    """
    found = {each.name: each for each in differences}
    return [
        {
            "label": setting_label(name),
            "before": value_text(name, found[name].before),
            "after": value_text(name, found[name].after),
        }
        for name in in_order(found)
    ]


SIDES = ("a", "b")
# Fields that both sides have in common; the others carry the side before their name: `a_fusion`.
SHARED = ("q", "kb", "budget", *FILTERS)
# What an evaluation sets itself, so that all stages are measured to the same depth and before the gate.
ONLY_OF_A_SEARCH = ("top_k", "threshold", "rerank", "neighbours")


class SideForm(SearchForm):
    """The form of search debug, of which two stand on one page."""

    def __init__(
        self,
        side: str,
        data: Mapping[str, Any] | None,
        bases: Sequence[KnowledgeBase],
        profiles: Sequence[ProfileChoice],
        inherited: Mapping[str, str],
    ) -> None:
        self.side = side
        super().__init__(data, bases, profiles, inherited)

    def add_prefix(self, field_name: str) -> str:
        return name_at(field_name, self.side)

    @property
    def letter(self) -> str:
        return self.side.upper()

    @property
    def shared_fields(self) -> list[forms.BoundField]:
        """Those that are folded away; the query and the knowledge bases are not."""
        return [self[name] for name in (*FILTERS, "budget")]

    @property
    def are_shared_unfolded(self) -> bool:
        return any(field.value() or field.errors for field in self.shared_fields)

    @property
    def setting_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in (*(each for each in SETTINGS if each not in WEIGHTS), *WEIGHTS)]

    @property
    def run_fields(self) -> list[forms.BoundField]:
        """The settings that an evaluation run may have, too."""
        return [self[name] for name in SETTINGS if name not in ONLY_OF_A_SEARCH]

    @property
    def has_faulty_settings(self) -> bool:
        return any(self[name].errors for name in SETTINGS)

    @property
    def unsaved(self) -> list[str]:
        return self.given_as_text(SETTINGS)

    @property
    def run_overrides(self) -> dict[str, Any]:
        """The settings that an evaluation run takes, of a valid form."""
        left_out = {SETTINGS[name] for name in ONLY_OF_A_SEARCH}
        return {name: value for name, value in self.overrides.items() if name not in left_out}


def open_sides(principal: Principal, given: QueryDict) -> tuple[SearchPage, dict[str, SideForm]]:
    """What both sides choose from, and their forms, filled from a URL; four queries.

    Raises:
        Http404: the URL names a knowledge base that does not exist for this principal.
    """
    pages = {side: open_search_page(principal, _as_one_search(given, side)) for side in SIDES}
    is_bound = any((name in SHARED or name.partition("_")[0] in SIDES) for name in given)
    forms_of = {
        side: SideForm(
            side,
            given if is_bound else None,
            list(page.bases.values()),
            list(page.profiles.values()),
            inherited_settings(page.inheritable, [str(kb.pk) for kb in page.chosen], given.get(f"{side}_profile", "")),
        )
        for side, page in pages.items()
    }
    return pages[SIDES[0]], forms_of


def _as_one_search(given: QueryDict, side: str) -> QueryDict:
    query = QueryDict(mutable=True)
    query.setlist("kb", given.getlist("kb"))
    query["profile"] = given.get(f"{side}_profile", "")
    return query


def name_at(name: str, side: str) -> str:
    """The name that a field of one search has for a side, in the page and in its URL."""
    return name if name in SHARED else f"{side}_{name}"


def swapped(given: QueryDict) -> str:
    """The same comparison with the sides exchanged, as a query string."""
    query = QueryDict(mutable=True)
    for name, values in given.lists():
        side, mark, rest = name.partition("_")
        other = {"a": "b", "b": "a"}.get(side) if mark and name not in SHARED else None
        query.setlist(f"{other}_{rest}" if other else name, values)
    return query.urlencode()


def same_sides(a: SideForm, b: SideForm) -> str:
    """A sentence where both sides ask for the same; blank where they differ."""
    asked = [(form["profile"].value() or "", form.overrides) for form in (a, b)]
    if asked[0] != asked[1]:
        return ""
    return _("Both sides are the same: choose another profile on one of them, or change a setting.")
