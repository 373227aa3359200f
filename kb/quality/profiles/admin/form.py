"""The form of a profile's version: a field for every setting, empty where it is inherited from the environment."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.widgets import INPUT_CLASSES, SELECT_CLASSES, TEXTAREA_CLASSES

from kb.access.models import KnowledgeBase
from kb.profiles.admin.choices import choices_of, groups, setting_label, value_text
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, configuration_of, environment_config
from retrieval.config import RERANKERS, SETTINGS, TYPES
from retrieval.errors import InvalidConfiguration

SHARED = "shared"
SWITCH = {"on": True, "off": False}
AUTO, NONE = "auto", "none"
BETWEEN_NAMES = re.compile("[,，]")


class _Inherited:
    """Stands for a setting that the form leaves empty, since None is a value of some."""


INHERITED: Final = _Inherited()


def _widget(kind: type[forms.Widget] = forms.TextInput, **attrs: Any) -> Any:
    classes = {forms.Select: SELECT_CLASSES, forms.Textarea: TEXTAREA_CLASSES}.get(kind, INPUT_CLASSES)
    return kind({"class": " ".join(classes), **attrs})


class SettingField(forms.CharField):
    """A setting as a text; its value is that of the setting, or `INHERITED`."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(label=setting_label(name), help_text=_(SETTINGS[name].help), required=False, **kwargs)
        self.name = name

    def clean(self, value: Any) -> Any:
        text = str(super().clean(value))
        return self.read(text) if text else INHERITED

    def read(self, text: str) -> Any:
        """The setting's value; raises ValidationError."""
        raise NotImplementedError


class NumberField(SettingField):
    """A number; `auto` where the search can work it out by itself."""

    def __init__(self, name: str) -> None:
        self.kinds = get_args(TYPES[name]) or (TYPES[name],)
        mode = "decimal" if float in self.kinds else "numeric"
        # A keyboard that has digits only could not write auto.
        widget = _widget(autocomplete="off") if self.may_be_auto else _widget(autocomplete="off", inputmode=mode)
        super().__init__(name, widget=widget)

    @property
    def bounds(self) -> tuple[float, float]:
        between = SETTINGS[self.name].between
        assert between is not None  # noqa: S101 - every number has them
        return between

    @property
    def may_be_auto(self) -> bool:
        return type(None) in self.kinds

    def read(self, text: str) -> float | None:
        if self.may_be_auto and text.casefold() in {AUTO, _("auto")}:
            return None
        low, high = self.bounds
        try:
            number = float(text) if float in self.kinds else int(text)
        except ValueError as error:
            raise ValidationError(self._expected()) from error
        if not low <= number <= high:
            raise ValidationError(self._expected())
        return number

    def _expected(self) -> str:
        low, high = (f"{bound:,}" for bound in self.bounds)
        if float in self.kinds:
            message = _("Give a number from %(low)s to %(high)s.") % {"low": low, "high": high}
        else:
            message = _("Give a whole number from %(low)s to %(high)s.") % {"low": low, "high": high}
        # Outside of the f-string, where makemessages finds it.
        or_auto = _("Or write “auto”.")
        return f"{message} {or_auto}" if self.may_be_auto else message


class NamesField(SettingField):
    """Names of rerankers with commas between them; `none` is an empty list."""

    def __init__(self, name: str) -> None:
        super().__init__(name, widget=_widget(autocomplete="off", spellcheck="false"))

    def read(self, text: str) -> list[str]:
        if text.casefold() in {NONE, _("none")}:
            return []
        names = [name for each in BETWEEN_NAMES.split(text) if (name := each.strip())]
        if unknown := [name for name in names if name not in RERANKERS]:
            message = _("There is no reranker “%(name)s”: choose from %(names)s.")
            raise ValidationError(message % {"name": unknown[0], "names": ", ".join(RERANKERS)})
        if len(set(names)) < len(names):
            raise ValidationError(_("A reranker is named twice: name each once."))
        return names


class ChoiceField(SettingField):
    """One of a few words, or a switch."""

    def __init__(self, name: str, inherited: str) -> None:
        labels = choices_of(name) or {"on": _("on"), "off": _("off")}
        choices = [("", _("Inherited (%(value)s)") % {"value": inherited}), *labels.items()]
        widget = _widget(forms.Select)
        widget.choices = choices
        super().__init__(name, widget=widget)
        self.labels = labels

    def read(self, text: str) -> Any:
        if text not in self.labels:
            raise ValidationError(_("Choose one of the values."))
        return SWITCH[text] if TYPES[self.name] is bool else text


@dataclass(frozen=True, slots=True)
class FieldGroup:
    """Settings that belong together."""

    title: str
    fields: tuple[forms.BoundField, ...]

    @property
    def given(self) -> int:
        """How many of them are not inherited."""
        return sum(bool(field.value()) for field in self.fields)

    @property
    def has_errors(self) -> bool:
        return any(field.errors for field in self.fields)


class ProfileForm(forms.Form):
    """The next version of a profile, or with `places` the first of a new one.

    Args:
        data: None before it was sent.
        base: the version whose settings it begins with.
        places: the knowledge bases whose own a new profile may be; None for a further version.
        may_share: a new one may be shared by all.
    """

    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=MAX_NAME_CHARACTERS,
        widget=_widget(autocomplete="off"),
    )
    place = forms.ChoiceField(label=gettext_lazy("Belongs to"), widget=_widget(forms.Select))
    description = forms.CharField(
        label=gettext_lazy("What is different"),
        required=False,
        max_length=10_000,
        widget=_widget(forms.Textarea, rows=2),
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
            self.fields[name] = _field(name, environment[name])

    @property
    def groups(self) -> list[FieldGroup]:
        return [FieldGroup(title, tuple(self[name] for name in names)) for title, names in groups().items()]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are not inherited, by the names of RetrievalConfig."""
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
            message = str(error)
            if error.field in {"keyword_weight", "hybrid_text_weight"}:
                message = _("Both weights are 0: give at least one channel a weight.")
            self.add_error(error.field if error.field in self.fields else None, message)
        if self.base is not None and "name" not in self.fields and self.settings == self.base.settings:
            message = _("These are the settings of version %(version)d already: change one, or go back.")
            self.add_error(None, message % {"version": self.base.version})
        return values


def _field(name: str, inherited: Any) -> SettingField:
    inherited_text = value_text(name, inherited)
    if TYPES[name] is bool or choices_of(name):
        return ChoiceField(name, inherited_text)
    field: SettingField = NumberField(name) if SETTINGS[name].between else NamesField(name)
    field.widget.attrs["placeholder"] = _as_text(inherited) if isinstance(inherited, tuple) else inherited_text
    return field


def _as_text(value: Any) -> str:
    """What a field holds for a setting's value."""
    if value is None:
        return _("auto")
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(value) or _("none")
    return str(value)
