"""Questions of visitors: the one search and answer, with the publisher's rights, under the assistant's settings and limits."""

import dataclasses
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, User
from kb.answers.models import Message
from kb.answers.services.answers import Answer, AnswerEvent, AnswerSettings, AskRequest, answer, stream_answer
from kb.answers.services.conversations import packed_history
from kb.assistants.models import Assistant, Visitor
from kb.assistants.services.entry import Visit
from kb.assistants.services.limits import Counted, question_count
from kb.assistants.settings import AssistantSettings
from kb.base.errors import NotAllowed
from kb.base.streams import Started
from kb.profiles.services import name_and_version
from retrieval.types import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A visitor's question.

    Attributes:
        history: earlier turns, where no conversation is kept to read them from; those that fit go to the model.
        instructions: what a program adds to those of the assistant, below them.
        instead_of: the id of the last answer of the conversation, in whose place this one comes.
        temperature: in place of the assistant's.
        answer_tokens: of the longest answer, where that is less than the assistant's.
        asked_on: what a website says of the page on which it was asked: data beside the question.
    """

    question: str
    conversation_id: UUID | None = None
    instead_of: int | None = None
    history: Sequence[Turn] = ()
    instructions: Sequence[str] = ()
    temperature: float | None = None
    answer_tokens: int | None = None
    asked_on: str = ""


def reader_of(
    assistant: Assistant, user: User | AnonymousUser | None, kb_ids: Collection[int] | None = None
) -> Principal:
    """Whose rights an assistant searches with: a user's, to read those of its knowledge bases that the user may see now.

    `kb_ids` are in place of its own.
    """
    if user is None:
        raise NotAllowed(_("This assistant is not published."))
    bases = KnowledgeBase.objects.visible_to(Principal(user))
    named = bases.filter(assistants=assistant) if kb_ids is None else bases.filter(pk__in=kb_ids)
    return Principal(user, frozenset(named.values_list("pk", flat=True)), can_write=False)


def ask(visit: Visit, asked: Asked, *, address: str = "") -> Answer:
    """The answer to a visitor's question. Raises as `stream_ask`."""
    principal, request, settings = _prepared(visit, asked)
    with _counted(visit, settings, address) as counted:
        finished = answer(principal, request, settings)
    counted.settle(finished.input_tokens + finished.output_tokens)
    return finished


def stream_ask(
    visit: Visit, asked: Asked, *, address: str = "", reader: Principal | None = None
) -> Generator[AnswerEvent, None, None]:
    """The same in steps.

    `address` is the network address that it comes from, blank where it is not to be counted; `reader` what `reader_of` has
    made for this request already. Raises LimitReached before anything is searched, NotAllowed where none of the knowledge
    bases can be searched now, and as `stream_answer`.
    """
    principal, request, settings = _prepared(visit, asked, reader)
    with _counted(visit, settings, address) as counted:
        events = stream_answer(principal, request, settings)
    return Started(_settled(events, counted))


def stream_preview(
    principal: Principal,
    assistant: Assistant,
    settings: AssistantSettings,
    asked: Asked,
    knowledge_base_ids: Collection[int] | None = None,
) -> Generator[AnswerEvent, None, None]:
    """An answer under settings that are tried, to whoever may edit the assistant; nothing is kept or counted of it.

    `knowledge_base_ids` are tried in place of the assistant's own.
    """
    reader = reader_of(assistant, principal.user, knowledge_base_ids)
    request = _request(reader, assistant, settings, asked)
    alone = dataclasses.replace(request, conversation_id=None, instead_of=None, remember=False, assistant_id=None)
    return stream_answer(reader, alone, answer_settings(assistant, settings))


def _settled(events: Generator[AnswerEvent, None, None], counted: Counted) -> Generator[AnswerEvent, None, None]:
    message_id, taken = 0, None
    try:
        with closing(events):
            for event in events:
                message_id = event.data.get("message_id") or message_id
                if event.name == "done":
                    taken = event.data["input_tokens"] + event.data["output_tokens"]
                yield event
    finally:
        if taken is None:  # it broke off
            kept = Message.objects.filter(pk=message_id).values_list("input_tokens", "output_tokens").first()
            taken = None if kept is None else sum(each or 0 for each in kept)
        if taken is not None:  # else its conversation was deleted meanwhile: what it might have taken counts
            counted.settle(taken)


@contextmanager
def _counted(visit: Visit, settings: AnswerSettings, address: str) -> Iterator[Counted]:
    """Counts a question, and takes it back where the block fails."""
    Visitor.objects.get_or_create(pk=visit.visitor_id, defaults={"assistant": visit.assistant, "user": visit.user})
    tokens = settings.fields["max_tokens"]
    counted = question_count(visit.assistant, visit.visitor_id, address, answer_tokens=tokens)
    try:
        yield counted
    except BaseException:
        counted.take_back()
        raise


def _prepared(
    visit: Visit, asked: Asked, reader: Principal | None = None
) -> tuple[Principal, AskRequest, AnswerSettings]:
    assistant = visit.assistant
    if not assistant.is_answering:
        raise NotAllowed(_("This assistant is not published."))
    chosen = assistant.published_settings
    temperature = chosen.temperature if asked.temperature is None else asked.temperature
    tokens = min(chosen.answer_tokens, asked.answer_tokens or chosen.answer_tokens)
    chosen = dataclasses.replace(chosen, temperature=temperature, answer_tokens=tokens)
    reader = reader or reader_of(assistant, assistant.publisher)
    settings = answer_settings(
        assistant,
        chosen,
        visitor_id=visit.visitor_id,
        version_id=assistant.published_id,
        of_caller=tuple(asked.instructions),
        asked_on=asked.asked_on,
    )
    return reader, _request(reader, assistant, chosen, asked), settings


def _request(reader: Principal, assistant: Assistant, chosen: AssistantSettings, asked: Asked) -> AskRequest:
    if not reader.kb_ids:
        raise NotAllowed(_("This assistant has nothing to answer from at the moment: tell whoever runs it."))
    profile, number = name_and_version(chosen.profile) if chosen.profile else ("", None)
    return AskRequest(
        query=asked.question,
        knowledge_base_ids=sorted(reader.kb_ids),
        profile=profile,
        profile_version=number,
        conversation_id=asked.conversation_id,
        remember=True,
        instead_of=asked.instead_of,
        history=packed_history(asked.history) if chosen.remembers else (),
        keeps_query=assistant.keeps_text,
        assistant_id=assistant.pk,
    )


def answer_settings(assistant: Assistant, chosen: AssistantSettings, **of_visit: Any) -> AnswerSettings:
    return AnswerSettings(
        model=chosen.model,
        fields={"temperature": chosen.temperature, "max_tokens": chosen.answer_tokens},
        instructions=(chosen.instructions,),
        no_answer=chosen.no_answer,
        names_sources=False,
        model_reads_names=chosen.shows != "nothing",
        remembers=chosen.remembers,
        keeps_text=assistant.keeps_text,
        **of_visit,
    )
