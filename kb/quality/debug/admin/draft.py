"""Saves the settings of a search as a draft of a profile, from the page that tried them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.widgets import INPUT_CLASSES, SELECT_CLASSES

from kb.access.models import KnowledgeBase, Principal
from kb.profiles.admin.choices import profile_value
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import DEFAULT, MAX_NAME_CHARACTERS, NOT_IN_NAMES, create_version, reference
from kb.quality.debug.admin.form import SETTINGS
from kb.quality.debug.admin.page import SearchPage
from kb.search.wiring import explicit_count

SHARED = "shared"


class DraftForm(forms.Form):
    """Where the draft goes."""

    name = forms.CharField(
        label=gettext_lazy("Name of the profile"),
        max_length=MAX_NAME_CHARACTERS,
        error_messages={"required": gettext_lazy("Give the profile a name.")},
        widget=forms.TextInput({"class": " ".join(INPUT_CLASSES), "autocomplete": "off"}),
    )
    place = forms.ChoiceField(label=gettext_lazy("For"), widget=forms.Select({"class": " ".join(SELECT_CLASSES)}))
    description = forms.CharField(
        label=gettext_lazy("What is different"),
        required=False,
        max_length=2_000,
        widget=forms.TextInput({"class": " ".join(INPUT_CLASSES), "autocomplete": "off"}),
    )

    def __init__(self, data: Mapping[str, Any] | None, places: Mapping[str, str], initial: Mapping[str, str]) -> None:
        super().__init__(data, prefix="draft", initial=dict(initial))
        cast(forms.ChoiceField, self.fields["place"]).choices = list(places.items())


def draft_form(principal: Principal, page: SearchPage, data: Mapping[str, Any] | None = None) -> DraftForm | None:
    """The form that saves a page's settings; None where there is nothing to save, or no place that the principal may save to.

    It proposes a further version of the profile that the search runs under where the principal may change that, and else
    a profile of its own for a knowledge base.
    """
    places = _places(principal, page.bases.values(), page.chosen)
    if not places or not any(page.form[name].value() for name in SETTINGS):
        return None
    ruling = _ruling(page)
    home = SHARED if ruling.knowledge_base_id is None else str(ruling.knowledge_base_id)
    if home in places:
        return DraftForm(data, places, {"name": ruling.name, "place": home})
    first = next(iter(places))
    name = "".join(each for each in places[first] if each not in NOT_IN_NAMES)[:MAX_NAME_CHARACTERS]
    return DraftForm(data, places, {"name": name, "place": first})


def _places(principal: Principal, bases: Iterable[KnowledgeBase], chosen: Sequence[KnowledgeBase]) -> dict[str, str]:
    """Where the principal may save a profile: the chosen knowledge bases first, then the others, then shared."""
    ordered = [*chosen, *(kb for kb in bases if kb not in chosen)]
    places = {str(kb.pk): kb.name for kb in ordered if getattr(kb, "may_edit", False)}
    if principal.user.is_superuser:
        places[SHARED] = _("all knowledge bases (shared)")
    return places


def save_draft(principal: Principal, page: SearchPage, draft: DraftForm) -> RetrievalProfile:
    """Saves the settings in force, those of the profile included, by two valid forms.

    Raises:
        Rejected: the name belongs to a profile of another place, or is none.
        NotAllowed: the principal may not change profiles there.
        InvalidConfiguration: the settings do not go together.
    """
    place = draft.cleaned_data["place"]
    return create_version(
        principal,
        draft.cleaned_data["name"],
        {**_ruling(page).settings, **explicit_count(page.form.overrides)},
        description=draft.cleaned_data["description"],
        knowledge_base=None if place == SHARED else page.bases[int(place)],
    )


def _ruling(page: SearchPage) -> RetrievalProfile:
    """The profile that the page's settings stand over."""
    if page.form.profile_choice is not None:
        return page.form.profile_choice.profile
    own = {kb.profile_id: kb.profile for kb in page.chosen or page.bases.values()}
    return next(iter(own.values())) if len(own) == 1 else page.profiles[DEFAULT].profile


def under_draft(given: QueryDict, draft: RetrievalProfile) -> str:
    """The same search under the draft in place of the settings, as a query string."""
    query = given.copy()
    for name in SETTINGS:
        query.pop(name, None)
    query["profile"] = profile_value(reference(draft), draft.version)
    return query.urlencode()
