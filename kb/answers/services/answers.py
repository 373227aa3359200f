"""Answers to questions: search, prompt, the chat model's text, its citations checked."""

import dataclasses
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, cast
from uuid import UUID

from django.conf import settings
from django.dispatch import Signal
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_noop
from typing_extensions import Doc

from kb.access.models import Principal, User
from kb.answers.models import Conversation, Message
from kb.answers.services.conversations import (
    conversation_get,
    conversation_history,
    conversation_of_visitor,
    require_last,
    turn_begin,
    turn_end,
)
from kb.answers.services.progress import Progress, Stopped
from kb.base.db.transactions import give_connection_back
from kb.base.errors import Rejected
from kb.base.metrics import DEGRADATIONS
from kb.base.shapes import as_values
from kb.base.streams import STREAMS, Started
from kb.base.text import storable
from kb.content.models import GONE_SINCE
from kb.ingest.services.pictures import ShownPicture
from kb.providers import embedding_models as providers
from kb.providers.usage.counting import Tally, counted_for, pieces_counted_for, tallied
from kb.search.models import SearchLog
from kb.search.services.search import SearchOutcome, SearchRequest, UsedProfile, pictures_of, search
from retrieval.answer import (
    FALLBACK,
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
from retrieval.packing import Context, Fragment, inert, pack
from retrieval.selection import ScoreScale
from retrieval.types import Fact, Hit, PageRegion, Relevance, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest(SearchRequest):
    """What to ask: a search, whose latency budget does not count the writing of the answer.

    Where it continues a conversation, that has its own knowledge bases; else `remember` begins one with the question.
    `instead_of` is the id of the last answer of that conversation, which it takes the place of, its question's included.
    """

    knowledge_base_ids: Sequence[int] = ()
    conversation_id: UUID | None = None
    remember: bool = False
    instead_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """How an answer is written and kept; the defaults are those of Ask and of the API.

    Attributes:
        model: the slug of the chat model; blank: the default one.
        fields: of each request to it, such as its temperature.
        instructions: what the system prompt says below its own rules, in this order.
        of_caller: what the program that asks adds to them.
        no_answer: what is said where nothing is found; blank: the sentence of the knowledge bases.
        names_sources: whether the text itself ends with the names of its sources, or lists the passages where no model answers.
        model_reads_names: whether the chat model is told what documents the passages are of; what it knows, it can be asked for.
        remembers: whether earlier turns of the conversation complete the question and go to the model.
        keeps_text: whether a conversation holds questions and answers, or only that they were.
        visitor_id: whose conversation it is; None: the principal's.
        version_id: of the assistant that answers.
        asked_on: where it was asked, such as on which page of a website: data that the model reads beside the question.
    """

    model: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    instructions: tuple[str, ...] = ()
    of_caller: tuple[str, ...] = ()
    no_answer: str = ""
    names_sources: bool = True
    model_reads_names: bool = True
    remembers: bool = True
    keeps_text: bool = True
    visitor_id: UUID | None = None
    version_id: int | None = None
    asked_on: str = ""


DEFAULTS: Final = AnswerSettings()

# Sent with `search` (a SearchLog that may not be stored yet) and `is_weak`: passages were found, and the chat model says
# that they do not answer the question or, where an assistant was asked, none of them is more than of low relevance.
question_unanswered = Signal()


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
    text: Annotated[str, Doc("As the chat model was given it; long passages are cut.")]
    score: Annotated[float, Doc("On the scale that `score_scale` names.")]
    score_scale: ScoreScale
    relevance: Annotated[Relevance | None, Doc("What the score says; null on the scale `rrf`.")]
    pictures: Annotated[tuple[ShownPicture, ...], Doc("Of the document, that stand in the chunk.")] = ()
    gone_since: Annotated[
        str, Doc("When the document was gone from the source that it came from; blank: it is there.")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response of POST /api/v1/ask/."""

    answer: Annotated[
        str,
        Doc(
            "With citations such as [1] and, as its last line, the names of the sources. Where nothing relevant was found, the "
            "knowledge base's sentence for that; where no chat model answered, the passages found."
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
    status: Annotated[
        Message.Status,
        Doc(
            "`stopped` where its reader wanted no more of it, `broken` where it broke off: `answer` holds what was written until then."
        ),
    ]
    conversation_id: Annotated[UUID | None, Doc("Of the conversation that it was kept in.")]
    message_id: Annotated[int | None, Doc("Of the answer in that conversation.")]
    profile: UsedProfile
    degraded: tuple[Degradation, ...]
    facts: Annotated[tuple[Fact, ...], Doc("Of the graph; never cited.")]
    timings_ms: Annotated[Mapping[str, float], Doc("Milliseconds by stage of the search, of the answer, and in total.")]
    removed_citations: Annotated[
        tuple[int, ...],
        Doc("Numbers that the chat model cited and that name no source; they were taken out of the answer."),
    ]
    model: Annotated[str | None, Doc("The chat model; null where none wrote the answer.")]
    input_tokens: Annotated[int, Doc("That chat models read for it, to complete the question and to answer it.")]
    output_tokens: Annotated[int, Doc("That they wrote.")]


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """A step of an answer as it is written.

    `sources` comes first, with what was found; each `delta` holds further "text"; `done`, the last, holds the whole
    answer, which counts where it differs from the pieces.
    """

    name: Literal["sources", "delta", "done"]
    data: dict[str, Any]


# Each with what follows where the passages do.
_NOT_CONFIGURED = {
    "en": ("No chat model is configured, so there is no written answer.", " These passages were found:"),
    "zh": ("没有配置对话模型，因此没有生成回答。", "以下是找到的段落："),
}
_WITHOUT_MODEL = {
    "en": ("The chat model could not be reached, so there is no written answer.", " These passages were found:"),
    "zh": ("无法连接对话模型，因此没有生成回答。", "以下是找到的段落："),
}


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked and what a search found for it.

    Attributes:
        turn: the answer as its conversation holds it while it is written; None: it is not kept.
        tally: of the tokens that its chat models read and write.
    """

    request: AskRequest
    settings: AnswerSettings
    outcome: SearchOutcome
    context: Context
    sources: tuple[Source, ...]
    near_misses: tuple[Source, ...]
    turn: Message | None
    tally: Tally
    started: float

    @property
    def knowledge_base_ids(self) -> list[int]:
        return [kb.pk for kb in self.outcome.knowledge_bases]

    @property
    def numbers(self) -> list[int]:
        return [source.number for source in self.sources]

    def prompt(self) -> list[Turn]:
        request, result, context = self.request, self.outcome.result, self.context
        if not self.settings.model_reads_names:
            unnamed = tuple(dataclasses.replace(each, label="") for each in context.citations)
            context = dataclasses.replace(context, citations=unnamed)
        return build_prompt(
            "\n\n".join(filter(None, (request.query, self.settings.asked_on))),
            context,
            request.history,
            result.analysis.language,
            facts=result.facts,
            instructions=self.settings.instructions,
            of_caller=self.settings.of_caller,
        )

    def nothing_found(self, model: str | None = None) -> Answer:
        """Nothing was found, or what was found does not answer the question: the sentence that its knowledge bases share."""
        bases = self.outcome.knowledge_bases
        own, *others = {" ".join((self.settings.no_answer or kb.no_answer).split()) for kb in bases}
        sentence = FALLBACK.get(bases[0].language, FALLBACK["en"]) if others or not own else own
        return self._answer(sentence, sources=(), hit=False, confidence=0.0, model=model)

    def written(self, checked: CheckedAnswer, model: str) -> Answer:
        if declines(checked.text):
            return self.nothing_found(model)
        return self._answer(
            self._with_sources(checked.text, checked.cited), model=model, removed_citations=checked.removed
        )

    def without_model(self, error: GenerationFailed, written: str = "") -> Answer:
        """The passages found, where the model has failed; what it had `written` by then where its reader has seen that."""
        degradation = Degradation("answer", error.code, message_of(error))
        DEGRADATIONS.labels(degradation.stage, degradation.code.value).inc()
        degraded = (*self.outcome.result.degraded, degradation)
        if written:
            return self._answer(written, degraded=degraded, status=Message.Status.BROKEN)
        sentences = _NOT_CONFIGURED if error.code is DegradationCode.LLM_NOT_CONFIGURED else _WITHOUT_MODEL
        sentence, passages = sentences.get(self.outcome.knowledge_bases[0].language, sentences["en"])
        if not self.settings.names_sources:
            return self._answer(sentence, degraded=degraded)
        return self._answer(
            self._with_sources(f"{sentence}{passages}\n\n{self.context.text}", self.numbers), degraded=degraded
        )

    def stopped(self, written: str) -> Answer:
        return self._answer(written, status=Message.Status.STOPPED)

    def kept(self, answer: Answer) -> Answer:
        """The answer, once it is part of the conversation, if it is to be and that was not deleted meanwhile."""
        if self.turn is None:
            self._report_failure(answer)
            return answer
        is_kept = turn_end(
            self.turn.pk,
            answer.status,
            text=answer.answer if self.settings.keeps_text else "",
            sources=as_values(answer.sources) if self.settings.keeps_text else [],
            near_misses=as_values(answer.near_misses) if self.settings.keeps_text else [],
            hit=answer.hit,
            confidence=answer.confidence,
            degraded=[degradation.as_dict() for degradation in answer.degraded],
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
        )
        if not is_kept:
            return answer
        self._report_failure(answer)
        return dataclasses.replace(answer, conversation_id=self.turn.conversation_id, message_id=self.turn.pk)

    def _report_failure(self, answer: Answer) -> None:
        request = self.request
        is_weak = answer.hit and all(source.relevance is Relevance.LOW for source in self.sources)
        if not self.sources or not request.keeps_query or (answer.hit and not (is_weak and request.assistant_id)):
            return
        search = SearchLog(
            id=self.outcome.trace_id,
            query=request.query,
            knowledge_base_ids=self.knowledge_base_ids,
            assistant_id=request.assistant_id,
            created_at=timezone.now(),
        )
        question_unanswered.send_robust(Question, search=search, is_weak=is_weak)

    def broke_off(self, written: str) -> None:
        """Keeps what was written of an answer that nobody finishes, because the process ends or fails."""
        self.kept(self._answer(inert(written), status=Message.Status.BROKEN))

    def _with_sources(self, text: str, cited: Sequence[int]) -> str:
        if not self.settings.names_sources:
            return text.rstrip()
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
            status=Message.Status.DONE,
            conversation_id=None,
            message_id=None,
            profile=UsedProfile.of(self.outcome.wiring.profile),
            degraded=result.degraded,
            facts=result.facts,
            timings_ms={**result.timings_ms, "answer": writing, "total": total},
            removed_citations=(),
            model=None,
            input_tokens=self.tally.input_tokens,
            output_tokens=self.tally.output_tokens,
        )
        return dataclasses.replace(full, **fields)


def prepare(principal: Principal, request: AskRequest, answer_settings: AnswerSettings) -> Question:
    started = time.perf_counter()
    conversation = None
    if request.conversation_id is not None:
        conversation, request = _continued(principal, request, answer_settings)
    with tallied() as tally:
        outcome = search(principal, request)
    result = outcome.result
    shown = pictures_of(outcome)
    context, sources = _packed(outcome, result.hits, shown, max_sources=outcome.wiring.config.max_source_count)
    _context, near_misses = _packed(outcome, result.near_misses, shown, max_sources=len(result.near_misses))
    turn = None
    if conversation is not None or request.remember:
        turn = turn_begin(
            owner=answer_settings.visitor_id or cast(User, principal.user),  # an anonymous one finds nothing to ask
            conversation=conversation,
            knowledge_base_ids=request.knowledge_base_ids,
            question=request.query if answer_settings.keeps_text else "",
            version_id=answer_settings.version_id,
            trace_id=outcome.trace_id,
            instead_of=request.instead_of,
            sources=as_values(sources) if answer_settings.keeps_text else [],
            hit=bool(sources),
        )
        if turn is None:  # the conversation was deleted meanwhile, and its words with it
            request = dataclasses.replace(request, keeps_query=False)
    return Question(request, answer_settings, outcome, context, sources, near_misses, turn, tally, started)


def _continued(
    principal: Principal, request: AskRequest, answer_settings: AnswerSettings
) -> tuple[Conversation, AskRequest]:
    """The conversation that is continued, and the request with its knowledge bases and turns.

    A visitor's assistant may have come to other knowledge bases since the conversation began.
    """
    conversation_id = cast(UUID, request.conversation_id)
    if answer_settings.visitor_id is not None:
        conversation = conversation_of_visitor(answer_settings.visitor_id, conversation_id)
        kb_ids = request.knowledge_base_ids
    else:
        conversation = conversation_get(principal, conversation_id)
        kb_ids = conversation.knowledge_base_ids
        if request.knowledge_base_ids and set(request.knowledge_base_ids) != set(kb_ids):
            message = _("This conversation has other knowledge bases: leave them out, or begin a new conversation.")
            raise Rejected("other_knowledge_bases", message)
    if request.instead_of is not None:
        require_last(conversation, request.instead_of)
    history = (
        conversation_history(conversation, request.instead_of)
        if answer_settings.remembers and answer_settings.keeps_text
        else request.history
    )
    return conversation, dataclasses.replace(request, knowledge_base_ids=kb_ids, history=history)


def _packed(
    outcome: SearchOutcome, hits: Sequence[Hit], shown: Mapping[int, tuple[ShownPicture, ...]], *, max_sources: int
) -> tuple[Context, tuple[Source, ...]]:
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
            pictures=shown.get(hit.passage.chunk_id, ()),
            gone_since=str(hit.passage.metadata.get(GONE_SINCE, "")),
        )
        for citation in context.citations
        if citation.chunk_id is not None and (hit := by_id.get(citation.chunk_id))
    )
    return context, sources


