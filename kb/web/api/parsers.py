from collections.abc import Mapping
from typing import IO, Any

from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

MAX_JSON_DEPTH = 32


class ShallowJSONParser(JSONParser):
    """JSON whose nesting cannot exhaust the interpreter's stack, nor that of what reads the values."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            value = super().parse(stream, media_type, parser_context)
        except RecursionError as error:
            raise _too_deep() from error
        if _is_deeper(value, MAX_JSON_DEPTH):
            raise _too_deep()
        return value


def _is_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested more than so many levels deep; goes level by level, without recursion."""
    level = [value]
    for _depth in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not any(isinstance(each, dict | list) for each in level):
            return False
    return True


def _too_deep() -> ParseError:
    message = _("The JSON is nested too deeply: at most %(depth)d levels are read.")
    return ParseError(message % {"depth": MAX_JSON_DEPTH})
