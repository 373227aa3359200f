"""compose.yaml as Compose would run it: variables filled in, one service at a time, without containers."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
# In the order of Compose's own rules: $$ is a dollar, then ${NAME}, ${NAME:-default}, ${NAME:?message}.
VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>[A-Z0-9_]+)(?::(?P<how>[-?])(?P<rest>[^}]*))?\})")


class Unset(Exception):
    """A variable that has to be set is not."""


def services(environment):
    """The services by name.

    Raises:
        Unset: as Compose would end.
    """
    loaded = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return _filled(loaded["services"], environment)


def file_as_it_is():
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def _filled(value, environment):
    if isinstance(value, dict):
        return {key: _filled(each, environment) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, environment) for each in value]
    return VARIABLE.sub(lambda found: _value(found, environment), value) if isinstance(value, str) else value


def _value(found, environment):
    if found["escaped"]:
        return "$"
    name, how, rest = found["name"], found["how"], found["rest"]
    value = environment.get(name, "")
    if how == "?" and not value:
        raise Unset(f"{name}: {rest}")
    return value or (rest if how == "-" else "")