def answer(principal: Principal, request: AskRequest, answer_settings: AnswerSettings = DEFAULTS) -> Answer:
    """The answer to a question. A chat model that fails makes it a degraded one, not an error.

    Raises as `search`, NotVisible also for the conversation, and Rejected where that has other knowledge bases; also,
    before the search, where this process writes as many answers as it may.
    """
    require_room()
    question = prepare(principal, request, answer_settings)
    with Progress(question.turn.pk if question.turn else None):
        try:
            finished = _whole(question) if question.sources else question.nothing_found()
        except BaseException:
            question.broke_off("")
            raise
        return question.kept(finished)


def _whole(question: Question) -> Answer:
    try:
        model = _model(question.settings.model)
        give_connection_back()
        with counted_for(*question.knowledge_base_ids), tallied(question.tally), STREAMS.waiting():
            written = model.complete(question.prompt(), timeout_s=settings.LLM_SECONDS, fields=question.settings.fields)
    except GenerationFailed as error:
        return question.without_model(error)
    return question.written(check_citations(written, question.numbers), model.model)


def stream_answer(
    principal: Principal, request: AskRequest, answer_settings: AnswerSettings = DEFAULTS
) -> Generator[AnswerEvent, None, None]:
    """The same in steps; the search is done when this returns, so it raises as `answer` does.

    Also raises Rejected, before the search, where this process streams as many answers as it may.

    Who stops reading early closes the connection to the chat model; a conversation keeps what was written by then.
    """
    require_room()
    question = prepare(principal, request, answer_settings)
    # Before anything is sent: who reads slowly must not hold it either.
    give_connection_back()
    return Started(_events(question))


