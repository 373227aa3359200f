"""What visitors have asked an assistant and were answered, to read; and the deletion of what is kept of one of them."""

from typing import Any, cast
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.answers.admin.ask import asked_bases
from kb.answers.admin.turns import answer_shown
from kb.answers.models import Message
from kb.answers.selectors import paired, stored_answer
from kb.answers.services.resuming import text_so_far
from kb.assistants.admin.frame import AssistantPage, page_url
from kb.assistants.models import Visitor
from kb.assistants.selectors import conversations_of
from kb.assistants.services.retention import visitor_delete
from kb.assistants.settings import AssistantSettings
from kb.web.admin.place import Crumb
from kb.web.admin.scoped import principal
from kb.web.admin.site import admin_page

CONVERSATIONS_A_PAGE = 50
# The beginning of a long one; the rest is counted.
MOST_MESSAGES = 200


@admin_page("assistants/<int:pk>/conversations/", name="kb_assistant_conversations")
class ConversationsView(AssistantPage):
    template_name = "assistants/admin/conversations.html"
    tab = "conversations"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        rows = conversations_of(principal(self.request), self.assistant)
        page = Paginator(rows, CONVERSATIONS_A_PAGE).get_page(self.request.GET.get("page"))
        return super().get_context_data(**kwargs, page=page)


@admin_page("assistants/<int:pk>/conversations/<uuid:visit_id>/", name="kb_assistant_conversation")
class ConversationView(AssistantPage):
    """A conversation; a POST deletes its visitor with all that is kept of them, after ?delete=1 has asked."""

    template_name = "assistants/admin/conversation.html"
    tab = "conversations"

    @cached_property
    def conversation(self) -> Any:
        rows = conversations_of(principal(self.request), self.assistant)
        return get_object_or_404(rows, pk=cast(UUID, self.kwargs["visit_id"]))

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        visitor = cast(Visitor, self.conversation.visitor)
        visitor_delete(visitor)
        messages.success(request, _("What was kept of the visitor “%(visitor)s” was deleted.") % {"visitor": visitor})
        return HttpResponseRedirect(page_url(self.assistant, "conversations"))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        conversation = self.conversation
        bases = asked_bases(principal(self.request))
        asked = [bases[kb_id] for kb_id in conversation.knowledge_base_ids if kb_id in bases]
        stored = list(conversation.messages.select_related("version")[: MOST_MESSAGES + 1])
        is_asked = "delete" in self.request.GET
        return super().get_context_data(
            **kwargs,
            conversation=conversation,
            turns=[_turn(question, answer, asked, bases) for question, answer in paired(stored[:MOST_MESSAGES])],
            all_shown=AssistantSettings(),
            is_cut=len(stored) > MOST_MESSAGES,
            is_asked=is_asked,
            others=conversation.visitor.conversations.count() - 1 if is_asked else 0,
            above=[
                Crumb(self.assistant.name, page_url(self.assistant)),
                Crumb(_("Conversations"), page_url(self.assistant, "conversations")),
            ],
        )


def _turn(question: Message, answer: Message, asked: list[KnowledgeBase], visible: Any) -> dict[str, Any]:
    """With the sources of knowledge bases that the reader may see now; also one that its visitor has replaced."""
    text = text_so_far(answer) if answer.status == Message.Status.WRITING else answer.text
    data = stored_answer(answer) | {"answer": text}
    for found in ("sources", "near_misses"):
        data[found] = [each for each in data[found] if each["knowledge_base_id"] in visible]
    return {
        "question": question.text,
        "message": answer,
        "is_finished": answer.status == Message.Status.DONE,
        "answer": answer_shown(data, asked, question.text),
    }
