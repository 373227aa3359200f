"""Versions of an assistant: what changed, publication, taking it back, and deletion."""

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.answers.models import Conversation
from kb.assistants.admin.frame import AssistantPage, changes_shown, page_url
from kb.assistants.models import AssistantVersion
from kb.assistants.services.assistants import assistant_close, assistant_delete, version_publish
from kb.assistants.settings import AssistantSettings
from kb.web.admin.scoped import back_from, principal, reporting, row_id
from kb.web.admin.site import admin_page

VERSIONS_A_PAGE = 20


@admin_page("assistants/<int:pk>/versions/", name="kb_assistant_versions")
class VersionsView(AssistantPage):
    """The list; a POST publishes the version of a `number`."""

    template_name = "assistants/admin/versions.html"
    tab = "versions"

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        number = row_id(request.POST.get("number", ""))
        version = self.assistant.versions.filter(number=number).first()
        if version is None:
            raise Http404
        with reporting(request):
            version_publish(principal(request), version)
            message = _("Published: visitors are answered by version %(number)d.")
            messages.success(request, message % {"number": version.number})
        return HttpResponseRedirect(back_from(request) or page_url(self.assistant, "versions"))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        versions = self.assistant.versions.select_related("created_by")
        page = Paginator(versions, VERSIONS_A_PAGE).get_page(self.request.GET.get("page"))
        return super().get_context_data(**kwargs, page=page, rows=self._rows(list(page.object_list)))

    def _rows(self, shown: list[AssistantVersion]) -> list[dict[str, Any]]:
        """With what differs from the version before, that of the last one on the page included."""
        before = shown and self.assistant.versions.filter(number__lt=shown[-1].number).first()
        earlier = [*shown[1:], before or None] if shown else []
        return [
            {
                "version": version,
                "is_published": version.pk == self.assistant.published_id,
                "is_draft": version.number == self.assistant.newest and version.published_at is None,
                "is_first": former is None,
                "changes": changes_shown(
                    AssistantSettings.of(former.settings) if former else AssistantSettings(),
                    AssistantSettings.of(version.settings),
                ),
            }
            for version, former in zip(shown, earlier, strict=True)
        ]


@admin_page("assistants/<int:pk>/close/", name="kb_assistant_close")
class CloseView(AssistantPage):
    template_name = "assistants/admin/close.html"

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        assistant_close(self.assistant)
        messages.success(request, _("“%(name)s” is taken back: nobody is answered.") % {"name": self.assistant})
        return HttpResponseRedirect(page_url(self.assistant))


@admin_page("assistants/<int:pk>/delete/", name="kb_assistant_delete")
class DeleteView(AssistantPage):
    template_name = "assistants/admin/delete.html"

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        if request.POST.get("name", "").strip() != self.assistant.name.strip():
            messages.error(request, _("Type the name of the assistant as it stands here to delete it."))
            return HttpResponseRedirect(page_url(self.assistant, "delete"))
        assistant_delete(self.assistant)
        messages.success(request, _("The assistant “%(name)s” was deleted.") % {"name": self.assistant})
        return HttpResponseRedirect(reverse("admin:kb_assistant_changelist"))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        conversations = Conversation.objects.filter(visitor__assistant=self.assistant).count()
        return super().get_context_data(**kwargs, conversations=conversations)
