"""A passage in its document, as the admin opens it beside a result or a citation."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import URLPattern, reverse

from kb.content.models import Chunk
from kb.ingest.admin.original import page_image_url
from kb.ingest.services.passages import PassageUrls, page_context, passage_context, text_context
from kb.web.admin.scoped import row_id
from kb.web.admin.site import add_part


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
