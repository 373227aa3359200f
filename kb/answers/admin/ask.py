"""Ask: answers from knowledge bases as they are written, with the passages they rest on, and one's conversations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast

from django import forms
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import get_language, gettext as _, gettext_lazy, override
from django.views.generic import View

from kb.access.models import KnowledgeBase, Principal
from kb.access.services.rate_limits import ASK
from kb.answers.admin.conversations import CONVERSATIONS_LISTED, conversation_of
from kb.answers.admin.turns import answer_shown, source_shown, turns_before
from kb.answers.models import Conversation, Message
from kb.answers.selectors import suggested_questions
from kb.answers.services.answers import AnswerEvent, AskRequest, stream_answer
from kb.answers.services.conversations import conversation_overview
from kb.answers.services.resuming import answer_stop, text_so_far
from kb.answers.sse import event_stream
from kb.base.errors import NotVisible, Rejected
from kb.content.models import Chunk
from kb.providers.embedding_models import generator
from kb.search.services.search import MAX_QUERY_CHARS
from kb.web.admin.current import current_knowledge_base, remember_knowledge_base
from kb.web.admin.fields import checkboxes
from kb.web.admin.scoped import principal, row_id, row_ids
from kb.web.admin.site import AdminPage, admin_page
from kb.web.api.errors import problem_of
from retrieval.errors import NoChannelAvailable

# What the page keeps of how the reader wants it: whether the list of conversations is closed.
LIST_COOKIE = "ask_list"


class AskForm(forms.Form):
    query = forms.CharField(
        label=gettext_lazy("Question"),
        max_length=MAX_QUERY_CHARS,
        widget=forms.Textarea(
            {"rows": 1, "enterkeyhint": "send", "autocomplete": "off", "placeholder": gettext_lazy("Type a question")}
        ),
    )
    kb = forms.TypedMultipleChoiceField(
        label=gettext_lazy("Knowledge bases"),
        required=False,
        coerce=int,
        widget=checkboxes(),
    )
    conversation = forms.UUIDField(required=False, widget=forms.HiddenInput)

    def __init__(self, bases: Iterable[KnowledgeBase], data: Any = None, initial: Any = None) -> None:
        super().__init__(data, initial=initial)
        cast(forms.ChoiceField, self.fields["kb"]).choices = [(str(kb.pk), kb.name) for kb in bases]

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
    """`kb` and `q` of the address choose knowledge bases and write a question, `conversation` opens one."""

    template_name = "answers/page.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller = principal(self.request)
        bases = asked_bases(caller)
        named = self.request.GET.get("conversation", "")
        conversation = conversation_of(caller, named) if named else None
        chosen = self._chosen(bases, conversation)
        turns, more = turns_before(caller, conversation, bases) if conversation else ([], None)
        initial = {
            "conversation": conversation and conversation.pk,
            "kb": [str(kb.pk) for kb in chosen],
            "query": self.request.GET.get("q", ""),
        }
        return super().get_context_data(
            **kwargs,
            title=_("Ask"),
            bases=bases,
            chosen=chosen,
            conversation=conversation,
            turns=turns,
            more=more,
            conversations=conversation_overview(caller)[:CONVERSATIONS_LISTED],
            is_list_closed=self.request.COOKIES.get(LIST_COOKIE) == "closed",
            form=AskForm(bases.values(), initial=initial),
            lacks_model=self.request.user.is_superuser and generator() is None,
            **({} if conversation else suggestions(chosen)),
        )

    def _chosen(self, bases: Mapping[int, KnowledgeBase], conversation: Conversation | None) -> list[KnowledgeBase]:
        """The knowledge bases of the conversation, of the address, or the one that the user was in last; else one that helps."""
        if conversation is not None:
            return [bases[kb_id] for kb_id in conversation.knowledge_base_ids]
        if asked := [bases[kb_id] for kb_id in row_ids(self.request.GET.getlist("kb")) if kb_id in bases]:
            if len(asked) == 1:
                remember_knowledge_base(self.request, asked[0])
            return asked
        current = current_knowledge_base(self.request)
        if current is not None and current.pk in bases:
            return [bases[current.pk]]
        language = (get_language() or "").partition("-")[0]
        ordered = sorted(bases.values(), key=lambda kb: (not _has_chunks(kb), kb.language != language))
        return ordered[:1]


@admin_page("ask/suggestions/", name="ask_suggestions")
class SuggestionsView(AdminPage):
    """What the empty page offers, once other knowledge bases are chosen."""

    template_name = "answers/suggestions.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        bases = asked_bases(principal(self.request))
        chosen = [bases[kb_id] for kb_id in row_ids(self.request.GET.getlist("kb")) if kb_id in bases]
        return {**kwargs, **suggestions(chosen)}


@admin_page("ask/earlier/", name="ask_earlier")
class EarlierView(AdminPage):
    """The turns of a conversation before those that are on the page."""

    template_name = "answers/turns.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller = principal(self.request)
        conversation = conversation_of(caller, self.request.GET.get("conversation", ""))
        before = row_id(self.request.GET.get("before", ""))
        turns, more = turns_before(caller, conversation, asked_bases(caller), before)
        return {**kwargs, "conversation": conversation, "turns": turns, "more": more}


@admin_page("ask/answer/", name="ask_answer")
class AskStreamView(View):
    """Streams an answer to the page; a question that cannot be asked is an ordinary error with a sentence."""

    http_method_names = ["post"]
    rate_limit_kind = ASK

    def post(self, request: HttpRequest) -> HttpResponseBase:
        caller = principal(request)
        bases = asked_bases(caller)
        form = AskForm(bases.values(), request.POST)
        detail, status = " ".join(str(message) for errors in form.errors.values() for message in errors), 400
        headers: Mapping[str, str] = {}
        try:
            if form.is_valid():
                asked = form.request()
                if len(asked.knowledge_base_ids) == 1:
                    remember_knowledge_base(request, bases[asked.knowledge_base_ids[0]])
                return event_stream(stream_answer(caller, asked), _shown(caller, asked, bases))
        except (NotVisible, Rejected) as error:
            problem = problem_of(error)
            detail, status, headers = problem.detail, problem.status, problem.headers
        except NoChannelAvailable as error:
            detail, status = _("No channel could answer: %(reasons)s") % {"reasons": error}, 503
        return JsonResponse({"detail": detail}, status=status, headers=dict(headers))


@admin_page("ask/answers/<int:answer_id>/", name="ask_resume")
class ResumedAnswerView(AdminPage):
    """An answer of one of the caller's conversations, for a page that has lost its stream; a POST stops it."""

    template_name = "answers/answer.html"

    @cached_property
    def answer(self) -> Message:
        own = Conversation.objects.visible_to(principal(self.request))
        answers = Message.objects.filter(conversation__in=own, role=Message.Role.ASSISTANT, is_replaced=False)
        return get_object_or_404(answers.select_related("conversation"), pk=self.kwargs["answer_id"])

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:  # noqa: ARG002
        if self.answer.status == Message.Status.WRITING:
            answer_stop(self.answer)
        return HttpResponse(status=HTTPStatus.NO_CONTENT)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        caller, answer, conversation = principal(self.request), self.answer, self.answer.conversation
        text = text_so_far(answer) if answer.status == Message.Status.WRITING else ""
        turns, _more = turns_before(caller, conversation, asked_bases(caller), before=answer.pk + 1, most=1)
        if not turns:
            raise Http404
        return {**kwargs, "answer": {**turns[0]["answer"], "so_far": text}}


