"""Answers to questions (search, prompt, the language model's text, its citations checked) and conversations of them."""

import dataclasses
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, QuerySet
from django.utils.translation import gettext as _, gettext_noop
from typing_extensions import Doc

from kb.access.models import Principal, User
from kb.answers.models import Conversation, Message
from kb.base.errors import Rejected, found_in
from kb.base.metrics import DEGRADATIONS
from kb.base.shapes import as_values
from kb.base.text import storable
from kb.providers import embedding_models as providers
from kb.search.services.search import SearchOutcome, SearchRequest, UsedProfile, search
from retrieval.answer import (
    FALLBACK,
    NO_ANSWER,
    CheckedAnswer,
    StreamChecker,
    build_prompt,
    check_citations,
    confidence,
    declines,
    may_decline,
    sources_line,
)
from retrieval.characters import estimate_tokens
from retrieval.errors import Degradation, DegradationCode, GenerationFailed, Message as ErrorMessage, message_of
from retrieval.generation import OpenAIGenerator
from retrieval.packing import Context, Fragment, inert, pack, shorten
from retrieval.selection import ScoreScale
from retrieval.types import Fact, Hit, PageRegion, Relevance, Turn

HISTORY_MESSAGES = 10
# Of each message.
HISTORY_CHARACTERS = 1_000
TITLE_CHARACTERS = 80


def conversation_overview(principal: Principal) -> QuerySet[Any]:
    """The principal's conversations with `message_count`, the one continued last first."""
    rows = Conversation.objects.visible_to(principal)
    return rows.annotate(message_count=Count("messages")).order_by("-updated_at", "pk")


def conversation_get(principal: Principal, conversation_id: UUID) -> Conversation:
    """A conversation of the principal's own; NotVisible also where one of its knowledge bases is not visible."""
    rows = Conversation.objects.visible_to(principal).filter(pk=conversation_id)
    return found_in(rows, _("There is no such conversation."))


def conversation_history(conversation: Conversation) -> list[Turn]:
    """The last turns, oldest first, each cut to what a prompt can bear.

    Where a model has not answered, it does not read the sentence or the passages that stood in for an answer as its own words.
    """
    turns = []
    for each in reversed(conversation.messages.order_by("-pk")[:HISTORY_MESSAGES]):
        is_answered = each.hit is not False and not any(note["stage"] == "answer" for note in each.degraded)
        turns.append(Turn(each.role, shorten(each.text if is_answered else NO_ANSWER, HISTORY_CHARACTERS)))
    return turns


