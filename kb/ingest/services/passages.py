"""A passage in its document: marked on the pages on which it stands, or in the text around it.

Whoever calls this has made sure that the reader may see the chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, Final

from django.utils.translation import gettext as _

from kb.base.errors import NotVisible, Rejected
from kb.content.models import Chunk, Document
from kb.ingest.chunkers.matching import place_of, shared_length, squeezed
from kb.ingest.parser.office import PRESENTATIONS
from kb.ingest.parser.parsed import ParseError
from kb.ingest.services.chunks import neighbours_of
from kb.ingest.services.original_text import html_of
from kb.ingest.services.originals import blocks_around
from kb.ingest.services.pictures import pictures_of_chunks
from kb.ingest.services.previews import (
    USUAL_WIDTH,
    Shown,
    extension_of,
    is_pending,
    page_image,
    page_sizes,
    reason_of,
    shown_as,
)

NEIGHBOURS: Final = 2
_MOST_PAGES: Final = 4


@dataclass(frozen=True, slots=True)
class PassageUrls:
    """Where a passage's parts are; to those of pages `?n=` is added, and none leads on where `document` is empty."""

    page: str
    text: str
    document: str = ""


@dataclass(frozen=True, slots=True)
class PagePlace:
    """A box of a chunk on a page, in per cent of it; `is_first` of the chunk's boxes there."""

    chunk: Chunk
    left: float
    top: float
    width: float
    height: float
    is_first: bool


def passage_context(chunk: Chunk, urls: PassageUrls) -> dict[str, Any]:
    """For `ingest/passage/whole.html`: its text at once, and where its pages, or its text as the file has it, come from."""
    shown = shown_as(chunk.document)
    label = page_label(chunk.document)
    numbers = page_numbers(chunk)
    return {
        **_plain(chunk),
        # The first heading of a document is often its title.
        "headings": [each for each in chunk.heading_path if each != str(chunk.document)],
        "pages": [(label.format(page=number), f"{urls.page}?n={number}") for number in numbers],
        # An edited chunk reads otherwise than its file.
        "text_url": urls.text if shown == Shown.TEXT and not chunk.cut_text else "",
        "document_url": urls.document,
        "pictures": pictures_of_chunks([chunk.pk]).get(chunk.pk, ()) if chunk.pictures else (),
    }


def page_context(chunk: Chunk, number: int, *, url: str, image_url: str) -> dict[str, Any]:
    """For `ingest/passage/page.html`: a page with the passage's boxes, or why there is none; `url` is where it was asked for."""
    context = drawn_page(chunk.document, number)
    if "problem" not in context and "is_awaited" not in context:
        width, height = page_sizes(chunk.document).sizes[number - 1]
        context |= {"places": places_of(chunk, number), "height": round(height / width * context["width"])}
    return {**context, "page_url": url, "image_url": image_url}


def drawn_page(document: Document, number: int) -> dict[str, Any]:
    """What a page is called and how wide its image is, once it is drawn; else `problem` says why not, or `is_awaited`."""
    context: dict[str, Any] = {"width": USUAL_WIDTH, "label": page_label(document).format(page=number)}
    try:
        page_image(document, number, USUAL_WIDTH)
    except ParseError as error:
        context["problem"] = reason_of(error)
    except Rejected as error:
        if not is_pending(error):
            raise
        context["is_awaited"] = True
    except NotVisible as error:
        context["problem"] = str(error)
    return context


def places_of(chunk: Chunk, page: int) -> Sequence[PagePlace]:
    """The boxes of a chunk on a page; none where only the page is known."""
    boxes = [each["box"] for each in chunk.regions if each["page"] == page and each["box"]]
    places = []
    for number, (left, top, right, bottom) in enumerate(boxes):
        places.append(
            PagePlace(chunk, 100 * left, 100 * top, 100 * (right - left), 100 * (bottom - top), is_first=not number)
        )
    return places


def text_context(chunk: Chunk, *, url: str) -> dict[str, Any]:
    """For `ingest/passage/text.html`: the file's text around the passage, else the chunks' with what keeps it from that."""
    if shown_as(chunk.document) == Shown.NOTHING:
        return _plain(chunk)
    try:
        blocks = blocks_around(chunk)
    except ParseError as error:
        return {**_plain(chunk), "problem": reason_of(error)}
    except NotVisible as error:
        return {**_plain(chunk), "problem": str(error)}
    except Rejected as error:
        if not is_pending(error):
            raise
        return {**_plain(chunk), "is_awaited": True, "text_url": url}
    return {**_plain(chunk), "text": html_of(blocks, page_label(chunk.document))}


def page_label(document: Document) -> str:
    return _("Slide {page}") if extension_of(document) in PRESENTATIONS else _("Page {page}")


def _plain(chunk: Chunk) -> dict[str, Any]:
    near = neighbours_of(chunk, count=NEIGHBOURS)
    before, after = ([each for each in side if each.enabled] for side in near)
    return {
        "chunk": chunk,
        "before": "\n".join(starmap(_before_overlap, pairwise(each.text for each in (*before, chunk)))),
        "after": "\n".join(starmap(_after_overlap, pairwise(each.text for each in (chunk, *after)))),
    }


def _before_overlap(text: str, following: str) -> str:
    """A chunk's text without its end that opens the next chunk too."""
    letters = squeezed(text)
    return text[: place_of(text, len(letters) - shared_length(letters, squeezed(following)))].strip()


def _after_overlap(preceding: str, text: str) -> str:
    """A chunk's text without its beginning that ends the chunk before it too."""
    return text[place_of(text, shared_length(squeezed(preceding), squeezed(text))) :].strip()


def page_numbers(chunk: Chunk) -> list[int]:
    """Of the pages on which it stands; none where its file is not shown in pages."""
    if shown_as(chunk.document) not in (Shown.PAGES, Shown.SLIDES):
        return []
    numbers = {int(each["page"]) for each in chunk.regions} or ({chunk.page} if chunk.page else set[int]())
    return sorted(numbers)[:_MOST_PAGES]
