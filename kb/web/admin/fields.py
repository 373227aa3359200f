"""Fields of forms in the theme's look, and those of declared settings."""

from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

from django import forms
from django.utils.translation import gettext as _, gettext_lazy, pgettext
from unfold.widgets import CHECKBOX_CLASSES, INPUT_CLASSES, RADIO_CLASSES, SELECT_CLASSES, TEXTAREA_CLASSES

from retrieval.settings import Setting

Choices = list[tuple[str, str | list[tuple[str, str]]]]


def text_input(**attrs: Any) -> forms.TextInput:
    """A text field, so that a number that is none stays in it to be corrected."""
    return forms.TextInput({"class": " ".join(INPUT_CLASSES), "autocomplete": "off", **attrs})


def textarea(rows: int, *, is_code: bool = False) -> forms.Textarea:
    about = {"spellcheck": "false", "autocomplete": "off"} if is_code else {}
    classes = [*TEXTAREA_CLASSES, "kb-mono"] if is_code else TEXTAREA_CLASSES
    return forms.Textarea({"class": " ".join(classes), "rows": rows, **about})


def select(**attrs: Any) -> forms.Select:
    return forms.Select({"class": " ".join(SELECT_CLASSES), **attrs})


def checkbox() -> forms.CheckboxInput:
    return forms.CheckboxInput({"class": " ".join(CHECKBOX_CLASSES)})


def checkboxes() -> forms.CheckboxSelectMultiple:
    return forms.CheckboxSelectMultiple({"class": " ".join(CHECKBOX_CLASSES)})


def radios() -> forms.RadioSelect:
    return forms.RadioSelect({"class": " ".join(RADIO_CLASSES)})


def setting_field(declared: Setting, *, choices: Choices | None = None, may_be_empty: bool = False) -> forms.Field:
    """The field of a setting; `choices` are those of a name that is one of several, else those that are declared.

    With `may_be_empty` also a number or a switch may be left empty; the form then offers the switch's choices.
    """
    kinds = get_args(declared.kind) or (declared.kind,)
    options: dict[str, Any] = {"label": gettext_lazy(declared.label), "required": False}
    if not may_be_empty:
        options["help_text"] = gettext_lazy(declared.help)
    if choices is not None or declared.choices or (may_be_empty and bool in kinds):
        offered: Any = choices or [(value, gettext_lazy(label)) for value, label in declared.choices.items()]
        return forms.ChoiceField(choices=offered, widget=select(), **options)
    if bool in kinds:
        return forms.BooleanField(widget=checkbox(), **options)
    if declared.between is not None:
        low, high = declared.between
        is_whole = int in kinds
        number: Any = forms.IntegerField if is_whole else forms.FloatField
        options |= {"required": not may_be_empty, "widget": text_input(inputmode="numeric" if is_whole else "decimal")}
        return cast(forms.Field, number(min_value=low, max_value=high, **options))
    widget = textarea(declared.lines) if declared.lines > 1 else text_input()
    return forms.CharField(max_length=declared.most, widget=widget, **options)


def labels_of(declared: Setting | None) -> dict[str, str]:
    """The labels of the values of a setting that is one of a few words."""
    return {value: _(label) for value, label in declared.choices.items()} if declared else {}


def names_by_group(settings: Mapping[str, Setting]) -> dict[str, list[str]]:
    """The names of settings by the title of their group, in the order of the form."""
    titles = dict.fromkeys(declared.group for declared in settings.values())
    return {_(title): [name for name, declared in settings.items() if declared.group == title] for title in titles}


def listed(members: Iterable[str]) -> str:
    return pgettext("between the members of a list", ", ").join(members)


def value_text(declared: Setting | None, value: Any) -> str:
    """A setting's value as a page shows it; None is the value that is worked out."""
    if value is None:
        return _("auto")
    if isinstance(value, bool):
        return _("on") if value else _("off")
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return listed(value)
    return labels_of(declared).get(str(value), str(value))
