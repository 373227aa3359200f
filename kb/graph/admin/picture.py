"""The picture of an entity and its neighbours: where each label goes, in the units of an SVG."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

MOST_DRAWN = 40
# Of a label's two lines, the name and its relations.
ROW = 44.0
MARGIN = 14.0
NAME_SIZE, RELATION_SIZE = 14.0, 12.0
# Between a dot and its label.
GAP = 12.0
_NARROW_CHARACTER, _WIDE_CHARACTER = 0.58, 1.0
_LEAST_BEND = 0.35


@dataclass(frozen=True, slots=True)
class Shape:
    """How a picture is laid out: `sides` is 2 for labels on both sides of the centre, 1 for a narrow screen."""

    name: str
    width: float
    sides: int
    centre_x: float
    radius: float
    centre_width: float


WIDE = Shape("wide", width=860.0, sides=2, centre_x=430.0, radius=170.0, centre_width=200.0)
NARROW = Shape("narrow", width=340.0, sides=1, centre_x=52.0, radius=84.0, centre_width=100.0)


def draw(name: str, neighbours: Sequence[tuple[str, str]], shape: Shape) -> dict[str, Any]:
    """Places neighbours, each a name with its relations as text, on an arc around the entity.

    Each label has a row of its own on its side, so that none covers another; with more than fit beside each other the
    arc grows higher, not the labels smaller. The `name` is there as far as it fits, and the `nodes`, as of `_node`, are
    in the order of the neighbours, of which the first `MOST_DRAWN` are drawn.
    """
    drawn = neighbours[:MOST_DRAWN]
    right = math.ceil(len(drawn) / shape.sides)
    height = max(3, right) * ROW + 2 * MARGIN
    nodes = []
    for direction, side in ((1, drawn[:right]), (-1, drawn[right:])):
        top = (height - len(side) * ROW) / 2
        nodes += [
            _node(*neighbour, top + (row + 0.5) * ROW, direction, height, shape) for row, neighbour in enumerate(side)
        ]
    return {
        "shape": shape,
        "height": height,
        "centre_y": height / 2,
        "centre_left": shape.centre_x - shape.centre_width / 2,
        "name": shortened(name, shape.centre_width - 2 * GAP, NAME_SIZE),
        "nodes": nodes,
    }


def text_width(text: str, size: float) -> float:
    """An estimate of a text's width: Chinese characters are as wide as they are high."""
    return size * sum(map(_character_width, text))


def _character_width(character: str) -> float:
    return _WIDE_CHARACTER if unicodedata.east_asian_width(character) in {"W", "F"} else _NARROW_CHARACTER


def shortened(text: str, width: float, size: float) -> str:
    """The text, or as much of its beginning as fits, with an ellipsis."""
    kept, room = 0, width / size
    ends = room - _character_width("…")
    for place, used in enumerate(accumulate(map(_character_width, text)), start=1):
        if used > room:
            return text[:kept].rstrip() + "…"
        if used <= ends:
            kept = place
    return text


def _node(name: str, relation: str, y: float, direction: int, height: float, shape: Shape) -> dict[str, Any]:
    """A neighbour's dot at `x` and `y` with its label, which is on the side away from the centre.

    `left`, `top`, `width` and `height` are those of the label with its dot, as a target for pointers; `anchor` is that of the
    label's text, as SVG calls it.
    """
    away = (y - height / 2) / (height / 2)
    bend = max(_LEAST_BEND, math.sqrt(max(0.0, 1.0 - away * away)))
    x = shape.centre_x + direction * shape.radius * bend
    edge = shape.width - MARGIN if direction > 0 else MARGIN
    room = abs(edge - x) - GAP
    short_name, short_relation = shortened(name, room, NAME_SIZE), shortened(relation, room, RELATION_SIZE)
    width = max(text_width(short_name, NAME_SIZE), text_width(short_relation, RELATION_SIZE)) + 2 * GAP
    width = min(width, room + GAP + MARGIN)
    left = x - GAP / 2 if direction > 0 else x + GAP / 2 - width
    return {
        "x": round(x, 1),
        "y": round(y, 1),
        "text_x": round(x + direction * GAP, 1),
        "anchor": "start" if direction > 0 else "end",
        "name": short_name,
        "relation": short_relation,
        "left": round(left, 1),
        "top": round(y - ROW / 2 + 2, 1),
        "width": round(width, 1),
        "height": ROW - 4,
    }
