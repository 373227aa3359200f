"""The form of a search, which several pages have, and the knowledge bases and profiles that it chooses from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from django import forms
from django.conf import settings
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, QueryDict
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase, Principal
from kb.base.text import InvalidFilter
from kb.content.models import Chunk, Document
from kb.index.filters import Filters, read_conditions, write_conditions
from kb.profiles.admin.choices import (
    ProfileChoice,
    as_field_choices,
    choices_of,
    configuration_error,
    profile_choices,
    profile_value,
)
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import environment_config, name_and_version
from kb.search.services.baseline import has_reranker
from kb.search.services.search import MAX_LATENCY_BUDGET_MS, SearchRequest
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.fields import checkboxes, select, setting_field, text_input
from retrieval.config import SETTINGS as DECLARED, RetrievalConfig
from retrieval.errors import InvalidConfiguration
from retrieval.fusion import channel_weights
from retrieval.selection import SETTING_OF_SCALE, ScoreScale, result_count

# Fields of the form and the settings that they override.
SETTINGS = {
    "top_k": "top_k",
    "threshold": "score_threshold",
    "rerank": "use_rerank",
    "fusion": "fusion",
    "vector_weight": "vector_weight",
    "keyword_weight": "keyword_weight",
    "question_weight": "question_weight",
    "vector_share": "hybrid_vector_weight",
    "keyword_share": "hybrid_text_weight",
    "rewrite": "rewrite",
    "neighbours": "neighbours",
}
WEIGHTS = ("vector_weight", "keyword_weight", "question_weight", "vector_share", "keyword_share")
# What a threshold sets where no model that reranks is set up: one for all scales would be meant for that model's scores.
CUTS_WITHOUT_RERANKER = (SETTING_OF_SCALE[ScoreScale.OVERLAP], SETTING_OF_SCALE[ScoreScale.COSINE])
# Fields of the form and the filters that they set.
FILTERS = {"tags": "tags", "concepts": "concepts", "source_type": "source_types", "metadata": "metadata"}


class NamesField(forms.CharField):
    def clean(self, value: Any) -> Any:
        names = (each.strip() for each in re.split("[,，]", super().clean(value)))
        return [name for name in names if name]


class ConditionsField(forms.CharField):
    def clean(self, value: Any) -> Any:
        try:
            return read_conditions(super().clean(value))
        except InvalidFilter as error:
            raise forms.ValidationError(str(error)) from error


class SearchForm(forms.Form):
    """What to search for; an empty setting is inherited and shows as what it inherits."""

    q = forms.CharField(
        label=gettext_lazy("Query"),
        required=False,
        max_length=2_000,
        widget=text_input(type="search", enterkeyhint="search"),
    )
    kb = forms.TypedMultipleChoiceField(
        label=gettext_lazy("Knowledge bases"),
        required=False,
        coerce=int,
        widget=checkboxes(),
    )
    profile = forms.ChoiceField(label=gettext_lazy("Profile"), required=False, widget=select())
    budget = forms.IntegerField(
        label=gettext_lazy("Time limit, ms"),
        required=False,
        min_value=1,
        max_value=MAX_LATENCY_BUDGET_MS,
        widget=text_input(inputmode="numeric"),
    )
    tags = NamesField(
        label=gettext_lazy("Tags"), required=False, max_length=2_000, widget=text_input(placeholder=gettext_lazy("any"))
    )
    concepts = NamesField(
        label=gettext_lazy("Concepts"),
        required=False,
        max_length=2_000,
        widget=text_input(placeholder=gettext_lazy("any")),
    )
    source_type = forms.TypedChoiceField(
        label=gettext_lazy("Source type"),
        required=False,
        choices=[("", gettext_lazy("any")), *Document.SourceType.choices],
        coerce=lambda value: [value],
        widget=select(),
    )
    metadata = ConditionsField(
        label=gettext_lazy("Metadata"),
        required=False,
        max_length=2_000,
        widget=text_input(
            spellcheck="false", autocapitalize="off", placeholder=gettext_lazy("year >= 2023, department = sales")
        ),
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None,
        bases: Sequence[KnowledgeBase],
        profiles: Sequence[ProfileChoice],
        inherited: Mapping[str, str],
        prefix: str | None = None,
    ) -> None:
        super().__init__(data, prefix=prefix)
        self.filters = Filters()
        self._bases = {kb.pk: kb for kb in bases}
        self._profiles = {choice.value: choice for choice in profiles}
        self.offer("kb", [(str(kb.pk), kb.name) for kb in bases])
        own = _("Knowledge base default (%(profiles)s)") % {"profiles": inherited["profile"]}
        self.offer("profile", [("", own), *as_field_choices(profiles)])
        for name, choices in choices_text().items():
            self.offer(name, [("", _("Default (%(value)s)") % {"value": inherited[name]}), *choices.items()])
        for name in ("top_k", "threshold", "neighbours", *WEIGHTS):
            self.fields[name].widget.attrs["placeholder"] = inherited[name]
        self.fields["budget"].widget.attrs["placeholder"] = str(settings.LATENCY_BUDGET_MS)
        if data is None and len(bases) == 1:
            self.initial["kb"] = [str(bases[0].pk)]

    def offer(self, name: str, choices: Sequence[tuple[str, str | list[tuple[str, str]]]]) -> None:
        cast(forms.ChoiceField, self.fields[name]).choices = list(choices)

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if values.get("q") and not values.get("kb") and "kb" not in self.errors:
            self.add_error("kb", _("Choose at least one knowledge base."))
        asked = {name: values.get(field) for field, name in FILTERS.items() if values.get(field)}
        try:
            self.filters = Filters.parse(asked)
        except InvalidFilter as error:
            fields = {name: field for field, name in FILTERS.items()}
            self.add_error(fields.get(error.field.partition("[")[0]), str(error))
        return values

    @property
    def asks(self) -> bool:
        return self.is_bound and self.is_valid() and bool(self.cleaned_data["q"])

    def focus_query(self) -> None:
        """Puts a reader who has asked nothing yet into the query; beside results the keys of the page are at hand."""
        if not (self.asks or self.errors):
            self.fields["q"].widget.attrs["autofocus"] = True

    @property
    def main_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in ("top_k", "threshold")]

    @property
    def advanced_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in ("profile", "rerank", "fusion")]

    @property
    def groups(self) -> list[tuple[Any, list[forms.BoundField]]]:
        named = {
            _("Fusion by reciprocal ranks (RRF)"): ("vector_weight", "keyword_weight", "question_weight"),
            _("Fusion by weighted sum"): ("vector_share", "keyword_share"),
            _("Query and results"): ("rewrite", "neighbours", "budget"),
            _("Only documents with"): ("tags", "concepts", "source_type", "metadata"),
        }
        return [(legend, [self[name] for name in names]) for legend, names in named.items()]

    @property
    def has_settings(self) -> bool:
        return any(self[name].value() for name in (*SETTINGS, *FILTERS, "budget", "profile"))

    @property
    def folded_fields(self) -> list[forms.BoundField]:
        return [*self.advanced_fields, *(field for _legend, fields in self.groups for field in fields)]

    @property
    def folded_count(self) -> int:
        return sum(bool(field.value()) for field in self.folded_fields)

    @property
    def has_folded_errors(self) -> bool:
        return any(field.errors for field in self.folded_fields)

    @property
    def overridden(self) -> list[str]:
        return self.given_as_text((*SETTINGS, "budget", *FILTERS))

    def given_as_text(self, names: Iterable[str]) -> list[str]:
        given = [self[name] for name in names if self[name].value()]
        return [
            f"{field.label} {dict(getattr(field.field, 'choices', ())).get(field.value(), field.value())}"
            for field in given
        ]

    @property
    def profile_choice(self) -> ProfileChoice | None:
        """The profile that was chosen; None where each knowledge base searches by its own."""
        return self._profiles.get(self["profile"].value() or "")

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings that were given, by the names of RetrievalConfig, of a valid form."""
        values = {**self.cleaned_data, "rerank": {"on": True, "off": False}.get(self.cleaned_data["rerank"])}
        given = {setting: values[name] for name, setting in SETTINGS.items() if values[name] not in (None, "")}
        if given.get("score_threshold") and given.get("use_rerank") is not False and not self._has_reranker:
            given |= dict.fromkeys(CUTS_WITHOUT_RERANKER, given.pop("score_threshold"))
        return given

    @property
    def _has_reranker(self) -> bool:
        """Whether a threshold is meant for a model's scores; without one it is the cut of the scale that there is."""
        choice = self.profile_choice
        chosen = [self._bases[pk].profile for pk in self.cleaned_data["kb"] if pk in self._bases]
        profiles = [choice.profile] if choice else chosen
        return any(has_reranker(environment_config().override(each.settings)) for each in profiles)

    def request(self) -> SearchRequest:
        choice = self.profile_choice
        return SearchRequest(
            query=self.cleaned_data["q"],
            knowledge_base_ids=self.cleaned_data["kb"],
            profile=name_and_version(choice.value)[0] if choice else "",
            profile_version=choice.version if choice else None,
            overrides=self.overrides,
            explain=True,
            latency_budget_ms=self.cleaned_data["budget"],
            filters=None if self.filters.is_empty else self.filters,
        )

    def reject(self, error: InvalidConfiguration) -> None:
        field = next((name for name, setting in SETTINGS.items() if setting == error.field), None)
        self.add_error(field, configuration_error(error))


