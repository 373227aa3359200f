"""A passage in its document: marked on the pages on which it stands, or in the text around it.

What is shown is told by the chunk and the addresses that it is given; that the reader may see the chunk, its caller has
made sure of.
"""

from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, reverse

from kb.base.errors import NotVisible, Rejected
from kb.content.models import Chunk
from kb.ingest.admin.original import drawn_page, page_image_url, page_label, places_of
from kb.ingest.admin.original_text import html_of
from kb.ingest.chunkers.matching import place_of, shared_length, squeezed
from kb.ingest.parser.parsed import ParseError
from kb.ingest.services.chunks import neighbours_of
from kb.ingest.services.originals import blocks_around
from kb.ingest.services.pictures import pictures_of_chunks
from kb.ingest.services.previews import Shown, is_pending, page_sizes, reason_of, shown_as
from kb.web.admin.scoped import row_id
from kb.web.admin.site import add_part

NEIGHBOURS: Final = 2
_MOST_PAGES: Final = 4


@dataclass(frozen=True, slots=True)
class PassageUrls:
    """Where a passage's parts are; to those of pages `?n=` is added, and none leads on where `document` is empty."""

    page: str
    text: str
    document: str = ""


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


def _plain(chunk: Chunk) -> dict[str, Any]:
    before, after = neighbours_of(chunk, count=NEIGHBOURS)
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


def passage_view(request: HttpRequest, chunk: Chunk) -> HttpResponse:
    return render(request, "ingest/passage/whole.html", passage_context(chunk, _urls(chunk)))


def passage_page_view(request: HttpRequest, chunk: Chunk) -> HttpResponse:
    number = row_id(request.GET.get("n", "")) or 1
    url = f"{_urls(chunk).page}?n={number}"
    context = page_context(chunk, number, url=url, image_url=page_image_url(chunk.document, number))
    return render(request, "ingest/passage/page.html", context)


def passage_text_view(request: HttpRequest, chunk: Chunk) -> HttpResponse:
    return render(request, "ingest/passage/text.html", text_context(chunk, url=_urls(chunk).text))


def _urls(chunk: Chunk) -> PassageUrls:
    page, text, document = (
        reverse(f"admin:kb_chunk_{name}", args=[chunk.pk]) for name in ("passage_page", "passage_text", "place")
    )
    return PassageUrls(page=page, text=text, document=document)


def _of_chunk(of: Any) -> list[URLPattern]:
    return [
        of.row_page("passage", passage_view, "GET"),
        of.row_page("passage/page", passage_page_view, "GET"),
        of.row_page("passage/text", passage_text_view, "GET"),
    ]


add_part(Chunk, pages=_of_chunk)
