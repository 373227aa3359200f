"""The left side of a document's page: its file as pages that are drawn, or as text, and where its chunks stand there."""

from http import HTTPStatus
from typing import Any, Final

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _

from kb.base.errors import NotVisible, Rejected
from kb.content.models import Chunk, Document
from kb.ingest.parser.parsed import ParseError
from kb.ingest.services.original_text import html_of
from kb.ingest.services.originals import part_of
from kb.ingest.services.passages import drawn_page, page_label, places_of
from kb.ingest.services.previews import USUAL_WIDTH, Shown, is_pending, page_sizes, reason_of, shown_as
from kb.web.admin.scoped import row_id
from kb.web.admin.site import add_part

PAGES_AT_ONCE: Final = 100
_MOST_ON_PAGE: Final = 200


def original_view(request: HttpRequest, document: Document) -> HttpResponse:
    """The side as a whole; by `?page=` or `?part=` what goes on from there, and nothing new for one who waits in vain."""
    chunk_id = row_id(request.GET.get("chunk", ""))
    context: dict[str, Any] = {"document": document, "chunk_id": chunk_id, "side": request.GET.get("side", "")}
    template = "ingest/original/nothing.html"
    try:
        template, more = _side(request, document, chunk_id)
    except Rejected as error:
        if not is_pending(error):
            raise
        if "wait" in request.GET:
            return HttpResponse(status=HTTPStatus.NO_CONTENT)
        more = {"is_awaited": True}
    except (ParseError, NotVisible) as error:
        more = {"problem": reason_of(error) if isinstance(error, ParseError) else str(error)}
    return render(request, template, {**context, **more})


def _side(request: HttpRequest, document: Document, chunk_id: int | None) -> tuple[str, dict[str, Any]]:
    """The template and its context; of a presentation its text, where its slides are not there, or not yet."""
    shown = shown_as(document)
    if shown == Shown.NOTHING:
        return "ingest/original/nothing.html", {}
    meanwhile: dict[str, Any] = {}
    if shown != Shown.TEXT and "part" not in request.GET:
        try:
            return "ingest/original/pages.html", _pages(request, document, chunk_id)
        except Rejected:
            if shown == Shown.PAGES or "wait" in request.GET:
                raise
            meanwhile = {"is_awaited": True}
        except ParseError:
            if shown == Shown.PAGES:
                raise
            meanwhile = {"problem": _("Its slides cannot be drawn: this is their text.")}
    return "ingest/original/text.html", {**_text(request, document, chunk_id), **meanwhile}


def _pages(request: HttpRequest, document: Document, chunk_id: int | None) -> dict[str, Any]:
    sizes = page_sizes(document)
    first = row_id(request.GET.get("page", ""))
    wanted = _page_of(document, chunk_id) if first is None and chunk_id else first
    # Whole portions, so that those before a page that a link names can be asked for too
    begin = ((wanted or 1) - 1) // PAGES_AT_ONCE * PAGES_AT_ONCE
    shown = sizes.sizes[begin : begin + PAGES_AT_ONCE]
    return {
        "pages": [
            {"number": begin + number, "width": round(width, 1), "height": round(height, 1)}
            for number, (width, height) in enumerate(shown, start=1)
        ],
        "before": begin - PAGES_AT_ONCE + 1 if begin else None,
        "after": begin + PAGES_AT_ONCE + 1 if begin + PAGES_AT_ONCE < len(sizes.sizes) else None,
    }


def _text(request: HttpRequest, document: Document, chunk_id: int | None) -> dict[str, Any]:
    asked = row_id(request.GET.get("part", ""))
    part = part_of(document, number=asked or 0, chunk_id=chunk_id if asked is None else None)
    return {
        "part": part,
        "text": html_of(part.blocks, page_label(document)),
        "before": part.number - 1 if part.number else None,
        "after": part.number + 1 if part.number + 1 < part.count else None,
    }


def _page_of(document: Document, chunk_id: int) -> int | None:
    found = Chunk.objects.filter(document=document, pk=chunk_id).values_list("page", "regions").first()
    if found is None:
        return None
    page, regions = found
    return int(regions[0]["page"]) if regions else page


def page_view(request: HttpRequest, document: Document) -> HttpResponse:
    """A page with the boxes of its chunks, once it is drawn; what keeps it from that is shown in its place."""
    number = row_id(request.GET.get("n", "")) or 1
    context = drawn_page(document, number)
    if "problem" not in context and "is_awaited" not in context:
        context |= _chunks_on(document, number)
    context["page_url"] = f"{reverse('admin:kb_document_page', args=[document.pk])}?n={number}"
    context["image_url"] = page_image_url(document, number)
    return render(request, "ingest/original/page.html", context)


def page_image_url(document: Document, number: int) -> str:
    return f"/api/v1/documents/{document.pk}/pages/{number}/?width={USUAL_WIDTH}"


def _chunks_on(document: Document, number: int) -> dict[str, Any]:
    on_page = Q(regions__contains=[{"page": number}]) | Q(regions=[], page=number)
    chunks = list(Chunk.objects.filter(on_page, document=document).order_by("position")[:_MOST_ON_PAGE])
    places = [place for chunk in chunks for place in places_of(chunk, number)]
    boxed = {place.chunk.pk for place in places}
    return {"places": places, "unplaced": [chunk for chunk in chunks if chunk.pk not in boxed]}


def _added(of: Any) -> list[URLPattern]:
    return [
        of.row_page("original", original_view, "GET"),
        of.row_page("page", page_view, "GET"),
    ]


add_part(Document, pages=_added)
