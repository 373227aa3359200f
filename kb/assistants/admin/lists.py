"""The list of assistants, a new one, and the way to both from a knowledge base."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase
from kb.assistants.admin.forms import NewForm
from kb.assistants.admin.frame import editable_bases, page_url
from kb.assistants.models import Assistant
from kb.assistants.selectors import assistant_overview
from kb.assistants.services.assistants import assistant_create, draft_of, link_create, version_publish
from kb.content.hub import hub_state
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.parts import Action, add_actions
from kb.web.admin.scoped import principal, reporting_in, row_id
from kb.web.admin.site import AdminPage, admin_page

ROWS_A_PAGE = 50


@admin_page("assistants/", name="kb_assistant_changelist")
class AssistantListView(AdminPage):
    """`q` searches names and addresses, `kb` narrows to those that answer from a knowledge base."""

    template_name = "assistants/admin/list.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller, words = principal(self.request), self.request.GET.get("q", "").strip()
        asked = row_id(self.request.GET.get("kb", ""))
        kb = None if asked is None else KnowledgeBase.objects.editable_by(caller).filter(pk=asked).first()
        rows = assistant_overview(caller, words=words, kb_id=kb.pk if kb else None)
        page = Paginator(rows, ROWS_A_PAGE).get_page(self.request.GET.get("page"))
        return super().get_context_data(
            **kwargs,
            title=_("Assistants"),
            page=page,
            words=words,
            of_kb=kb,
            is_narrowed=bool(words or kb),
            add_url=add_url(kb),
        )


@admin_page("assistants/add/", name="kb_assistant_add")
class AddView(AdminPage):
    """A new assistant of the knowledge base that `kb` names, else of the current one."""

    template_name = "assistants/admin/new.html"

    @cached_property
    def bases(self) -> list[KnowledgeBase]:
        return editable_bases(self.request)

    @cached_property
    def chosen(self) -> list[KnowledgeBase]:
        by_id = {kb.pk: kb for kb in self.bases}
        if asked := row_id(self.request.GET.get("kb", "")):
            return [by_id[asked]] if asked in by_id else []
        current = current_knowledge_base(self.request)
        if current is not None and current.pk in by_id:
            return [by_id[current.pk]]
        return self.bases if len(self.bases) == 1 else []

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not self.bases and request.method == "POST":
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        form = NewForm(self.bases, self.chosen, request.POST)
        if form.is_valid():
            with reporting_in(form):
                return self._create(form.cleaned_data, is_published="publish" in request.POST)
        return self.render_to_response(self.get_context_data(form=form), status=400)

    def _create(self, values: dict[str, Any], *, is_published: bool) -> HttpResponse:
        caller = principal(self.request)
        assistant = assistant_create(
            caller,
            knowledge_base_ids=values["knowledge_bases"],
            name=values["name"],
            access=values["access"],
        )
        if assistant.access == Assistant.Access.LINK:
            link_create(caller, assistant)
        if not is_published:
            messages.success(self.request, _("Saved as a draft: nobody is answered before it is published."))
            return HttpResponseRedirect(page_url(assistant))
        version_publish(caller, draft_of(assistant))
        messages.success(self.request, _("“%(name)s” answers now: give out its address.") % {"name": assistant})
        return HttpResponseRedirect(page_url(assistant, "share"))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        shared = []
        if len(self.chosen) == 1:
            shared = list(assistant_overview(principal(self.request), kb_id=self.chosen[0].pk)[:5])
        return super().get_context_data(
            **{"form": NewForm(self.bases, self.chosen), **kwargs},
            title=_("New assistant"),
            has_bases=bool(self.bases),
            shared=shared,
        )


def add_url(kb: KnowledgeBase | None = None) -> str:
    return reverse("admin:kb_assistant_add") + (f"?{urlencode({'kb': kb.pk})}" if kb else "")


@add_actions
def share_action(request: HttpRequest, kb: KnowledgeBase) -> Iterator[Action]:
    """For editors; the page that it opens says what is shared already."""
    if hub_state(request, kb).may_edit:
        yield Action(_("Share as a chat"), "ios_share", add_url(kb))


add_tab(Section.PUBLISH, gettext_lazy("Assistants"), "kb_assistant_changelist", order=10, covers=("kb_assistant_",))