def require_room() -> None:
    if STREAMS.are_full:
        raise Rejected("too_many_streams", _("The server is writing as many answers as it can: ask again in a moment."))


def _events(question: Question) -> Generator[AnswerEvent, None, None]:
    result, turn = question.outcome.result, question.turn
    sources = {
        "sources": question.sources,
        "hit": bool(question.sources),
        "trace_id": question.outcome.trace_id,
        "conversation_id": turn and turn.conversation_id,
        "message_id": turn and turn.pk,
        "degraded": result.degraded,
        "facts": result.facts,
    }
    with Progress(turn.pk if turn else None) as progress:
        try:
            yield AnswerEvent("sources", as_values(sources))
            if question.sources:
                finished = yield from _written(question, progress)
            else:
                finished = question.nothing_found()
                yield _delta(finished.answer)
        except BaseException:  # also the reader who has left
            question.broke_off(progress.text)
            raise
        kept = question.kept(finished)
    yield AnswerEvent("done", as_values(kept))


def _written(question: Question, progress: Progress) -> Generator[AnswerEvent, None, Answer]:
    """The answer's pieces; the value is the whole."""
    checker = StreamChecker(question.numbers)
    written, sent = "", 0
    try:
        model = _model(question.settings.model)
        give_connection_back()
        written_pieces = model.stream(
            question.prompt(), timeout_s=settings.LLM_SECONDS, fields=question.settings.fields
        )
        with tallied(question.tally):
            pieces = pieces_counted_for(question.knowledge_base_ids, written_pieces)
        with closing(pieces):
            for piece in pieces:
                written += storable(checker.feed(piece))
                if len(written) > sent and not may_decline(written):
                    yield _delta(written[sent:])
                    sent = len(written)
                    progress.grow(written)
    except GenerationFailed as error:
        finished = question.without_model(error, written[:sent])
        if not sent:
            yield _delta(finished.answer)
        return finished
    except Stopped:
        return question.stopped(written[:sent])
    written += storable(checker.finish())
    finished = question.written(CheckedAnswer(written, checker.cited, checker.removed), model.model)
    rest = written[sent:] + finished.answer.removeprefix(written.rstrip()) if finished.hit else finished.answer
    if rest:
        yield _delta(rest)
    return finished


def _delta(text: str) -> AnswerEvent:
    return AnswerEvent("delta", {"text": text})


def _model(slug: str) -> OpenAIGenerator:
    if model := providers.generator(slug or None):
        return model
    template = gettext_noop(
        "No chat model is set up, so the passages found are listed instead of an answer: a superuser adds a chat model "
        "under System, Models."
    )
    raise GenerationFailed(DegradationCode.LLM_NOT_CONFIGURED, ErrorMessage(template))
