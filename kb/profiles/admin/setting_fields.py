"""Fields of forms that take retrieval settings, made from the declarations of `retrieval.config`."""

from typing import Any, get_args

from django import forms
from django.utils.translation import gettext_lazy
from unfold.widgets import INPUT_CLASSES, SELECT_CLASSES

from retrieval.config import SETTINGS, TYPES


def text_input(**attrs: Any) -> forms.TextInput:
    """A text field, so that a number that is none stays in it to be corrected."""
    return forms.TextInput({"class": " ".join(INPUT_CLASSES), "autocomplete": "off", **attrs})


def select(**attrs: Any) -> forms.Select:
    return forms.Select({"class": " ".join(SELECT_CLASSES), **attrs})


def setting_field(name: str) -> forms.Field:
    """The field of a setting that may be left empty; who makes the form offers the values of one that is chosen."""
    declared = SETTINGS[name]
    label: dict[str, Any] = {"label": gettext_lazy(declared.label), "required": False}
    if declared.choices or TYPES[name] is bool:
        return forms.ChoiceField(widget=select(), **label)
    low, high = declared.between or (None, None)
    is_whole = int in (get_args(TYPES[name]) or (TYPES[name],))
    kind: Any = forms.IntegerField if is_whole else forms.FloatField
    widget = text_input(inputmode="numeric" if is_whole else "decimal")
    field: forms.Field = kind(min_value=low, max_value=high, widget=widget, **label)
    return field
