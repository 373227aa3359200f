"""Questions of visitors, their answers as they are written, and what visitors make of them."""

from collections.abc import Callable, Generator, Hashable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import get_language, gettext as _, override

from kb.access.services.rate_limits import ASK
from kb.answers.services.answers import AnswerEvent
from kb.answers.services.conversations import message_judge
from kb.answers.services.resuming import answer_stop, resume_answer
from kb.answers.sse import event_stream, fault_of
from kb.assistants.chat.requests import ChatView, remedy_of, sent
from kb.assistants.chat.shapes import AskBody, FeedbackBody, Page
from kb.assistants.chat.showing import Showing
from kb.assistants.services.asking import Asked, stream_ask
from kb.assistants.services.entry import Visit
from kb.assistants.services.sending import sending_answered, sending_begin, sending_failed
from kb.assistants.services.visitors import own_answer
from kb.base.errors import NotVisible, Rejected
from kb.base.shapes import as_values
from kb.base.streams import SHARES, Share
from kb.base.text import storable
from kb.web.admin.scoped import row_id
from retrieval.types import Turn

VISITOR_STREAMS: Final = 3
PAGE_TITLE_CHARACTERS, PAGE_ADDRESS_CHARACTERS = 200, 300


class StreamView(ChatView):
    """Sends an answer as it comes: so many at once to a visitor, and to an address from which nobody has signed in."""

    limit_kind = ASK

    def stream(
        self, begin: Callable[[], Generator[AnswerEvent, None, None]], *, topic: int | None = None, **how: Any
    ) -> HttpResponseBase:
        """What `begin` returns; `topic` is the answer's id where it is one that is being written already.

        Raises Rejected where the visitor or the address has as many streams as one may have.
        """
        limits: dict[Hashable, int] = {self.visit.visitor_id: VISITOR_STREAMS}
        if self.visit.user is None and self.address():
            limits[self.address()] = settings.CHAT_ADDRESS_STREAMS
        share = SHARES.take(limits, topic)
        if share is None:
            message = _(
                "As many answers are being written for you or your network as may be at once: wait for one of them."
            )
            raise Rejected("too_many_streams", message)
        try:
            return _stream(self.visit, self.showing, begin(), share, **how)
        except BaseException:
            share.close()
            raise


class AskView(StreamView):
    def post(self, request: HttpRequest) -> HttpResponseBase:  # noqa: ARG002 - the framework's interface
        body = self.read(AskBody)
        sender = self.visit.visitor_id, body.sending_id
        answered = sending_begin(*sender)
        if answered is not None:
            message = own_answer(self.visit, answered)
            return self.stream(lambda: resume_answer(message), topic=answered, goes_on=False)
        try:
            return self.stream(
                lambda: stream_ask(self.visit, _asked(body), address=self.address(), reader=self.showing.reader),
                begun=partial(_begun, *sender),
            )
        except BaseException as error:
            sending_failed(*sender)
            if isinstance(error, NotVisible):
                raise NotVisible(
                    _("This conversation was deleted, or nothing can be asked here at the moment.")
                ) from error
            raise


class AnswerView(StreamView):
    """The rest of an answer whose stream was lost, after the first `seen` characters of it; it ends when its reader leaves."""

    def get(self, request: HttpRequest, message_id: int) -> HttpResponseBase:
        message = own_answer(self.visit, message_id)
        seen = row_id(request.GET.get("seen", "")) or 0
        return self.stream(lambda: resume_answer(message, seen), topic=message.pk, goes_on=False)


class StopView(ChatView):
    def post(self, request: HttpRequest, message_id: int) -> HttpResponse:  # noqa: ARG002
        answer_stop(own_answer(self.visit, message_id))
        return sent({})


class FeedbackView(ChatView):
    def post(self, request: HttpRequest, message_id: int) -> HttpResponse:  # noqa: ARG002
        body = self.read(FeedbackBody)
        text = body.text if self.assistant.keeps_text else ""
        message_judge(own_answer(self.visit, message_id), body.value or None, text)
        return sent({})


def _stream(
    visit: Visit,
    showing: Showing,
    events: Generator[AnswerEvent, None, None],
    share: Share,
    begun: Callable[[int | None], None] = lambda _message_id: None,
    *,
    goes_on: bool = True,
) -> HttpResponseBase:
    """Sends a visitor the events of an answer; `begun` gets the answer's id before the visitor does."""
    language = get_language()

    def shown(event: AnswerEvent) -> Mapping[str, Any]:
        data = event.data
        if event.name == "delta":
            return {"text": data["text"]}
        message_id = data["message_id"]
        if event.name == "sources":
            begun(message_id)
            share.topic = message_id
            found = as_values(showing.sources(data["sources"]))
            return {"message_id": message_id, "conversation_id": data["conversation_id"], "sources": found}
        with override(language):
            next_questions = showing.follow_ups(own_answer(visit, message_id)) if message_id else []
        return dict(as_values(showing.answer(data, follow_ups=next_questions)))

    def fault(error: Exception) -> Mapping[str, Any]:
        with override(language):
            found = fault_of(error)
            return {**found, "remedy": remedy_of(found["code"], HTTPStatus.SERVICE_UNAVAILABLE)}

    return event_stream(events, shown, fault, goes_on=goes_on, share=share)


def _begun(visitor_id: UUID, sending_id: UUID, message_id: int | None) -> None:
    """None: the conversation was deleted while its question was searched, and nothing is kept."""
    if message_id is None:
        sending_failed(visitor_id, sending_id)
    else:
        sending_answered(visitor_id, sending_id, message_id)


def _asked(body: AskBody) -> Asked:
    return Asked(
        question=storable(body.question).strip(),
        conversation_id=body.conversation_id,
        instead_of=body.instead_of,
        history=[Turn(turn.role, storable(turn.text)) for turn in body.history],
        asked_on=_asked_on(body.page) if body.page else "",
    )


def _asked_on(page: Page) -> str:
    """What the model reads of the page, in one line; an address that is none of the web is left out."""
    title = " ".join(storable(page.title).split())[:PAGE_TITLE_CHARACTERS]
    address = storable(page.url) if urlsplit(page.url).scheme in {"http", "https"} else ""
    page_text = f"“{title}” {''.join(address.split())[:PAGE_ADDRESS_CHARACTERS]}".strip()
    return _("(Asked on the web page %(page)s)") % {"page": page_text} if title or address else ""