SearchForm.base_fields.update(
    {name: setting_field(DECLARED[setting], may_be_empty=True) for name, setting in SETTINGS.items()}
)


def parameters_of(asked: Mapping[str, Any]) -> dict[str, str]:
    """The fields of the form that ask for a search again, as far as it has them; `asked`: as the search log has it."""
    overrides, filters = asked.get("overrides") or {}, asked.get("filters") or {}
    given = {field: overrides.get(setting) for field, setting in SETTINGS.items()}
    given["threshold"] = overrides.get("score_threshold", overrides.get(CUTS_WITHOUT_RERANKER[0]))
    if given["rerank"] is not None:
        given["rerank"] = "on" if given["rerank"] else "off"
    if name := asked.get("profile"):
        given["profile"] = profile_value(name, asked.get("profile_version"))
    given["budget"] = asked.get("latency_budget_ms")
    given |= {field: ", ".join(map(str, filters.get(name) or ())) for field, name in FILTERS.items()}
    given["metadata"] = write_conditions(filters.get("metadata") or ())
    return {field: str(value) for field, value in given.items() if value not in (None, "")}


def search_parameters(kb_ids: Iterable[int], query: str, asked: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The form's fields by name, for a URL of one of its pages; `asked` as in `parameters_of`."""
    return [*(("kb", kb_id) for kb_id in kb_ids), ("q", query), *parameters_of(asked).items()]


def choices_text() -> dict[str, dict[str, str]]:
    return {
        "rerank": {"on": _("on"), "off": _("off")},
        "fusion": choices_of("fusion"),
        "rewrite": choices_of("rewrite"),
    }


def settings_text(profile: RetrievalProfile) -> dict[str, str]:
    """What a search under a profile inherits, as the form shows it."""
    config: RetrievalConfig = environment_config().override(profile.settings)
    threshold, labels, weights = config.score_threshold, choices_text(), channel_weights(config)
    return {
        "profile": f"{profile}: {weights['vector']:g} / {weights['bm25']:g}",
        "top_k": str(result_count(config)),
        "threshold": _("default") if threshold is None else f"{threshold:g}",
        "rerank": labels["rerank"]["on" if config.use_rerank else "off"],
        "fusion": labels["fusion"][config.fusion],
        "rewrite": labels["rewrite"][config.rewrite],
        "neighbours": str(config.neighbours),
        **{name: f"{getattr(config, SETTINGS[name]):g}" for name in WEIGHTS},
    }


def inherited_settings(
    choice: Mapping[str, Mapping[str, Mapping[str, str]]], kbs: Sequence[str], profile: str
) -> dict[str, str]:
    """The values that empty fields stand for; where knowledge bases differ, each of them. The page's script does the same."""
    own = [choice["kbs"][kb] for kb in kbs or choice["kbs"]]
    named = choice["profiles"].get(profile)
    shown = {name: [named] if named else own for name in SETTINGS} | {"profile": own}
    return {name: " | ".join(dict.fromkeys(each[name] for each in rows)) for name, rows in shown.items()}


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page's form, filled from its URL, and what it chooses from.

    `bases` are those of `visible_bases`, `chosen` those that the URL names, in its order. `profiles` are by the value
    of the form's field; `inheritable` is what empty fields stand for under each knowledge base and profile, for the
    page's script.
    """

    form: SearchForm
    bases: Mapping[int, KnowledgeBase]
    chosen: tuple[KnowledgeBase, ...]
    profiles: Mapping[str, ProfileChoice]
    inheritable: Mapping[str, Any]

    @property
    def context(self) -> dict[str, Any]:
        return {
            "form": self.form,
            "bases": self.bases,
            "inheritable": self.inheritable,
            "empty_bases": [kb for kb in self.chosen if not getattr(kb, "has_chunks", True)],
        }


def open_search_page(principal: Principal, given: QueryDict) -> SearchPage:
    """The form of a search, and what it may choose, in two queries.

    Without a field of the form in the URL, the form is not bound. Http404: the URL names a knowledge base that does not
    exist for this principal.
    """
    bases = visible_bases(principal)
    by_id = {str(pk): kb for pk, kb in bases.items()}
    try:
        chosen = [by_id[each] for each in dict.fromkeys(given.getlist("kb"))]
    except KeyError as error:
        raise Http404(_("There is no knowledge base with the id %(ids)s.") % {"ids": error.args[0]}) from error
    asked = given.get("profile", "")
    profiles = {choice.value: choice for choice in profile_choices(principal, asked, [kb.pk for kb in chosen])}
    inheritable = {
        "kbs": {str(kb.pk): settings_text(kb.profile) for kb in bases.values()},
        "profiles": {value: settings_text(choice.profile) for value, choice in profiles.items()},
    }
    inherited = inherited_settings(inheritable, [str(kb.pk) for kb in chosen], asked)
    data = given if any(name in given for name in SearchForm.base_fields) else None
    form = SearchForm(data, list(bases.values()), list(profiles.values()), inherited)
    form.focus_query()
    return SearchPage(form, bases, tuple(chosen), profiles, inheritable)


def with_current(request: HttpRequest, kb_id: int | None = None) -> QueryDict:
    """What the address of a page asks for, in the knowledge base of that id, else in those that it names, else the current one."""
    given = request.GET.copy()
    if kb_id is not None:
        given.setlist("kb", [str(kb_id)])
    elif not given.getlist("kb") and (current := current_knowledge_base(request)) is not None:
        given.setlist("kb", [str(current.pk)])
    return given


def visible_bases(principal: Principal) -> dict[int, KnowledgeBase]:
    """The knowledge bases that may be searched, by id, with their profile, `has_chunks` and `may_edit`."""
    bases = (
        KnowledgeBase.objects.visible_to(principal)
        .select_related("profile")
        .annotate(
            has_chunks=Exists(Chunk.objects.filter(knowledge_base=OuterRef("pk"))),
            may_edit=Exists(KnowledgeBase.objects.editable_by(principal).order_by().filter(pk=OuterRef("pk"))),
        )
    )
    return {kb.pk: kb for kb in bases}
