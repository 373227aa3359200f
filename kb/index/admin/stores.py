"""The page of a knowledge base's store: which one searches use, how far its copy is, and the move to another one."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.generic import TemplateView

from kb.access.models import KnowledgeBase
from kb.base.errors import ServiceError
from kb.index.services.stores.migration import migration_cancel, migration_start, store_rebuild
from kb.index.services.stores.state import stores_state
from kb.web.admin.views import KnowledgeBasePage
from retrieval.errors import RetrievalError


class StoresView(KnowledgeBasePage, TemplateView):
    template_name = "index/stores/page.html"

    @property
    def title(self) -> str:
        return _("Store of “%(name)s”") % {"name": self.kb.name}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            opts=self.model_admin.opts,
            original=self.kb,
            kb=self.kb,
            may_edit=self.may_edit,
            state=stores_state(self.kb),
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        if not self.may_edit:
            raise PermissionDenied
        actions: dict[str, Callable[[], None]] = {"cancel": self._cancel, "rebuild": self._rebuild}
        try:
            actions.get(request.POST.get("action", ""), self._start)()
        except (ServiceError, RetrievalError) as error:
            messages.error(request, str(error))
        return HttpResponseRedirect(stores_url(self.kb))

    def _start(self) -> None:
        migration_start(self.kb, self.request.POST.get("store", ""))  # the page itself says how far it is

    def _cancel(self) -> None:
        migration_cancel(self.kb)
        messages.success(self.request, _("The move was cancelled: the present store stays."))

    def _rebuild(self) -> None:
        store_rebuild(self.kb)
        messages.success(self.request, _("A worker fills the copy anew; PostgreSQL answers until it is complete."))


def stores_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_stores", args=[kb.pk])


def stores_progress_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    """How far the move is, for a page that polls; once nothing goes on any more, the page is loaded anew."""
    state = stores_state(kb)
    response = render(request, "index/stores/progress.html", {"kb": kb, "state": state})
    if state.target is None or state.target.has_failed:
        response.headers["HX-Refresh"] = "true"
    return response