def turn_add(
    *,
    principal: Principal,
    conversation: Conversation | None,
    knowledge_base_ids: Sequence[int],
    question: str,
    answer: Mapping[str, Any],
) -> UUID | None:
    """Stores a question and its answer (fields of Message) in a conversation, or a new one over knowledge bases.

    Returns its id; None where it was deleted meanwhile, and nothing was stored.
    """
    question = storable(question)
    with transaction.atomic():
        if conversation is None:
            title = shorten(" ".join(question.split()), TITLE_CHARACTERS)
            user = cast(User, principal.user)  # an anonymous one finds nothing to ask
            conversation = Conversation.objects.create(user=user, knowledge_base_ids=[*knowledge_base_ids], title=title)
        else:
            conversation = Conversation.objects.select_for_update().filter(pk=conversation.pk).first()
            if conversation is None:
                return None
            conversation.save(update_fields=["updated_at"])
        conversation.messages.create(role=Message.Role.USER, text=question)
        conversation.messages.create(role=Message.Role.ASSISTANT, **answer)
    return conversation.pk


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest(SearchRequest):
    """What to ask: a search, whose latency budget does not count the writing of the answer.

    Where it continues a conversation, that has its own knowledge bases; else `remember` begins one with the question.
    """

    knowledge_base_ids: Sequence[int] = ()
    conversation_id: UUID | None = None
    remember: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A passage that the answer could be written from, or a near miss, which it is not written from."""

    number: Annotated[int, Doc("What the answer cites it by; of a near miss its place, from 1, which nothing cites.")]
    label: Annotated[str, Doc("Where it stands, for readers: source or title, and page, or time in a recording.")]
    title: str
    source: str
    page: int | None
    seconds: Annotated[int | None, Doc("The time at which a recording says it.")]
    regions: Annotated[tuple[PageRegion, ...], Doc("Where it stands on the pages of the document.")]
    chunk_id: Annotated[int | None, Doc("null: of a live or external source.")]
    document_id: int | None
    knowledge_base_id: int
    text: Annotated[str, Doc("As the language model was given it; long passages are cut.")]
    score: Annotated[float, Doc("On the scale that `score_scale` names.")]
    score_scale: ScoreScale
    relevance: Annotated[Relevance | None, Doc("What the score says; null on the scale `rrf`.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response of POST /api/v1/ask/."""

    answer: Annotated[
        str,
        Doc(
            "With citations such as [1] and, as its last line, the names of the sources. Where nothing relevant was found, the "
            "knowledge base's sentence for that; where no language model answered, the passages found."
        ),
    ]
    sources: tuple[Source, ...]
    near_misses: Annotated[
        tuple[Source, ...],
        Doc(
            "What the search found below the built-in cut of its scale: nothing that the answer rests on, but perhaps what the "
            "reader looks for."
        ),
    ]
    hit: Annotated[bool, Doc("Whether something relevant was found.")]
    confidence: Annotated[
        float | None, Doc("0 to 1, on the scale of the best source; null where the scores have no scale.")
    ]
    trace_id: Annotated[UUID, Doc("Of the search's entry in the search log: see traces/{trace_id}/.")]
    conversation_id: Annotated[UUID | None, Doc("Of the conversation that it was kept in.")]
    profile: UsedProfile
    degraded: tuple[Degradation, ...]
    facts: Annotated[tuple[Fact, ...], Doc("Of the graph; never cited.")]
    timings_ms: Annotated[Mapping[str, float], Doc("Milliseconds by stage of the search, of the answer, and in total.")]
    removed_citations: Annotated[
        tuple[int, ...],
        Doc("Numbers that the language model cited and that name no source; they were taken out of the answer."),
    ]
    model: Annotated[str | None, Doc("The language model; null where none wrote the answer.")]


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """A step of an answer as it is written.

    `sources` comes first and tells what was found; each `delta` holds further "text"; `done`, the last, holds the whole
    answer, which counts where it differs from the pieces.
    """

    name: Literal["sources", "delta", "done"]
    data: dict[str, Any]


_NOT_CONFIGURED = {
    "en": "No language model is configured, so there is no written answer. These passages were found:",
    "zh": "没有配置语言模型，因此没有生成回答。以下是找到的段落：",
}
_WITHOUT_MODEL = {
    "en": "The language model could not be reached, so there is no written answer. These passages were found:",
    "zh": "无法连接语言模型，因此没有生成回答。以下是找到的段落：",
}


