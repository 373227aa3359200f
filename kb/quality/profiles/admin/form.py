"""The form of a profile's version: a field for every setting, empty where it is inherited from the environment."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, get_args

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase
from kb.profiles.admin.choices import (
    choices_of,
    configuration_error,
    setting_label,
    value_text,
)
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, configuration_of, environment_config
from kb.web.admin.fields import names_by_group, select, text_input, textarea
from retrieval.config import RERANKERS, SETTINGS
from retrieval.errors import InvalidConfiguration

SHARED = "shared"
# Stands for a setting that the form leaves empty, since None is a value of some.
INHERITED: Final = object()


class SettingField(forms.CharField):
    """A setting as a text: a number, a choice, or names of rerankers; its value is the setting's, or `INHERITED`."""

    def __init__(self, name: str, inherited: Any) -> None:
        declared = SETTINGS[name]
        self.kinds = get_args(declared.kind) or (declared.kind,)
        self.bounds = declared.between
        self.may_be_auto = type(None) in self.kinds
        self.labels = choices_of(name) or ({"on": _("on"), "off": _("off")} if bool in self.kinds else {})
        text = value_text(name, inherited)
        if self.labels:
            widget: Any = select()
            widget.choices = [("", _("Default (%(value)s)") % {"value": text}), *self.labels.items()]
        elif self.bounds is None:
            widget = text_input(spellcheck="false", placeholder=_as_text(inherited))
        else:
            # A keyboard that has digits only could not write auto.
            widget = text_input(
                placeholder=text,
                **({} if self.may_be_auto else {"inputmode": ("decimal" if float in self.kinds else "numeric")}),
            )
        super().__init__(label=setting_label(name), help_text=_(declared.help), required=False, widget=widget)

    def clean(self, value: Any) -> Any:
        text = str(super().clean(value))
        if not text:
            return INHERITED
        if self.labels:
            if text not in self.labels:
                raise ValidationError(_("Choose one of the values."))
            return text == "on" if bool in self.kinds else text
        return _names(text) if self.bounds is None else self._number(text, *self.bounds)

    def _number(self, text: str, low: float, high: float) -> float | None:
        if self.may_be_auto and text.casefold() in {"auto", _("auto")}:
            return None
        with suppress(ValueError):
            number = float(text) if float in self.kinds else int(text)
            if low <= number <= high:
                return number
        bounds = {"low": f"{low:,}", "high": f"{high:,}"}
        message = (
            _("Give a number from %(low)s to %(high)s.")
            if float in self.kinds
            else _("Give a whole number from %(low)s to %(high)s.")
        )
        raise ValidationError(" ".join([message % bounds, *([_("Or write “auto”.")] if self.may_be_auto else [])]))


def _names(text: str) -> list[str]:
    """Names of rerankers with commas between them; `none` is an empty list."""
    if text.casefold() in {"none", _("none")}:
        return []
    names = [name for each in re.split("[,，]", text) if (name := each.strip())]
    if unknown := [name for name in names if name not in RERANKERS]:
        raise ValidationError(
            _("There is no reranker “%(name)s”: choose from %(names)s.")
            % {"name": unknown[0], "names": ", ".join(RERANKERS)}
        )
    if len(set(names)) < len(names):
        raise ValidationError(_("A reranker is named twice: name each once."))
    return names


class ProfileForm(forms.Form):
    """The next version of a profile, which begins with the settings of `base`, or the first of a new one.

    A new one may be that of one of the `places`, or be shared by all if `may_share`; no places: a further version.
    """

    name = forms.CharField(label=gettext_lazy("Name"), max_length=MAX_NAME_CHARACTERS, widget=text_input())
    place = forms.ChoiceField(label=gettext_lazy("Belongs to"), widget=select())
    description = forms.CharField(
        label=gettext_lazy("What is different"),
        required=False,
        max_length=10_000,
        widget=textarea(2),
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None,
        base: RetrievalProfile | None,
        *,
        places: Sequence[KnowledgeBase] | None = None,
        may_share: bool = False,
        initial: Mapping[str, Any] | None = None,
    ) -> None:
        given = {name: _as_text(value) for name, value in base.settings.items()} if base else {}
        super().__init__(data, initial={**given, **(initial or {})})
        self.base = base
        self._places = {str(kb.pk): kb for kb in places or ()}
        if places is None:
            del self.fields["name"], self.fields["place"]
        else:
            shared = [(SHARED, _("all knowledge bases (shared)"))] if may_share else []
            named = [(pk, kb.name) for pk, kb in self._places.items()]
            self.fields["place"].choices = [*named, *shared]  # type: ignore[attr-defined]
        environment = environment_config().as_dict()
        for name in SETTINGS:
            self.fields[name] = SettingField(name, environment[name])

    @property
    def groups(self) -> list[dict[str, Any]]:
        fields_of = {title: [self[name] for name in names] for title, names in names_by_group(SETTINGS).items()}
        return [
            {
                "title": title,
                "fields": fields,
                "given": sum(bool(field.value()) for field in fields),
                "has_errors": any(field.errors for field in fields),
            }
            for title, fields in fields_of.items()
        ]

    @property
    def settings(self) -> dict[str, Any]:
        values = {name: self.cleaned_data[name] for name in SETTINGS if name in self.cleaned_data}
        return {name: value for name, value in values.items() if value is not INHERITED}

    @property
    def place_chosen(self) -> KnowledgeBase | None:
        """None: shared."""
        return self._places.get(self.cleaned_data["place"])

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if self.errors:
            return values
        try:
            configuration_of(self.settings)
        except InvalidConfiguration as error:
            self.add_error(error.field if error.field in self.fields else None, configuration_error(error))
        if self.base is not None and "name" not in self.fields and self.settings == self.base.settings:
            self.add_error(
                None,
                _("These are the settings of version %(version)d already: change one, or go back.")
                % {"version": self.base.version},
            )
        return values


def _as_text(value: Any) -> str:
    if value is None:
        return _("auto")
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(value) or _("none")
    return str(value)
