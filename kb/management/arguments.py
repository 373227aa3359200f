"""Arguments that several commands read alike."""

import json
from argparse import ArgumentTypeError
from typing import Any


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, whose value is JSON, or else a text.

    Raises:
        ArgumentTypeError: there is no name, or no =.
    """
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise ArgumentTypeError(f"{text!r} is no setting: give NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
