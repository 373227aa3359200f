"""The form that starts an evaluation run: which set, under which profile, with which settings changed for this run only."""

import json
import re
from collections.abc import Iterable
from typing import Any, cast

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Q
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from unfold.widgets import SELECT_CLASSES, TEXTAREA_CLASSES

from kb.access.models import Principal
from kb.profiles.admin.choices import (
    choices_of,
    configuration_error,
    profile_state,
    select,
    setting_field,
    text_input,
    value_text,
)
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import configuration_of
from kb.quality.models import EvalQuery, EvalRun, EvalSet
from kb.web.admin.scoped import count_of, row_id
from retrieval.config import SETTINGS
from retrieval.errors import InvalidConfiguration

WEIGHTS = ("vector_weight", "keyword_weight", "question_weight", "hybrid_vector_weight", "hybrid_text_weight")
RERANKING = ("fusion", "candidate_floor", "rerank_candidates", "top_k", "score_threshold")
COMMON = (*RERANKING, *WEIGHTS, "rrf_k")
# Another set has other profiles, and another profile other values behind the empty fields: the page is asked for them.
RELOADING = {
    "hx-get": "",
    "hx-include": "#er-fields",
    "hx-target": "#er-fields",
    "hx-select": "#er-fields",
    "hx-swap": "outerHTML",
    "hx-vals": "js:{unfolded: document.querySelector('#er-fields details').open ? 'yes' : ''}",
}
LINE = re.compile(r"\s*(\w+)\s*[=:]\s*(.+?)\s*")


class SetField(forms.ModelChoiceField):  # type: ignore[type-arg]
    def label_from_instance(self, obj: Any) -> str:
        size = ngettext("%(count)d query", "%(count)d queries", obj.query_count) % {"count": obj.query_count}
        return f"{obj.name} · {obj.knowledge_base.name} · {size}"


class SetForm(forms.Form):
    eval_set = SetField(
        EvalSet.objects.none(),
        label=gettext_lazy("Evaluation set"),
        empty_label=gettext_lazy("Choose a set"),
        widget=forms.Select({"class": " ".join(SELECT_CLASSES)}),
    )

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sets = EvalSet.objects.editable_by(principal).select_related("knowledge_base__profile")
        cast(SetField, self.fields["eval_set"]).queryset = sets.annotate(query_count=count_of(EvalQuery, "eval_set"))
        chosen = row_id(str(self["eval_set"].value() or ""))
        self.chosen_set = None if chosen is None else sets.filter(pk=chosen).first()

    @property
    def has_sets(self) -> bool:
        """Whether there is any set that the user may run; counted by the choices that the page shows anyway."""
        return len(cast(Any, self.fields["eval_set"]).choices) > 1


