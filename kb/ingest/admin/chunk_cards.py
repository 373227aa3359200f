"""The right side of a document's page: its chunks in their order, each of which is worked on in its place."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.db.models import F, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _

from kb.base.errors import Rejected, ServiceError
from kb.content.models import Chunk, Document
from kb.ingest.admin.chunks import offsets_in, pieces_of
from kb.ingest.services.chunks import (
    chunk_split,
    chunks_merge,
    chunks_set_enabled,
    has_text_of,
    neighbours_of,
)
from kb.ingest.services.corrections import checked_again, questions_add, text_change
from kb.ingest.services.pictures import pictures_of_chunks
from kb.web.admin.scoped import principal, reason, row_id
from kb.web.admin.site import add_part

CARDS_AT_ONCE: Final = 30
SHOWN_CHARACTERS: Final = 4_000
FORMS: Final = ("edit", "split", "question")
# Tells htmx to exchange all cards, and the page to load the original once more.
RENUMBERED: Final = {"HX-Retarget": "#kd-chunks", "HX-Reswap": "innerHTML", "HX-Trigger": "zhiku:renumbered"}


def chunk_url(document_id: int, chunk_id: int) -> str:
    """A document's page at one of its chunks."""
    return f"{reverse('admin:kb_document_change', args=[document_id])}?chunk={chunk_id}"


def place_view(request: HttpRequest, chunk: Chunk) -> HttpResponse:  # noqa: ARG001 - a page of a row
    return redirect(chunk_url(chunk.document_id, chunk.pk))


def cards_context(document: Document, *, chunk_id: int | None = None, begin: int | None = None) -> dict[str, Any]:
    """The cards of a document from a position, in whole portions, or of the portion with a chunk.

    `is_gone`: there is no such chunk in the document.
    """
    rows = Chunk.objects.filter(document=document).order_by("position")
    first: Any = (begin or 0) // CARDS_AT_ONCE * CARDS_AT_ONCE
    if begin is None and chunk_id is not None:
        portion = F("position") / CARDS_AT_ONCE * CARDS_AT_ONCE
        first = Coalesce(Subquery(rows.filter(pk=chunk_id).values_list(portion)), 0)
    chunks = list(rows.filter(position__gte=first)[: CARDS_AT_ONCE + 1])
    begin = chunks[0].position // CARDS_AT_ONCE * CARDS_AT_ONCE if chunks else 0
    shown = chunks[:CARDS_AT_ONCE]
    is_gone = chunk_id is not None and all(each.pk != chunk_id for each in shown)
    pictures = pictures_of_chunks([each.pk for each in shown if each.pictures]) if document.picture_bytes else {}
    return {
        "document": document,
        "cards": [{"chunk": each, "pictures": pictures.get(each.pk, ())} for each in shown],
        "current": None if is_gone else chunk_id,
        "is_gone": is_gone,
        "shown_characters": SHOWN_CHARACTERS,
        "before": begin - CARDS_AT_ONCE if begin else None,
        "after": begin + CARDS_AT_ONCE if len(chunks) > CARDS_AT_ONCE else None,
    }


def cards_view(of: Any) -> Callable[[HttpRequest, Document], HttpResponse]:
    def view(request: HttpRequest, document: Document) -> HttpResponse:
        chunk_id, begin = (row_id(request.GET.get(name, "")) for name in ("chunk", "from"))
        context = cards_context(document, chunk_id=chunk_id, begin=begin)
        context |= {"may_change": of.has_change_permission(request, document), "side": request.GET.get("side", "")}
        return render(request, "ingest/document/cards.html", context)

    return view


