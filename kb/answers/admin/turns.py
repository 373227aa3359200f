"""What the page shows of questions and their answers: the text with its citations, the passages, and what can be done next."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from kb.access.models import KnowledgeBase, Principal
from kb.answers.models import Conversation, Message
from kb.answers.selectors import model_failure, stored_answer, turns_of
from kb.base.text import web_address
from kb.search.admin.labels import notices
from kb.search.models import SearchLog
from kb.search.services.baseline import beyond_baseline
from retrieval.answer import FALLBACK, cited_places, without_sources
from retrieval.errors import Degradation, DegradationCode
from retrieval.highlight import without_rules

TURNS_SHOWN = 10


def turns_before(
    caller: Principal,
    conversation: Conversation,
    bases: Mapping[int, KnowledgeBase],
    before: int | None = None,
    *,
    most: int = TURNS_SHOWN,
) -> tuple[list[dict[str, Any]], int | None]:
    """The last questions with their answers, oldest first, and the id before which there are more; None: there are none.

    `before` is such an id. The bases are those of the conversation, as `asked_bases` reads them.
    """
    turns, more = turns_of(conversation, most=most, before=before)
    trace_ids = [message.trace_id for _question, message in turns if message.trace_id]
    searches = SearchLog.objects.visible_to(caller).filter(pk__in=trace_ids)
    feedback = dict(searches.values_list("pk", "feedback"))
    asked = [bases[kb_id] for kb_id in conversation.knowledge_base_ids]

    def shown(question: Message, message: Message) -> dict[str, Any]:
        if message.status == Message.Status.WRITING:
            return {"kind": "writing", "id": message.pk}
        answer = answer_shown(stored_answer(message), asked, question.text)
        # A search that is no longer in the log can no longer be called helpful or not.
        trace_id = answer["trace_id"] if message.trace_id in feedback else ""
        return {**answer, "trace_id": trace_id, "feedback": feedback.get(message.trace_id)}

    return [{"question": question.text, "answer": shown(question, message)} for question, message in turns], more


def answer_shown(data: Mapping[str, Any], bases: Sequence[KnowledgeBase], question: str) -> dict[str, Any]:
    """What the template of an answer needs; `data` is of the event `done`, or what `stored_answer` makes of a message.

    `kind` is "written", "passages" where no chat model wrote an answer, or "missed" where nothing was found; `is_whole`
    says whether it was written to its end; `cited` are the sources that the text cites, else all. Who may edit one of the bases, read with `may_edit`, gets what leads on from there.
    """
    sources = list(map(source_shown, data["sources"]))
    near_misses = [] if data["hit"] else list(map(source_shown, data["near_misses"]))
    degraded = [Degradation.from_dict(each) for each in data["degraded"]]
    is_whole = data["status"] == Message.Status.DONE
    text, failure = data["answer"], model_failure(data["degraded"]) if is_whole else None
    written = "" if not data["hit"] or failure else without_sources(text)
    cited = {number for _start, _end, numbers in cited_places(written) for number in numbers}
    asked = [*(("kb", kb.pk) for kb in bases), ("q", question)]
    nearest = [("chunk", source["chunk_id"]) for source in near_misses[:1] if source["chunk_id"]]
    may_edit = any(kb.may_edit for kb in bases)  # type: ignore[attr-defined] # an annotation
    return {
        "is_whole": is_whole,
        "was_stopped": data["status"] == Message.Status.STOPPED,
        "kind": "missed" if not data["hit"] else "passages" if failure else "written",
        "text": written,
        "is_listed_only": failure is not None and failure["code"] == DegradationCode.LLM_NOT_CONFIGURED,
        "said": text,
        # What a knowledge base has as its own sentence for this.
        "no_answer": "" if data["hit"] or text in FALLBACK.values() else text,
        "sources": sources,
        "cited": [source for source in sources if source["number"] in cited] or sources,
        "near_misses": near_misses,
        "may_edit": may_edit,
        "notices": notices(beyond_baseline(degraded, bases), (), {}) if may_edit else [],
        "test_url": _page("search_debug", asked),
        "why_url": _page("why_not", asked + nearest),
        "write_url": _page("ask_write", asked),
        "trace_id": str(data["trace_id"] or ""),
        "feedback": None,
    }


def _page(name: str, query: Sequence[tuple[str, Any]]) -> str:
    return f"{reverse(f'admin:{name}')}?{urlencode(query)}"


def source_shown(source: Mapping[str, Any]) -> dict[str, Any]:
    """A source with its links; a live or external one is no chunk here, and has an address that a browser may open."""
    chunk_id = source["chunk_id"]
    return {
        **source,
        "text": without_rules(source["text"]),
        "url": web_address(source["source"]) if chunk_id is None else reverse("admin:kb_chunk_place", args=[chunk_id]),
        "passage_url": "" if chunk_id is None else reverse("admin:kb_chunk_passage", args=[chunk_id]),
    }
