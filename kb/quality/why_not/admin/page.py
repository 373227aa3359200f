"""Why was this chunk not found? The URL holds the search and the chunk, so it can be shared."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.access.services.rate_limits import GENERAL
from kb.base.errors import NotAllowed, NotVisible, Rejected, Superseded
from kb.content.models import Chunk
from kb.index.services.tokenizing import tokenizing_progress
from kb.profiles.admin.choices import profile_url
from kb.quality.debug.admin.form import SearchPage, open_search_page
from kb.quality.debug.admin.judge import debug_url
from kb.quality.why_not.admin.presenter import (
    ASKS_FIRST,
    done_text,
    effect,
    remembered,
    shown_remedies,
    why_not_details,
    why_not_url,
)
from kb.quality.why_not.services.places import Remedy, find_chunks
from kb.quality.why_not.services.remedies import apply_remedy, remedies
from kb.quality.why_not.services.walk import WhyNot, why_not_found
from kb.search.admin.labels import notices
from kb.search.services.search import request_as_json
from kb.web.admin.scoped import row_id
from kb.web.admin.site import AdminPage, admin_page
from retrieval.errors import InvalidConfiguration, NoChannelAvailable


@admin_page("why-not/", name="why_not")
class WhyNotView(AdminPage):
    template_name = "quality/why_not/page.html"
    rate_limit_kind = GENERAL

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        principal = Principal(request.user)
        page = open_search_page(principal, request.GET)
        chunk_id = row_id(request.GET.get("chunk", ""))
        text = request.GET.get("text", "").strip()
        context: dict[str, Any] = {**page.context, "text": text, "chunk_problem": ""}
        status = 400 if page.form.is_bound and not page.form.is_valid() else 200
        if page.form.asks:
            if text and not chunk_id:
                found = find_chunks(principal, page.form.cleaned_data["kb"], text)
                choices = [(chunk, why_not_url(page.form.request(), chunk.pk)) for chunk in found.chunks]
                context |= {"found": found, "choices": choices}
                if len(choices) == 1 and not found.is_alike:
                    chunk_id = found.chunks[0].pk
            if chunk_id:
                status = self._explain(principal, page, chunk_id, context)
        elif chunk_id:
            context |= _chosen_chunk(principal, page, chunk_id)
        return self._render(page, context, status)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        """Applies a remedy to the search of the URL, and goes on to the search that shows its effect."""
        principal = Principal(request.user)
        page = open_search_page(principal, request.GET)
        chunk_id = row_id(request.GET.get("chunk", ""))
        if not page.form.asks or not chunk_id:
            raise Http404
        try:
            why = why_not_found(principal, page.form.request(), chunk_id)
        except NotVisible as error:
            raise Http404(str(error)) from error
        except (InvalidConfiguration, NoChannelAvailable):
            return HttpResponseRedirect(request.get_full_path())  # the page says what is wrong
        remedy = next((each for each in remedies(why) if each.id == request.POST.get("remedy")), None)
        if remedy is None:
            messages.warning(request, _("That is not needed any longer: nothing was changed."))
            return HttpResponseRedirect(why_not_url(why.request, chunk_id))
        if remedy.code in ASKS_FIRST and "confirmed" not in request.POST:
            return self._ask(page, why, remedy)
        return self._apply(principal, why, remedy)

    def _apply(self, principal: Principal, why: WhyNot, remedy: Remedy) -> HttpResponse:
        text = self.request.POST.get("text", "").strip()
        token = remembered(why)  # of the search as it is before
        try:
            after = apply_remedy(principal, why, remedy, text)
        except NotAllowed as error:
            raise PermissionDenied(str(error)) from error
        except (Rejected, NotVisible, Superseded) as error:
            moved = _("The knowledge base moved to another model meanwhile, and nothing was changed: try again.")
            messages.error(self.request, moved if isinstance(error, Superseded) else str(error))
            return HttpResponseRedirect(why_not_url(why.request, why.chunk.pk))
        messages.success(self.request, done_text(remedy, text or next(iter(remedy.suggestions), "")))
        return HttpResponseRedirect(why_not_url(after, why.chunk.pk, token))

    def _ask(self, page: SearchPage, why: WhyNot, remedy: Remedy) -> HttpResponse:
        """Before a worker is set to work on more than the chunk."""
        context = {
            **page.context,
            "remedy": remedy,
            "said": self.request.POST.get("text", "").strip() or next(iter(remedy.suggestions), ""),
            "chunk": why.chunk,
            "chunk_count": Chunk.objects.filter(knowledge_base=why.chunk.knowledge_base).count(),
            "back_url": why_not_url(why.request, why.chunk.pk),
        }
        self.template_name = "quality/why_not/confirm.html"
        return self._render(page, context, 200)

    def _explain(self, principal: Principal, page: SearchPage, chunk_id: int, context: dict[str, Any]) -> int:
        """Runs the search and puts what became of the chunk into the context; returns the HTTP status."""
        try:
            why = why_not_found(principal, page.form.request(), chunk_id)
        except InvalidConfiguration as error:
            page.form.reject(error)
            return 400
        except NotVisible as error:
            context["chunk_problem"] = str(error)
            return 404
        except NoChannelAvailable as error:
            context["outage"] = notices(error.degradations, (), page.bases)
            return 503
        # This very question, its chunk named by its id also where it was found by its text: a remedy needs one.
        again = self.request.GET.copy()
        again.pop("text", None)
        again["chunk"] = str(chunk_id)
        kb = page.bases[why.chunk.knowledge_base_id]
        may_edit = bool(getattr(kb, "may_edit", False))
        profile = why.outcome.wiring.profile
        context |= {
            "chunk": why.chunk,
            "details": why_not_details(why),
            "remedies": shown_remedies(why, may_edit=may_edit),
            "may_edit": may_edit,
            "effect": effect(self.request.GET.get("before", ""), why),
            "notices": notices(why.outcome.result.degraded, why.outcome.wiring.pipeline.scopes, page.bases),
            "draft": None if profile.published else profile,
            "draft_url": profile_url(profile),
            "progress": tokenizing_progress(kb),
            "again_url": f"{self.request.path}?{again.urlencode()}",
            "other_url": why_not_url(why.request, None),
            "debug_url": debug_url(why.request.knowledge_base_ids, why.request.query, request_as_json(why.request)),
        }
        return 200

    def _render(self, page: SearchPage, context: Mapping[str, Any], status: int) -> HttpResponse:
        context = {**context, "title": _("Why not found?"), "query_about": page.form["q"].value() or ""}
        return self.render_to_response(self.get_context_data(**context), status=status)


def _chosen_chunk(principal: Principal, page: SearchPage, chunk_id: int) -> dict[str, Any]:
    """A chunk that was chosen before there is a query; its knowledge base is then the one to search."""
    chunk = Chunk.objects.visible_to(principal).select_related("document", "knowledge_base").filter(pk=chunk_id).first()
    if chunk is None:
        return {"chunk_problem": _("There is no chunk with the id %(id)s: look for it by its text.") % {"id": chunk_id}}
    if not page.form.is_bound:
        page.form.initial["kb"] = [str(chunk.knowledge_base_id)]
    return {"chunk": chunk}