@dataclass(frozen=True, slots=True)
class Question:
    principal: Principal
    request: AskRequest
    outcome: SearchOutcome
    context: Context
    sources: tuple[Source, ...]
    near_misses: tuple[Source, ...]
    conversation: Conversation | None
    started: float

    @property
    def numbers(self) -> list[int]:
        return [source.number for source in self.sources]

    def prompt(self) -> list[Turn]:
        request, result = self.request, self.outcome.result
        return build_prompt(request.query, self.context, request.history, result.analysis.language, facts=result.facts)

    def nothing_found(self, model: str | None = None) -> Answer:
        """Nothing was found, or what was found does not answer the question: the sentence that its knowledge bases share."""
        bases = self.outcome.knowledge_bases
        own, *others = {" ".join(kb.no_answer.split()) for kb in bases}
        sentence = FALLBACK.get(bases[0].language, FALLBACK["en"]) if others or not own else own
        return self._answer(sentence, sources=(), hit=False, confidence=0.0, model=model)

    def written(self, checked: CheckedAnswer, model: str) -> Answer:
        if declines(checked.text):
            return self.nothing_found(model)
        return self._answer(
            self._with_sources(checked.text, checked.cited), model=model, removed_citations=checked.removed
        )

    def without_model(self, error: GenerationFailed) -> Answer:
        degradation = Degradation("answer", error.code, message_of(error))
        DEGRADATIONS.labels(degradation.stage, degradation.code.value).inc()
        sentences = _NOT_CONFIGURED if error.code is DegradationCode.LLM_NOT_CONFIGURED else _WITHOUT_MODEL
        sentence = sentences.get(self.outcome.knowledge_bases[0].language, sentences["en"])
        text = self._with_sources(f"{sentence}\n\n{self.context.text}", self.numbers)
        return self._answer(text, degraded=(*self.outcome.result.degraded, degradation))

    def kept(self, answer: Answer) -> Answer:
        """The answer, once it is part of the conversation, if it is to be."""
        if self.conversation is None and not self.request.remember:
            return answer
        conversation_id = turn_add(
            principal=self.principal,
            conversation=self.conversation,
            knowledge_base_ids=self.request.knowledge_base_ids,
            question=self.request.query,
            answer={
                "text": answer.answer,
                "sources": as_values(answer.sources),
                "near_misses": as_values(answer.near_misses),
                "hit": answer.hit,
                "confidence": answer.confidence,
                "trace_id": self.outcome.trace_id,
                "degraded": [degradation.as_dict() for degradation in answer.degraded],
            },
        )
        return dataclasses.replace(answer, conversation_id=conversation_id)

    def _with_sources(self, text: str, cited: Sequence[int]) -> str:
        most, language = self.outcome.wiring.config.max_source_count, self.outcome.result.analysis.language
        return f"{text.rstrip()}\n\n{sources_line(self.context.citations, cited, most, language)}"

    def _answer(self, text: str, **fields: Any) -> Answer:
        result = self.outcome.result
        total = round((time.perf_counter() - self.started) * 1_000, 3)
        writing = max(0.0, round(total - result.timings_ms["total"], 3))
        full = Answer(
            answer=inert(storable(text)),
            sources=self.sources,
            near_misses=self.near_misses,
            hit=True,
            confidence=confidence(result.hits),
            trace_id=self.outcome.trace_id,
            conversation_id=None,
            profile=UsedProfile.of(self.outcome.wiring.profile),
            degraded=result.degraded,
            facts=result.facts,
            timings_ms={**result.timings_ms, "answer": writing, "total": total},
            removed_citations=(),
            model=None,
        )
        return dataclasses.replace(full, **fields)


def prepare(principal: Principal, request: AskRequest) -> Question:
    started = time.perf_counter()
    conversation = None if request.conversation_id is None else conversation_get(principal, request.conversation_id)
    if conversation is not None:
        kb_ids = conversation.knowledge_base_ids
        if request.knowledge_base_ids and set(request.knowledge_base_ids) != set(kb_ids):
            message = _("This conversation has other knowledge bases: leave them out, or begin a new conversation.")
            raise Rejected("other_knowledge_bases", message)
        history = conversation_history(conversation)
        request = dataclasses.replace(request, knowledge_base_ids=kb_ids, history=history)
    outcome = search(principal, request)
    result = outcome.result
    context, sources = _packed(outcome, result.hits, max_sources=outcome.wiring.config.max_source_count)
    _context, near_misses = _packed(outcome, result.near_misses, max_sources=len(result.near_misses))
    return Question(principal, request, outcome, context, sources, near_misses, conversation, started)


