"""What the audit log calls tables and columns, in the words that their own pages use."""

import json
from typing import Any

from django.apps import apps
from django.contrib.admin.utils import display_for_value
from django.db.models import DateTimeField
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from kb.access.models.audit import MODELS


def kind_in_words(kind: str) -> str:
    """What an object is called; a kind that is unknown here by its code."""
    return str(apps.get_model("kb", MODELS[kind])._meta.verbose_name) if kind in MODELS else kind


def kinds_in_words() -> dict[str, str]:
    """All kinds of objects."""
    return {kind: kind_in_words(kind) for kind in MODELS}


def field_in_words(kind: str, name: str) -> str:
    """What a field is called; one that is gone, or never had a name for people, by its code."""
    return str(getattr(field_of(kind, name), "verbose_name", name))


def field_of(kind: str, name: str) -> Any:
    """The field behind a name in the log, which leaves out the end of a column's; None where there is none any more."""
    fields = apps.get_model("kb", MODELS[kind])._meta.fields if kind in MODELS else ()
    return next((each for each in fields if name in {each.name, each.column.removesuffix("_id")}), None)


def value_in_words(kind: str, name: str, value: Any) -> str:
    """A value as the pages of its kind show it: choices by their label, times in the site's time zone."""
    field = field_of(kind, name)
    labels = dict(getattr(field, "flatchoices", ()))
    if value is None:
        return ""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, str | int) and value in labels:
        return str(labels[value])
    if isinstance(field, DateTimeField) and (moment := parse_datetime(str(value))):
        return display_for_value(moment, "")
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " · ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
