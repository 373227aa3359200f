"""What a kind of search service wants to know, for its check, its form and the documentation of the API."""

from dataclasses import dataclass

from django.utils.functional import Promise


class InvalidSettings(Exception):
    """Settings cannot be used; the message says why and what to do.

    Attributes:
        field: the name of the setting, "kind" or "settings".
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Field:
    """A setting.

    Attributes:
        hint: what may be given.
        pattern: a regular expression that a value matches as a whole; blank: any text.
        choices: none: no list of values.
        is_flag: it is true or false.
    """

    name: str
    label: str | Promise
    hint: str | Promise = ""
    default: str | bool = ""
    pattern: str = ""
    choices: tuple[str, ...] = ()
    is_required: bool = False
    is_flag: bool = False
