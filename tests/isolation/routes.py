"""Which addresses there are, as the URL configuration has them, and whose ids they can be given."""

import itertools
import re
from dataclasses import dataclass

from django.urls import get_resolver

PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")


@dataclass(frozen=True)
class Route:
    """An address with parameters, such as "api/v1/documents/<int:pk>/"."""

    path: str
    name: str

    @property
    def parameters(self):
        return tuple(PARAMETER.findall(self.path))

    def url(self, values):
        return "/" + PARAMETER.sub(lambda match: str(values[match[1]]), self.path)


def routes(prefix=""):
    """Every address below a prefix, once; those of regular expressions with their expression."""
    found = {}
    for path, name in _walk(get_resolver().url_patterns, ""):
        if path.startswith(prefix):
            found.setdefault(path, Route(path, name))
    return list(found.values())


def foreign_values(parameters, kinds, mine, theirs):
    """For an address of these parameters, every choice of ids in which one at least is the other tenant's.

    Args:
        parameters: of the route.
        kinds: of each.
        mine: ids of the first tenant, by kind.
        theirs: of the other, or such as do not exist.
    """
    for whose in itertools.product((mine, theirs), repeat=len(parameters)):
        if theirs in whose:
            yield {name: ids[kind] for name, kind, ids in zip(parameters, kinds, whose, strict=True)}


def _walk(patterns, before):
    for pattern in patterns:
        path = before + str(pattern.pattern)
        if hasattr(pattern, "url_patterns"):
            yield from _walk(pattern.url_patterns, path)
        else:
            yield path, pattern.name or ""
