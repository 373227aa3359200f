"""A visitor's conversations, and all that is kept of a visitor."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse

from kb.answers.selectors import stored_answer, turns_of
from kb.answers.services.conversations import conversation_of_visitor, conversation_rename
from kb.assistants.chat.requests import ChatView, sent
from kb.assistants.chat.shapes import RenameBody, SentConversation, SentTurn
from kb.assistants.models import Visitor
from kb.assistants.services.retention import conversation_delete, visitor_delete
from kb.assistants.services.visitors import conversations_of
from kb.web.admin.scoped import row_id

CONVERSATIONS_LISTED, TURNS_READ = 100, 30


class ConversationsView(ChatView):
    def get(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002 - the framework's interface
        return sent([SentConversation.listed(row) for row in conversations_of(self.visit)[:CONVERSATIONS_LISTED]])


class ConversationView(ChatView):
    def get(self, request: HttpRequest, conversation_id: UUID) -> HttpResponse:
        conversation = conversation_of_visitor(self.visit.visitor_id, conversation_id)
        before = row_id(request.GET.get("before", ""))
        turns, earlier = turns_of(conversation, most=TURNS_READ, before=before)
        last = turns[-1][1].pk if turns and not before else None
        read = [
            SentTurn(
                question=question.text,
                answer=self.showing.answer(
                    stored_answer(message),
                    follow_ups=self.showing.follow_ups(message) if message.pk == last else [],
                    feedback=message.feedback or 0,
                    feedback_text=message.feedback_text,
                ),
            )
            for question, message in turns
        ]
        return sent(
            SentConversation(
                id=str(conversation.pk),
                title=conversation.title,
                updated_at=conversation.updated_at.isoformat(),
                turns=read,
                earlier=earlier,
            )
        )

    def patch(self, request: HttpRequest, conversation_id: UUID) -> HttpResponse:  # noqa: ARG002
        conversation = conversation_of_visitor(self.visit.visitor_id, conversation_id)
        conversation_rename(conversation, self.read(RenameBody).title)
        return sent(SentConversation.listed(conversation))

    def delete(self, request: HttpRequest, conversation_id: UUID) -> HttpResponse:  # noqa: ARG002
        conversation_delete(conversation_of_visitor(self.visit.visitor_id, conversation_id))
        return sent({})


class VisitorView(ChatView):
    def delete(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002
        """Everything that is kept of the visitor, who is nobody known from then on."""
        for visitor in Visitor.objects.filter(pk=self.visit.visitor_id, assistant=self.assistant):
            visitor_delete(visitor)
        return sent({})
