"""Ask: answers from knowledge bases as they are written, with the passages they rest on, and one's conversations."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import get_language, gettext as _, gettext_lazy, override
from django.views.generic import View
from unfold.widgets import CHECKBOX_CLASSES

from kb.access.models import KnowledgeBase, Principal
from kb.access.services.rate_limits import ASK
from kb.answers.models import Conversation, Message
from kb.answers.services.answers import AnswerEvent, AskRequest, conversation_get, conversation_overview, stream_answer
from kb.answers.sse import event_stream
from kb.base.errors import NotVisible, Rejected
from kb.content.models import Chunk
from kb.providers.embedding_models import generator
from kb.search.admin.labels import notices
from kb.search.models import SearchLog
from kb.web.admin.scoped import principal
from kb.web.admin.site import AdminPage, admin_page
from retrieval.errors import Degradation, NoChannelAvailable

CONVERSATIONS_LISTED = 30
# Answers were checked when they were written: what still looks like a citation here is one.
_CITATION = re.compile(r"([\[\uff3b【][\d ,，、;；~\u2013\u2014\uff5e-]{1,40}[\]\uff3d】])")
_NUMBER = re.compile(r"(\d+)")


class AskForm(forms.Form):
    query = forms.CharField(
        label=gettext_lazy("Question"),
        max_length=2_000,
        widget=forms.Textarea({"rows": 2, "enterkeyhint": "send", "autocomplete": "off"}),
    )
    kb = forms.TypedMultipleChoiceField(
        label=gettext_lazy("Knowledge bases"),
        required=False,
        coerce=int,
        widget=forms.CheckboxSelectMultiple({"class": " ".join(CHECKBOX_CLASSES)}),
    )
    conversation = forms.UUIDField(required=False, widget=forms.HiddenInput)

    def __init__(
        self, bases: Sequence[KnowledgeBase], data: Any = None, conversation: Conversation | None = None
    ) -> None:
        super().__init__(data)
        cast(forms.ChoiceField, self.fields["kb"]).choices = [(str(kb.pk), kb.name) for kb in bases]
        if conversation is not None:
            self.initial = {
                "conversation": conversation.pk,
                "kb": [str(kb_id) for kb_id in conversation.knowledge_base_ids],
            }
        elif len(bases) == 1:
            self.initial["kb"] = [str(bases[0].pk)]

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if not values.get("kb") and not values.get("conversation") and "kb" not in self.errors:
            self.add_error("kb", _("Choose at least one knowledge base."))
        return values

    def request(self) -> AskRequest:
        conversation_id = self.cleaned_data["conversation"]
        return AskRequest(
            query=self.cleaned_data["query"],
            knowledge_base_ids=[] if conversation_id else self.cleaned_data["kb"],
            conversation_id=conversation_id,
            remember=True,
        )


@admin_page("ask/", name="ask")
class AskView(AdminPage):
    template_name = "answers/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller = principal(self.request)
        bases = _bases(caller)
        conversation = _conversation(caller, self.request.GET.get("conversation", ""))
        named = {kb.pk: kb for kb in bases}
        chosen = [named[kb_id] for kb_id in conversation.knowledge_base_ids] if conversation else []
        return super().get_context_data(
            **kwargs,
            title=_("Ask"),
            bases=bases,
            empty_bases=[kb for kb in chosen or bases if not kb.has_chunks],
            has_chunks=any(kb.has_chunks for kb in bases),
            chosen=chosen,
            conversation=conversation,
            turns=list(_turns(caller, conversation)) if conversation else [],
            conversations=conversation_overview(caller)[:CONVERSATIONS_LISTED],
            form=AskForm(bases, conversation=conversation),
            has_model=generator() is not None,
        )


@admin_page("ask/answer/", name="ask_answer")
class AskStreamView(View):
    """Streams an answer to the page; a question that cannot be asked is an ordinary error with a sentence."""

    http_method_names = ["post"]
    rate_limit_kind = ASK

    def post(self, request: HttpRequest) -> HttpResponseBase:
        caller = principal(request)
        form = AskForm(_bases(caller), request.POST)
        detail, status = " ".join(str(message) for errors in form.errors.values() for message in errors), 400
        try:
            if form.is_valid():
                asked = form.request()
                return event_stream(stream_answer(caller, asked), _shown(caller, asked))
        except (NotVisible, Rejected) as error:
            detail, status = str(error), 404 if isinstance(error, NotVisible) else 400
        except NoChannelAvailable as error:
            detail, status = _("No channel could answer: %(reasons)s") % {"reasons": error}, 503
        return JsonResponse({"detail": detail}, status=status)


@admin_page("ask/<uuid:pk>/delete/", name="ask_delete")
class DeleteConversationView(AdminPage):
    template_name = "answers/delete.html"

    @cached_property
    def conversation(self) -> Conversation:
        return cast(Conversation, _conversation(principal(self.request), str(self.kwargs["pk"])))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            title=_("Delete the conversation “%(title)s”?") % {"title": self.conversation},
            conversation=self.conversation,
            message_count=self.conversation.messages.count(),
        )

    def post(self, *_args: Any, **_kwargs: Any) -> HttpResponseRedirect:
        title = str(self.conversation)
        self.conversation.delete()
        messages.success(self.request, _("The conversation “%(title)s” was deleted.") % {"title": title})
        return HttpResponseRedirect(reverse("admin:ask"))


def _bases(caller: Principal) -> list[Any]:
    has_chunks = Exists(Chunk.objects.filter(knowledge_base=OuterRef("pk")))
    return list(KnowledgeBase.objects.visible_to(caller).annotate(has_chunks=has_chunks))


def _conversation(caller: Principal, conversation_id: str) -> Conversation | None:
    """The conversation that a URL names, if it names one; Http404 where it does not exist for this user."""
    if not conversation_id:
        return None
    try:
        return conversation_get(caller, UUID(conversation_id))
    except (NotVisible, ValueError) as error:
        raise Http404(str(error)) from error


def _shown(caller: Principal, asked: AskRequest) -> Callable[[AnswerEvent], Mapping[str, Any]]:
    """What the page is sent of an answer's steps, as HTML where there is markup, in the language of the request."""
    language = get_language()

    def found(data: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"html": render_to_string("answers/sources.html", {"sources": list(map(_source, data["sources"]))})}

    def done(data: Mapping[str, Any]) -> Mapping[str, Any]:
        conversation_id = data["conversation_id"]
        listed = conversation_overview(caller)[:CONVERSATIONS_LISTED]
        kb_ids = next((row.knowledge_base_ids for row in listed if str(row.pk) == conversation_id), None)
        answer = _answer(data["answer"], data, kb_ids or asked.knowledge_base_ids, asked.query)
        return {
            "html": render_to_string("answers/answer.html", {"answer": answer}),
            "conversations": render_to_string(
                "answers/conversations.html", {"conversations": listed, "current": conversation_id}
            ),
            "conversation": conversation_id or "",
            "url": f"{reverse('admin:ask')}?conversation={conversation_id}" if conversation_id else "",
        }

    def shown(event: AnswerEvent) -> Mapping[str, Any]:
        with override(language):
            return {"sources": found, "done": done}.get(event.name, dict)(event.data)

    return shown


