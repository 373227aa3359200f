"""Answers that a language model writes from what a search has found, and from nothing else."""

from collections.abc import Generator
from contextlib import closing
from typing import cast

from django.conf import settings
from django.db import connection
from django.utils.translation import gettext_noop

from kb.access.models.accounts import Principal
from kb.answers.services.question import Question, prepare
from kb.answers.services.types import Answer, AnswerEvent, AskRequest, found
from kb.base.validators import storable
from kb.providers import loaded as providers
from retrieval.answer import CheckedAnswer, StreamChecker, check_citations, may_decline
from retrieval.errors import GenerationFailed
from retrieval.messages import Message
from retrieval.protocols import Generator as LanguageModel
from retrieval.trace import DegradationCode

Pieces = Generator[str, None, None]


def answer(principal: Principal, request: AskRequest) -> Answer:
    """The answer to a question. A language model that fails makes it a degraded one, not an error.

    Raises:
        NotVisible: a knowledge base, the profile or the conversation does not exist for this principal.
        Rejected: the conversation has other knowledge bases.
        InvalidConfiguration: an override is unknown or out of range.
        NoChannelAvailable: no channel could answer.
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
    outcome = question.outcome
    sources = found(question.sources, outcome, outcome.result.degraded, hit=bool(question.sources))
    # Before anything is sent: who reads slowly must not hold it either.
    _give_connection_back()
    yield AnswerEvent("sources", sources)
    if question.sources:
        finished = yield from _written(question)
    else:
        finished = question.nothing_found()
        yield _delta(finished.text)
    yield AnswerEvent("done", question.kept(finished).as_dict())


def _written(question: Question) -> Generator[AnswerEvent, None, Answer]:
    """The answer's pieces; the value is the whole."""
    checker = StreamChecker(question.numbers)
    written, sent = "", 0
    try:
        model = _model()
        pieces = cast(Pieces, model.stream(question.prompt(), timeout_s=settings.LLM_SECONDS))
        with closing(pieces):
            for piece in pieces:
                written += storable(checker.feed(piece))
                if len(written) > sent and not may_decline(written):
                    yield _delta(written[sent:])
                    sent = len(written)
    except GenerationFailed as error:
        finished = question.without_model(error)
        if not sent:
            yield _delta(finished.text)
        return finished
    written += storable(checker.finish())
    finished = question.written(CheckedAnswer(written, checker.cited, checker.removed), model.model)
    rest = written[sent:] + finished.text.removeprefix(written.rstrip()) if finished.hit else finished.text
    if rest:
        yield _delta(rest)
    return finished


def _delta(text: str) -> AnswerEvent:
    return AnswerEvent("delta", {"text": text})


def _model() -> LanguageModel:
    """The language model.

    Raises:
        GenerationFailed: none is set up.
    """
    model = providers.generator()
    if model is None:
        template = gettext_noop(
            "No language model is set up, so the passages found are listed instead of an answer: set LLM_BASE_URL, "
            "LLM_MODEL and LLM_API_KEY, and start the server again."
        )
        raise GenerationFailed(DegradationCode.LLM_NOT_CONFIGURED, Message(template))
    return model


def _give_connection_back() -> None:
    """No database connection waits for a language model: the pool is small, and an answer may take a minute."""
    if not connection.in_atomic_block:
        connection.close()