class ChunkCard:
    """Shows a chunk and the forms of what can be done with it; what is done is the services' work, as on its own page."""

    def __init__(self, model_admin: Any) -> None:
        self.model_admin = model_admin

    def show(self, request: HttpRequest, chunk: Chunk) -> HttpResponse:
        return self._card(request, chunk)

    def work(self, request: HttpRequest, chunk: Chunk) -> HttpResponse:
        """A form by `?form=`; sent by POST, the card as it is then, or all cards around it where others have changed too."""
        if request.method == "GET":
            form = request.GET.get("form", "")
            return self._card(request, chunk, form=form if form in FORMS else "")
        does = {
            "edit": self._edit,
            "question": self._ask,
            "enable": self._switch,
            "disable": self._switch,
            "split": self._split,
            "merge": self._merge,
        }.get(request.POST.get("do", ""))
        if does is None:
            return self._card(request, chunk)
        try:
            return does(request, chunk)
        except ServiceError as error:
            form = request.POST["do"] if request.POST["do"] in FORMS else ""
            return self._card(request, chunk, form=form, error=reason(error), given=request.POST)

    def _edit(self, request: HttpRequest, chunk: Chunk) -> HttpResponse:
        text, shown = request.POST.get("text", ""), request.POST.get("hash", "")
        text_change(principal(request), chunk_id=chunk.pk, text=text, shown=shown)
        return self._changed(request, chunk, _("Saved."))

    def _ask(self, request: HttpRequest, chunk: Chunk) -> HttpResponse:
        questions = request.POST.get("question", "").splitlines()
        questions_add(principal(request), chunk_id=chunk.pk, questions=questions)
        checked = checked_again(principal(request), chunk, questions)
        return self._changed(request, chunk, " ".join([_("Saved."), *(each for _found, each in checked)]))

    def _switch(self, request: HttpRequest, chunk: Chunk) -> HttpResponse:
        is_on = request.POST["do"] == "enable"
        chunks_set_enabled(chunk_ids=[chunk.pk], enabled=is_on)
        return self._changed(request, chunk, _("Searches find it again.") if is_on else _("No search finds it now."))

    def _split(self, request: HttpRequest, chunk: Chunk) -> HttpResponse:
        has_text_of(request.POST.get("hash", ""))(chunk)
        places = offsets_in(chunk.text, request.POST.getlist("at"))
        if not places:
            raise Rejected("no_place", _("Choose at least one place at which a new chunk begins."))
        parts = chunk_split(chunk=chunk, at=places)
        return self._renumbered(request, parts[0], _("The chunk has become %(count)d.") % {"count": len(parts)})

    def _merge(self, request: HttpRequest, chunk: Chunk) -> HttpResponse:
        _before, following = neighbours_of(chunk)
        merged = chunks_merge(document=chunk.document, chunk_ids=[chunk.pk, *(each.pk for each in following)])
        return self._renumbered(request, merged, _("%(count)d chunks have become one.") % {"count": 2})

    def _changed(self, request: HttpRequest, chunk: Chunk, note: str) -> HttpResponse:
        return self._card(request, self.model_admin.get_object_or_404(request, str(chunk.pk)), note=note)

    def _renumbered(self, request: HttpRequest, chunk: Chunk, note: str) -> HttpResponse:
        """All cards around a chunk, since those after it have other numbers now; what is marked at the left has too."""
        context = cards_context(Document.objects.get(pk=chunk.document_id), chunk_id=chunk.pk)
        response = render(request, "ingest/document/cards.html", {**context, "may_change": True, "note": note})
        for name, value in RENUMBERED.items():
            response[name] = value
        return response

    def _card(
        self,
        request: HttpRequest,
        chunk: Chunk,
        *,
        form: str = "",
        error: str = "",
        note: str = "",
        given: Mapping[str, Any] | None = None,
    ) -> HttpResponse:
        context = {
            "chunk": chunk,
            "pictures": pictures_of_chunks([chunk.pk]).get(chunk.pk, ()) if chunk.pictures else (),
            "may_change": self.model_admin.has_change_permission(request, chunk),
            "shown_characters": SHOWN_CHARACTERS,
            "is_current": True,
            "form": form,
            "error": error,
            "card_note": note,
            "text": given.get("text", chunk.text) if given else chunk.text,
            "question": given.get("question", "") if given else "",
            "hash": given.get("hash", chunk.content_hash) if given else chunk.content_hash,
        }
        if form == "split":
            context["pieces"] = pieces_of(chunk.text)
        return render(request, "ingest/document/card.html", context)


def _of_chunk(of: Any) -> Sequence[URLPattern]:
    card = ChunkCard(of)
    return [
        of.row_page("place", place_view, "GET"),
        of.row_page("card", card.show, "GET"),
        of.row_page("work", card.work, "GET", "POST"),
    ]


add_part(Chunk, pages=_of_chunk)
add_part(Document, pages=lambda of: [of.row_page("chunks", cards_view(of), "GET")])
