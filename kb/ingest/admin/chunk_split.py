"""The page on which a chunk is split between its sentences."""

from itertools import pairwise
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.views.generic import TemplateView
from unfold.views import UnfoldModelAdminViewMixin

from kb.base.errors import ServiceError, Superseded
from kb.ingest.admin.chunk_duplicates import moved_meanwhile
from kb.ingest.services.chunk_work.splitting import chunk_split, sentence_starts


class ChunkSplitView(UnfoldModelAdminViewMixin, TemplateView):  # type: ignore[misc]
    """Each boundary between two sentences is a box to tick; a cursor's place may be given in `?at=`."""

    permission_required = ()
    template_name = "ingest/chunk_split.html"

    @property
    def title(self) -> str:
        return _("Split chunk %(number)d of “%(title)s”") % {
            "number": self.chunk.position + 1,
            "title": self.chunk.document,
        }

    @cached_property
    def chunk(self) -> Any:
        return self.model_admin.get_object_or_404(self.request, str(self.kwargs["object_id"]), to_change=True)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        text = self.chunk.text
        chosen = kwargs.get("chosen", _places(self.request.GET.getlist("at"), text))
        starts = sorted({*sentence_starts(text), *chosen})
        bounds = pairwise([0, *starts, len(text)])
        return super().get_context_data(
            **kwargs,
            chunk=self.chunk,
            pieces=[{"start": start, "text": text[start:end], "chosen": start in chosen} for start, end in bounds],
            back_url=_chunk_url(self.chunk.pk),
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        chosen = _places(request.POST.getlist("at"), self.chunk.text)
        if not chosen:
            error = _("Choose at least one place at which a new chunk begins.")
            return self.render_to_response(self.get_context_data(error=error, chosen=chosen))
        if request.POST.get("hash") != self.chunk.content_hash:
            error = _("The text has changed meanwhile, and nothing was done: choose the places again.")
            return self.render_to_response(self.get_context_data(error=error, chosen=[]))
        try:
            parts = chunk_split(chunk=self.chunk, at=chosen)
        except Superseded:
            return self.render_to_response(self.get_context_data(error=moved_meanwhile(), chosen=chosen))
        except ServiceError as error:
            return self.render_to_response(self.get_context_data(error=str(error), chosen=chosen))
        message = _("The chunk has become %(count)d.") % {"count": len(parts)}
        self.model_admin.log_change(request, parts[0], message)
        messages.success(request, message)
        return HttpResponseRedirect(_chunk_url(parts[0].pk))


def _chunk_url(chunk_id: int) -> str:
    return reverse("admin:kb_chunk_change", args=[chunk_id])


def _places(given: list[str], text: str) -> list[int]:
    """The offsets among what was given that lie within the text."""
    numbers = [int(each) for each in given if each.isascii() and each.isdecimal() and len(each) < 10]
    return [place for place in numbers if text[:place].strip() and text[place:].strip()]
