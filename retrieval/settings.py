"""Settings, each declared once as a field of a frozen dataclass: forms, labels, environment and documentation are made from it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting beside its name; texts are English, and translated where shown.

    Attributes:
        help: what it does, in one sentence.
        group: the settings that it is shown with.
        kind: the type of its field.
        between: the least and the greatest value of a number.
        choices: labels of the values, where there are only a few.
        most: characters of a text, or of each of a list of texts.
        lines: how many a form has room for.
        env: the environment variable that sets it for the installation; blank: there is none.
        alias: another name of that variable.
    """

    label: str
    help: str
    group: str
    kind: Any
    default: Any
    between: tuple[float, float] | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    most: int = 0
    lines: int = 1
    env: str = ""
    alias: str = ""


def setting(label: str, help: str, *, group: str, default: Any, **more: Any) -> Any:  # noqa: A002 - what it is called everywhere
    """A field of a dataclass of settings; further arguments are those of `Setting`."""
    return field(default=default, metadata={"label": label, "help": help, "group": group, **more})


def settings_of(declaring: type[Any], *, has_variables: bool = False) -> Mapping[str, Setting]:
    """The settings of a dataclass by name, in the order of its fields.

    With `has_variables` the environment variable of one that names none is its name in capitals.
    """
    return {
        each.name: Setting(
            **{"env": each.name.upper() if has_variables else "", **each.metadata},
            kind=each.type,
            default=each.default,
        )
        for each in dataclasses.fields(declaring)
    }