def asked_bases(caller: Principal) -> dict[int, KnowledgeBase]:
    """The knowledge bases that the caller may ask, by id, with their profiles, `has_chunks` and `may_edit`."""
    has_chunks = Exists(Chunk.objects.filter(knowledge_base=OuterRef("pk")))
    may_edit = Exists(KnowledgeBase.objects.editable_by(caller).filter(pk=OuterRef("pk")))
    rows = KnowledgeBase.objects.visible_to(caller).select_related("profile")
    return {kb.pk: kb for kb in rows.annotate(has_chunks=has_chunks, may_edit=may_edit)}


def suggestions(chosen: Sequence[KnowledgeBase]) -> dict[str, Any]:
    """What the empty page shows of the chosen knowledge bases: questions, and which of them hold nothing yet."""
    return {
        "questions": suggested_questions([kb.pk for kb in chosen]),
        "empty_bases": [kb for kb in chosen if not _has_chunks(kb)],
        "is_chosen": bool(chosen),
    }


def _has_chunks(kb: KnowledgeBase) -> bool:
    return bool(kb.has_chunks)  # type: ignore[attr-defined] # an annotation


def _shown(
    caller: Principal, asked: AskRequest, bases: Mapping[int, KnowledgeBase]
) -> Callable[[AnswerEvent], Mapping[str, Any]]:
    """What the page is sent of an answer's steps, as HTML where there is markup, in the language of the request."""
    language = get_language()

    def found(data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Where no model is to write an answer, the passages are what there is."""
        kept = place(data["conversation_id"] and str(data["conversation_id"]), data["message_id"])
        if not data["hit"] or generator() is not None:
            return {"html": "", **kept}
        answer = {"kind": "passages", "is_listed_only": True, "sources": list(map(source_shown, data["sources"]))}
        return {"html": render_to_string("answers/answer.html", {"answer": answer}), **kept}

    def place(conversation_id: str | None, answer_id: int | None) -> Mapping[str, Any]:
        """The conversation that an answer is kept in, its address, and that of the answer."""
        return {
            "conversation": conversation_id or "",
            "url": f"{reverse('admin:ask')}?conversation={conversation_id}" if conversation_id else "",
            "answer": reverse("admin:ask_resume", args=[answer_id]) if answer_id else "",
        }

    def done(data: Mapping[str, Any]) -> Mapping[str, Any]:
        conversation_id = data["conversation_id"]
        listed = conversation_overview(caller)[:CONVERSATIONS_LISTED]
        kb_ids = next((row.knowledge_base_ids for row in listed if str(row.pk) == conversation_id), None)
        of = [bases[kb_id] for kb_id in kb_ids or asked.knowledge_base_ids if kb_id in bases]
        answer = answer_shown(data, of, asked.query)
        return {
            "html": render_to_string("answers/answer.html", {"answer": answer}),
            "conversations": render_to_string(
                "answers/conversations.html", {"conversations": listed, "current": conversation_id}
            ),
            **place(conversation_id, data["message_id"]),
        }

    def shown(event: AnswerEvent) -> Mapping[str, Any]:
        with override(language):
            return {"sources": found, "done": done}.get(event.name, dict)(event.data)

    return shown