def _turns(caller: Principal, conversation: Conversation) -> Iterator[tuple[str, Mapping[str, Any]]]:
    stored = list(conversation.messages.all())
    searches = SearchLog.objects.visible_to(caller).filter(pk__in=[each.trace_id for each in stored if each.trace_id])
    feedback = dict(searches.values_list("pk", "feedback"))
    for question, message in pairwise(stored):
        if message.role == Message.Role.ASSISTANT:
            # A search that is no longer in the log can no longer be called helpful or not.
            data = {
                "sources": message.sources,
                "near_misses": message.near_misses,
                "hit": message.hit,
                "confidence": message.confidence,
                "degraded": message.degraded,
                "trace_id": message.trace_id if message.trace_id in feedback else None,
            }
            answer = _answer(message.text, data, conversation.knowledge_base_ids, question.text)
            yield question.text, {**answer, "feedback": feedback.get(message.trace_id)}


def _answer(text: str, data: Mapping[str, Any], kb_ids: Iterable[int], question: str) -> dict[str, Any]:
    sources = list(map(_source, data["sources"]))
    degraded = [Degradation.from_dict(each) for each in data["degraded"]]
    scale = sources[0]["score_scale"] if sources else ""
    confidence, trace_id = data["confidence"], data["trace_id"]
    return {
        "parts": list(_parts(text, {source["number"]: source for source in sources})),
        "sources": sources,
        "near_misses": [] if data["hit"] else list(map(_source, data["near_misses"])),
        "hit": bool(data["hit"]),
        "confidence": "" if confidence is None or not scale else f"{confidence:.2f} ({scale})",
        "notices": notices(degraded, (), {}),
        "is_urgent": any(each.stage == "answer" for each in degraded),
        "debug_url": f"{reverse('admin:search_debug')}?{urlencode([*(('kb', kb_id) for kb_id in kb_ids), ('q', question)])}",
        "trace_url": f"/api/v1/traces/{trace_id}/" if trace_id else "",
        "trace_id": str(trace_id or ""),
        "feedback": None,
    }


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    """A source with its links; a live or external one is no chunk here, and has an address that a browser may open."""
    address = source["source"] if source["source"].startswith(("https://", "http://")) else ""
    chunk_id, document_id = source["chunk_id"], source["document_id"]
    return {
        **source,
        "score": f"{source['score']:.3f} ({source['score_scale']})",
        "chunk_url": address if chunk_id is None else reverse("admin:kb_chunk_change", args=[chunk_id]),
        "document_url": "" if document_id is None else reverse("admin:kb_document_change", args=[document_id]),
    }


def _parts(text: str, sources: Mapping[int, Mapping[str, Any]]) -> Iterable[tuple[str, Mapping[str, Any] | None]]:
    """The text in pieces, each number of a citation with its source."""
    for place, piece in enumerate(_CITATION.split(text)):
        is_citation = place % 2
        for word in _NUMBER.split(piece) if is_citation else [piece]:
            yield word, sources.get(int(word)) if is_citation and word.isdecimal() else None
