"""A question with everything that its answer can be made of."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.answers.models import Conversation
from kb.answers.services.conversations import conversation_get, conversation_history, turn_add
from kb.answers.services.types import Answer, AskRequest, Source
from kb.base.errors import Rejected
from kb.base.metrics import DEGRADATIONS
from kb.base.validators import storable
from kb.search.services.search import SearchOutcome, SearchRequest, search
from retrieval.answer import CheckedAnswer, build_prompt, confidence, declines, fallback_for, sources_line
from retrieval.embedders.text import estimate_tokens
from retrieval.errors import GenerationFailed
from retrieval.inert import inert
from retrieval.messages import message_of
from retrieval.packing import Context, Fragment, pack
from retrieval.trace import Degradation, DegradationCode
from retrieval.types import Turn

_NOT_CONFIGURED = {
    "en": "No language model is configured, so there is no answer in words. These passages were found:",
    "zh": "没有配置语言模型，因此没有生成回答。以下是找到的段落：",
}
_WITHOUT_MODEL = {
    "en": "The language model could not be reached, so there is no answer in words. These passages were found:",
    "zh": "无法连接语言模型，因此没有生成回答。以下是找到的段落：",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question with everything that its answer can be made of.

    Attributes:
        nothing: the sentence for a question without an answer.
        base_language: of the first knowledge base; what the model writes is in the question's.
    """

    principal: Principal
    request: AskRequest
    outcome: SearchOutcome
    context: Context
    sources: tuple[Source, ...]
    conversation: Conversation | None
    nothing: str
    base_language: str
    started: float

    @property
    def numbers(self) -> list[int]:
        return [source.number for source in self.sources]

    @property
    def language(self) -> str:
        return self.outcome.result.analysis.language

    def prompt(self) -> list[Turn]:
        return build_prompt(
            self.request.query,
            self.context,
            self.request.history,
            self.language,
            facts=self.outcome.result.facts,
        )

    def nothing_found(self, model: str | None = None) -> Answer:
        """Nothing was found, or what was found does not answer the question."""
        return self._answer(self.nothing, sources=(), hit=False, confidence=0.0, model=model)

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
        sentence = sentences.get(self.base_language, sentences["en"])
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
                "text": answer.text,
                "sources": [dataclasses.asdict(source) for source in answer.sources],
                "hit": answer.hit,
                "confidence": answer.confidence,
                "trace_id": self.outcome.trace_id,
                "degraded": [degradation.as_dict() for degradation in answer.degraded],
            },
        )
        return dataclasses.replace(answer, conversation_id=conversation_id)

    def _with_sources(self, text: str, cited: Sequence[int]) -> str:
        most = self.outcome.wiring.config.max_source_count
        return f"{text.rstrip()}\n\n{sources_line(self.context.citations, cited, most, self.language)}"

    def _answer(self, text: str, **fields: Any) -> Answer:
        result = self.outcome.result
        total = _milliseconds_since(self.started)
        writing = max(0.0, round(total - result.timings_ms["total"], 3))
        default = {
            "sources": self.sources,
            "hit": True,
            "confidence": confidence(result.hits),
            "degraded": result.degraded,
            "timings_ms": {**result.timings_ms, "answer": writing, "total": total},
        }
        return Answer(text=inert(storable(text)), outcome=self.outcome, **{**default, **fields})


def prepare(principal: Principal, request: AskRequest) -> Question:
    """Searches, and packs what was found."""
    started = time.perf_counter()
    conversation = None if request.conversation_id is None else conversation_get(principal, request.conversation_id)
    if conversation is not None:
        scope, history = _scope(conversation, request), conversation_history(conversation)
        request = dataclasses.replace(request, knowledge_base_ids=scope, history=history)
    outcome = search(principal, _search_request(request))
    language = outcome.knowledge_bases[0].language
    context = _pack(outcome)
    return Question(
        principal=principal,
        request=request,
        outcome=outcome,
        context=context,
        sources=_sources(outcome, context),
        conversation=conversation,
        nothing=_no_answer(outcome.knowledge_bases) or fallback_for(language),
        base_language=language,
        started=started,
    )


def _scope(conversation: Conversation, request: AskRequest) -> Sequence[int]:
    if request.knowledge_base_ids and set(request.knowledge_base_ids) != set(conversation.knowledge_base_ids):
        message = _("This conversation has other knowledge bases: leave them out, or begin a new conversation.")
        raise Rejected("other_knowledge_bases", message)
    return list(conversation.knowledge_base_ids)


def _search_request(request: AskRequest) -> SearchRequest:
    return SearchRequest(**{field.name: getattr(request, field.name) for field in dataclasses.fields(SearchRequest)})


def _no_answer(knowledge_bases: Sequence[KnowledgeBase]) -> str:
    """The sentence of the knowledge bases' own, on one line; blank where they have none, or several."""
    sentences = {" ".join(kb.no_answer.split()) for kb in knowledge_bases}
    return sentences.pop() if len(sentences) == 1 else ""


def _pack(outcome: SearchOutcome) -> Context:
    """The results under the budget; an estimate of the tokens is the same whichever models are loaded."""
    config = outcome.wiring.config
    return pack(
        [Fragment.of_hit(hit) for hit in outcome.result.hits],
        max_tokens=config.context_tokens,
        max_chunk_chars=config.max_chunk_chars,
        max_sources=config.max_source_count,
        count_tokens=estimate_tokens,
        language=outcome.result.analysis.language,
    )


def _sources(outcome: SearchOutcome, context: Context) -> tuple[Source, ...]:
    hits = {hit.passage.chunk_id: hit for hit in outcome.result.hits}
    packed = [(citation, hits[citation.chunk_id]) for citation in context.citations if citation.chunk_id in hits]
    return tuple(
        Source(
            number=citation.number,
            label=citation.label,
            title=hit.passage.title,
            source=hit.passage.source,
            page=hit.passage.page,
            chunk_id=hit.passage.stored_chunk_id,
            document_id=hit.passage.stored_document_id,
            knowledge_base_id=hit.passage.kb_id,
            text=citation.text,
            score=hit.score,
            score_scale=hit.score_scale,
        )
        for citation, hit in packed
    )


def _milliseconds_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1_000, 3)
