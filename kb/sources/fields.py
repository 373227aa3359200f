"""Settings of a source: each declared once, for the form, the API and the check of what is given."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from kb.base.errors import Rejected

MOST_CHARACTERS: Final = 300
MOST_CHARACTERS_OF_LONG: Final = 20_000


@dataclass(frozen=True, slots=True)
class Field:
    """A setting: a text that matches `pattern` as a whole, if there is one; one of `choices`; or true or false.

    Attributes:
        is_long: of several lines, such as a private key or patterns.
        is_secret: encrypted where it is stored, and never shown again.
        is_filter: says only which items are read. A change of any other setting asks for the secrets again, which could
            otherwise be sent to a place of somebody else's choice.
    """

    name: str
    label: str | Promise
    hint: str | Promise = ""
    default: str | bool = ""
    pattern: str = ""
    choices: tuple[str, ...] = ()
    is_required: bool = False
    is_flag: bool = False
    is_long: bool = False
    is_secret: bool = False
    is_filter: bool = False


def checked_values(fields: Sequence[Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """A value for each field; raises Rejected, whose code begins with the name of the field that cannot be so."""
    known = {field.name: field for field in fields}
    if unknown := sorted(values.keys() - known.keys()):
        raise Rejected(
            "settings_invalid",
            _("There is no setting “%(name)s” of this kind: choose from %(names)s."),
            name=unknown[0],
            names=", ".join(known),
        )
    return {name: _checked(field, values.get(name, field.default)) for name, field in known.items()}


def _checked(field: Field, value: Any) -> Any:
    if field.is_flag:
        if not isinstance(value, bool):
            raise Rejected(f"{field.name}_invalid", _("“%(name)s” is true or false."), name=field.name)
        return value
    most = MOST_CHARACTERS_OF_LONG if field.is_long else MOST_CHARACTERS
    if not isinstance(value, str) or len(value) > most:
        raise Rejected(
            f"{field.name}_invalid",
            _("“%(name)s” is a text of at most %(most)d characters."),
            name=field.name,
            most=most,
        )
    value = value.strip()
    if not value and field.is_required:
        raise Rejected(f"{field.name}_invalid", _("Give “%(name)s”."), name=field.label)
    if field.choices and value not in field.choices:
        raise Rejected(
            f"{field.name}_invalid",
            _("“%(name)s” is one of %(choices)s."),
            name=field.name,
            choices=", ".join(field.choices),
        )
    if value and field.pattern and not re.fullmatch(field.pattern, value):
        shown = "…" if field.is_secret else value
        raise Rejected(
            f"{field.name}_invalid",
            _("“%(value)s” cannot be “%(name)s”: %(hint)s"),
            value=shown,
            name=field.label,
            hint=field.hint,
        )
    return value