class StartForm(SetForm):
    """Where a setting is left empty, the run inherits it from the profile."""

    profile = forms.ChoiceField(label=gettext_lazy("Profile"), required=False, widget=select(**RELOADING))
    limit = forms.IntegerField(
        label=gettext_lazy("Only the first"),
        required=False,
        min_value=1,
        max_value=10_000_000,
        widget=text_input(inputmode="numeric", placeholder=gettext_lazy("all")),
    )
    other = forms.CharField(
        label=gettext_lazy("Other settings"),
        required=False,
        max_length=4_000,
        widget=forms.Textarea(
            {"class": " ".join([*TEXTAREA_CLASSES, "kb-mono"]), "rows": 3, "spellcheck": "false", "autocomplete": "off"}
        ),
    )

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, principal=principal, **kwargs)
        self.fields["eval_set"].widget.attrs.update(RELOADING)
        self.overrides: dict[str, Any] = {}
        self.profiles = {str(row.pk): row for row in _offered(principal, self.chosen_set)}
        own = _("The knowledge base’s own")
        if self.chosen_set is not None:
            own = _("The knowledge base’s own (%(profile)s)") % {"profile": self.chosen_set.knowledge_base.profile}
        self.offer("profile", [("", own), *_grouped(self.profiles.values())])
        # Empty fields show what they stand for under the chosen profile
        inherited = configuration_of(self.chosen_profile.settings if self.chosen_profile else {}).as_dict()
        fusions = choices_of("fusion")
        self.offer(
            "fusion", [("", _("Inherited (%(value)s)") % {"value": fusions[inherited["fusion"]]}), *fusions.items()]
        )
        for name in COMMON[1:]:
            self.fields[name].widget.attrs["title"] = _(SETTINGS[name].help)
            self.fields[name].widget.attrs["placeholder"] = value_text(name, inherited[name])

    def offer(self, name: str, choices: list[Any]) -> None:
        cast(forms.ChoiceField, self.fields[name]).choices = choices

    @property
    def chosen_profile(self) -> RetrievalProfile | None:
        """The profile that the run would have; None before a set is chosen."""
        named = self.profiles.get(str(self["profile"].value() or ""))
        return named or (self.chosen_set.knowledge_base.profile if self.chosen_set else None)

    @property
    def is_unfolded(self) -> bool:
        return any(self[name].errors or self[name].value() not in (None, "") for name in (*COMMON, "other"))

    @property
    def groups(self) -> dict[str, list[forms.BoundField]]:
        groups = {
            _("Candidates, reranking and gate"): RERANKING,
            _("Fusion by reciprocal ranks (RRF)"): (*WEIGHTS[:3], "rrf_k"),
            _("Fusion by weighted sum"): WEIGHTS[3:],
        }
        return {title: [self[name] for name in names] for title, names in groups.items()}

    def clean_other(self) -> dict[str, Any]:
        """Settings of one a line, their values as in JSON.

        Raises:
            ValidationError: a line is no setting; it is named.
        """
        values = {}
        for number, line in enumerate(self.cleaned_data["other"].splitlines(), 1):
            if found := LINE.fullmatch(line):
                values[found[1]] = _json_or_text(found[2])
            elif line.strip():
                raise ValidationError(
                    _("Line %(number)d is no setting: write it as “name = value”.") % {"number": number}
                )
        return values

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if self.errors:
            return values
        self.overrides = {name: values[name] for name in COMMON if values[name] not in (None, "")} | values["other"]
        # Says beside its field what the resolved settings cannot be
        try:
            configuration_of({**(self.chosen_profile.settings if self.chosen_profile else {}), **self.overrides})
        except InvalidConfiguration as error:
            self.add_error(error.field if error.field in COMMON else "other", configuration_error(error))
        return values


StartForm.base_fields.update({name: setting_field(name) for name in COMMON})


def again_parameters(run: EvalRun) -> dict[str, str]:
    """The fields of the form that start the same run again."""
    other = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in run.overrides.items()
        if name not in COMMON
    ]
    given = {
        "eval_set": run.eval_set_id,
        "profile": run.profile_id,
        "limit": run.query_limit,
        **{name: run.overrides.get(name) for name in COMMON},
        "other": "\n".join(other),
    }
    return {name: str(value) for name, value in given.items() if value not in (None, "")}


def _json_or_text(value: str) -> Any:
    """A value as JSON has it; a bare word is a text, and words with commas between them are a list."""
    try:
        return json.loads(value)
    except ValueError:
        return [each.strip() for each in value.split(",")] if "," in value else value


def _offered(principal: Principal, eval_set: EvalSet | None) -> Iterable[RetrievalProfile]:
    """Every version of the profiles that may serve a set: shared ones, and those of its knowledge base."""
    profiles = RetrievalProfile.objects.visible_to(principal).select_related("knowledge_base")
    own = [eval_set.knowledge_base_id] if eval_set else []
    return profiles.filter(Q(knowledge_base=None) | Q(knowledge_base__in=own))


def _grouped(profiles: Iterable[RetrievalProfile]) -> list[tuple[str, list[tuple[str, str]]]]:
    by_name: dict[str, list[tuple[str, str]]] = {}
    for profile in profiles:
        by_name.setdefault(profile.name, []).append((str(profile.pk), f"{profile} · {profile_state(profile)}"))
    return list(by_name.items())