def _packed(outcome: SearchOutcome, hits: Sequence[Hit], *, max_sources: int) -> tuple[Context, tuple[Source, ...]]:
    """What was found as a prompt holds it, under the budget, and the same one by one."""
    config = outcome.wiring.config
    context = pack(
        [Fragment.of_hit(hit) for hit in hits],
        max_tokens=config.context_tokens,
        max_chunk_chars=config.max_chunk_chars,
        max_sources=max_sources,
        count_tokens=estimate_tokens,  # the same whichever models are loaded
        language=outcome.result.analysis.language,
    )
    by_id = {hit.passage.chunk_id: hit for hit in hits}
    sources = tuple(
        Source(
            number=citation.number,
            label=citation.label,
            title=hit.passage.title,
            source=hit.passage.source,
            page=hit.passage.page,
            seconds=hit.passage.seconds,
            regions=hit.passage.regions,
            chunk_id=hit.passage.stored_chunk_id,
            document_id=hit.passage.stored_document_id,
            knowledge_base_id=hit.passage.kb_id,
            text=citation.text,
            score=hit.score,
            score_scale=ScoreScale(hit.score_scale),
            relevance=hit.relevance,
        )
        for citation in context.citations
        if citation.chunk_id is not None and (hit := by_id.get(citation.chunk_id))
    )
    return context, sources


def answer(principal: Principal, request: AskRequest) -> Answer:
    """The answer to a question. A language model that fails makes it a degraded one, not an error.

    Raises as `search`, NotVisible also for the conversation, and Rejected where that has other knowledge bases.
    """
    question = prepare(principal, request)
    if not question.sources:
        return question.kept(question.nothing_found())
    _give_connection_back()
    try:
        model = _model()
        written = model.complete(question.prompt(), timeout_s=settings.LLM_SECONDS)
    except GenerationFailed as error:
        return question.kept(question.without_model(error))
    return question.kept(question.written(check_citations(written, question.numbers), model.model))


def stream_answer(principal: Principal, request: AskRequest) -> Generator[AnswerEvent, None, None]:
    """The same in steps; the search is done when this returns, so it raises as `answer` does.

    Who stops reading early closes the connection to the language model, and nothing is kept in the conversation.
    """
    return _events(prepare(principal, request))


def _events(question: Question) -> Generator[AnswerEvent, None, None]:
    result = question.outcome.result
    sources = {
        "sources": question.sources,
        "hit": bool(question.sources),
        "trace_id": question.outcome.trace_id,
        "degraded": result.degraded,
        "facts": result.facts,
    }
    # Before anything is sent: who reads slowly must not hold it either.
    _give_connection_back()
    yield AnswerEvent("sources", as_values(sources))
    if question.sources:
        finished = yield from _written(question)
    else:
        finished = question.nothing_found()
        yield _delta(finished.answer)
    yield AnswerEvent("done", as_values(question.kept(finished)))


def _written(question: Question) -> Generator[AnswerEvent, None, Answer]:
    """The answer's pieces; the value is the whole."""
    checker = StreamChecker(question.numbers)
    written, sent = "", 0
    try:
        model = _model()
        pieces = cast(Generator[str, None, None], model.stream(question.prompt(), timeout_s=settings.LLM_SECONDS))
        with closing(pieces):
            for piece in pieces:
                written += storable(checker.feed(piece))
                if len(written) > sent and not may_decline(written):
                    yield _delta(written[sent:])
                    sent = len(written)
    except GenerationFailed as error:
        finished = question.without_model(error)
        if not sent:
            yield _delta(finished.answer)
        return finished
    written += storable(checker.finish())
    finished = question.written(CheckedAnswer(written, checker.cited, checker.removed), model.model)
    rest = written[sent:] + finished.answer.removeprefix(written.rstrip()) if finished.hit else finished.answer
    if rest:
        yield _delta(rest)
    return finished


def _delta(text: str) -> AnswerEvent:
    return AnswerEvent("delta", {"text": text})


def _model() -> OpenAIGenerator:
    if model := providers.generator():
        return model
    template = gettext_noop(
        "No language model is set up, so the passages found are listed instead of an answer: set LLM_BASE_URL, "
        "LLM_MODEL and LLM_API_KEY, and start the server again."
    )
    raise GenerationFailed(DegradationCode.LLM_NOT_CONFIGURED, ErrorMessage(template))


def _give_connection_back() -> None:
    """No database connection waits for a language model: the pool is small, and an answer may take a minute."""
    if not connection.in_atomic_block:
        connection.close()
