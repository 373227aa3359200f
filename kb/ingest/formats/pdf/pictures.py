"""The pictures on a page, as they are seen there, and their places among its text."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pypdfium2.raw as pdfium

from kb.ingest.formats.outline import Line
from kb.ingest.formats.pdf.items import Item, Ruled, place_of
from kb.ingest.formats.pdf.letters import Box, Page, places_on
from kb.ingest.formats.pictures import MOST_SIDE, Gallery

# What covers more of a page is a scan or a background.
_WHOLE_PAGE: Final = 0.8
# Points: smaller ones are marks; parts of one picture touch each other.
_LEAST_SIDE: Final = 20.0
_TOUCHING: Final = 1.5
_MOST_ON_PAGE: Final = 300
_MOST_DEPTH: Final = 5
# From one line of a paragraph to the next, in sizes of letters, at most.
_PARAGRAPH_STEP: Final = 1.75


@dataclass(frozen=True, slots=True)
class _Shape:
    """A picture on a page, in points, its size in pixels, and what tells it from others."""

    box: Box
    pixels: int
    digest: bytes


def pictures_on(page: Page, number: int, gallery: Gallery) -> list[Ruled]:
    """The marks of the pictures of a page, each where the picture stands."""
    width, height = page.get_size()
    marked = []
    for shape in _joined(_shapes(page)):
        box = _within(shape.box, width, height)
        across, up = box.right - box.left, box.top - box.bottom
        if min(across, up) < _LEAST_SIDE or across * up > _WHOLE_PAGE * width * height:
            continue
        if gallery.knows(shape.digest):
            mark = gallery.again(shape.digest)
        else:
            scale = min(max(1.0, shape.pixels / max(across, up)), MOST_SIDE / max(across, up))
            crop = (box.left, box.bottom, width - box.right, height - box.top)
            share = (box.left / width, 1 - box.top / height, box.right / width, 1 - box.bottom / height)
            mark = gallery.add_opened(
                shape.digest,
                lambda scale=scale, crop=crop: (page.render(scale=scale, crop=crop).to_pil(), "PNG"),
                page=number,
                box=tuple(round(each, 4) for each in share),
            )
        if mark:
            marked.append(Ruled(((mark,),), (box.left, box.right), box.top, ()))
    return marked


def with_pictures(items: Sequence[Item], pictures: Iterable[Ruled]) -> list[Item]:
    """The items of a page, each picture below the paragraph that stands above it."""
    placed = list(items)
    for picture in pictures:
        above = [
            place
            for place, item in enumerate(placed)
            if place_of(item) >= picture.top - _TOUCHING and _shares_column(item, picture)
        ]
        below = (place for place, item in enumerate(placed) if _shares_column(item, picture))
        at = above[-1] + 1 if above else next(below, len(placed))
        while 0 < at < len(placed) and _goes_on(placed[at - 1], placed[at]):
            at += 1
        placed.insert(at, picture)
    return placed


def _shares_column(item: Item, picture: Ruled) -> bool:
    left, right = (item.lefts[0], item.lefts[-1]) if isinstance(item, Ruled) else (item.left, item.right)
    return left < picture.lefts[-1] and right > picture.lefts[0]


def _goes_on(above: Item, item: Item) -> bool:
    if not (isinstance(above, Line) and isinstance(item, Line)):
        return False
    return 0 < above.baseline - item.baseline <= _PARAGRAPH_STEP * (item.size or item.height)


def _shapes(page: Page) -> list[_Shape]:
    point = places_on(page)
    found: list[_Shape] = []
    for shape in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE], max_depth=_MOST_DEPTH):
        if len(found) == _MOST_ON_PAGE:
            break
        left, bottom, right, top = shape.get_bounds()
        corners = [(left, bottom), (left, top), (right, bottom), (right, top)]
        container = shape.container
        while container is not None:
            matrix = container.get_matrix()
            corners = [matrix.on_point(*corner) for corner in corners]
            container = container.container
        across, up = zip(*(point(*corner) for corner in corners), strict=True)
        pixels = shape.get_px_size()
        found.append(_Shape(Box(min(across), min(up), max(across), max(up)), max(pixels), _digest(shape, pixels)))
    return found


def _digest(shape: Any, pixels: tuple[int, int]) -> bytes:
    """Tells pictures apart by how they are stored, without unpacking them."""
    return hashlib.sha256(repr(pixels).encode() + bytes(shape.get_data(decode_simple=False))).digest()


def _joined(shapes: Sequence[_Shape]) -> list[_Shape]:
    """The pictures of a page, of which some programs write one in strips."""
    joined: list[_Shape] = []
    for shape in shapes:
        above = joined[-1] if joined else None
        if (
            above is not None
            and abs(above.box.left - shape.box.left) <= _TOUCHING
            and abs(above.box.right - shape.box.right) <= _TOUCHING
            and abs(above.box.bottom - shape.box.top) <= _TOUCHING
        ):
            box = above.box._replace(bottom=shape.box.bottom)
            digest = hashlib.sha256(above.digest + shape.digest).digest()
            joined[-1] = _Shape(box, max(above.pixels, shape.pixels), digest)
        else:
            joined.append(shape)
    return joined


def _within(box: Box, width: float, height: float) -> Box:
    return Box(max(0.0, box.left), max(0.0, box.bottom), min(width, box.right), min(height, box.top))
