"""One's conversations: their list, renamed in place and deleted after a question."""

from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _, gettext_lazy
from unfold.widgets import UnfoldAdminTextInputWidget

from kb.access.models import Principal
from kb.answers.models import Conversation
from kb.answers.services.conversations import TITLE_CHARACTERS, conversation_get, conversation_rename
from kb.base.errors import NotVisible
from kb.web.admin.scoped import principal
from kb.web.admin.site import AdminPage, admin_page

CONVERSATIONS_LISTED = 30


def conversation_of(caller: Principal, conversation_id: str) -> Conversation:
    """The conversation that an address names; Http404 where it does not exist for this user."""
    try:
        return conversation_get(caller, UUID(conversation_id))
    except (NotVisible, ValueError) as error:
        raise Http404(str(error)) from error


class NameForm(forms.Form):
    title = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=TITLE_CHARACTERS,
        widget=UnfoldAdminTextInputWidget({"autocomplete": "off"}),
    )


class ConversationPage(AdminPage):
    @cached_property
    def conversation(self) -> Conversation:
        return conversation_of(principal(self.request), str(self.kwargs["pk"]))


@admin_page("ask/<uuid:pk>/rename/", name="ask_rename")
class RenameConversationView(ConversationPage):
    """A form in place of the conversation's line; once it is sent, the line again. Without `edit` that is all there is."""

    template_name = "answers/conversation.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        is_open = self.request.GET.get("current") or self.request.POST.get("current")
        form = NameForm(initial={"title": self.conversation.title}) if "edit" in self.request.GET else None
        return {
            "each": self.conversation,
            "current": str(self.conversation.pk) if is_open else "",
            "rename": form,
            **kwargs,
        }

    def post(self, request: HttpRequest, *_args: Any, **_kwargs: Any) -> HttpResponse:
        form = NameForm(request.POST)
        if not form.is_valid():
            return self.render_to_response(self.get_context_data(rename=form))
        conversation_rename(self.conversation, form.cleaned_data["title"])
        return self.render_to_response(self.get_context_data())


@admin_page("ask/<uuid:pk>/delete/", name="ask_delete")
class DeleteConversationView(ConversationPage):
    template_name = "answers/delete.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            title=_("Delete the conversation “%(title)s”?") % {"title": self.conversation},
            conversation=self.conversation,
            back_url=f"{reverse('admin:ask')}?conversation={self.conversation.pk}",
            message_count=self.conversation.messages.count(),
        )

    def post(self, *_args: Any, **_kwargs: Any) -> HttpResponseRedirect:
        title = str(self.conversation)
        self.conversation.delete()
        messages.success(self.request, _("The conversation “%(title)s” was deleted.") % {"title": title})
        return HttpResponseRedirect(reverse("admin:ask"))
