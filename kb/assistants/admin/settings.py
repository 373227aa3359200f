"""How an assistant answers: the form of its settings, and a preview that answers by what the form says now."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.utils.functional import cached_property
from django.utils.translation import get_language, gettext as _, override

from kb.access.models import KnowledgeBase
from kb.access.services.rate_limits import ASK
from kb.answers.admin.ask import asked_bases
from kb.answers.admin.turns import answer_shown
from kb.answers.selectors import suggested_questions
from kb.answers.services.answers import AnswerEvent
from kb.answers.sse import event_stream
from kb.assistants.admin.forms import SettingsForm
from kb.assistants.admin.frame import AssistantPage, changes_shown, editable_bases, page_url
from kb.assistants.models import Assistant
from kb.assistants.services.asking import Asked, stream_preview
from kb.assistants.services.assistants import (
    assistant_update,
    draft_of,
    picture_made_of,
    version_create,
    version_publish,
)
from kb.assistants.settings import AssistantSettings
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.search.models import Speaker
from kb.web.admin.scoped import principal, reporting_in
from kb.web.admin.site import admin_page
from retrieval.errors import NoChannelAvailable
from retrieval.types import Turn

QUESTION_CHARACTERS = 2_000
# Of the turns that a preview sends along.
MOST_TURNS = 10


class SettingsPage(AssistantPage):
    @cached_property
    def bases(self) -> list[KnowledgeBase]:
        return editable_bases(self.request)

    @cached_property
    def draft(self) -> AssistantSettings:
        return AssistantSettings.of(draft_of(self.assistant).settings)

    def form(self, data: Any = None, files: Any = None) -> SettingsForm:
        return SettingsForm(principal(self.request), self.assistant, self.draft, self.bases, data, files)


@admin_page("assistants/<int:pk>/", name="kb_assistant_change")
class SettingsView(SettingsPage):
    template_name = "assistants/admin/settings.html"
    tab = "change"

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        form = self.form(request.POST, request.FILES)
        if form.is_valid():
            with reporting_in(form):
                return self._save(form, is_published="publish" in request.POST)
        return self.render_to_response(self.get_context_data(form=form), status=400)

    def _save(self, form: SettingsForm, *, is_published: bool) -> HttpResponse:
        caller, values = principal(self.request), form.cleaned_data
        live = {"name": values["name"]}
        if values["picture"]:
            live["picture"] = picture_made_of(values["picture"].read())
        elif values["no_picture"]:
            live["picture"] = b""
        assistant = Assistant.objects.get(pk=self.assistant.pk)
        assistant_update(caller, assistant, knowledge_base_ids=values["knowledge_bases"], **live)
        version = version_create(caller, assistant, form.settings)
        if is_published:
            version_publish(caller, version)
            message = _("Published: visitors are answered by version %(number)d.")
        elif version.pk == assistant.published_id:
            message = _("Saved.")
        else:
            message = _("Saved as version %(number)d, a draft: visitors do not get it before it is published.")
        messages.success(self.request, message % {"number": version.number})
        return HttpResponseRedirect(page_url(assistant))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        published = self.assistant.published
        changes = changes_shown(AssistantSettings.of(published.settings), self.draft) if published else []
        kb_ids = [kb.pk for kb in self.assistant.knowledge_bases.all()]
        return super().get_context_data(
            **{"form": self.form(), **kwargs},
            changes=changes,
            questions=suggested_questions(kb_ids),
            most_question=QUESTION_CHARACTERS,
        )


@admin_page("assistants/<int:pk>/picture/", name="kb_assistant_picture")
class PictureView(AssistantPage):
    def get(self, request: HttpRequest, *_args: Any, **_kwargs: Any) -> HttpResponse:  # noqa: ARG002
        rows = Assistant.objects.editable_by(principal(self.request)).only("picture")
        assistant = get_object_or_404(rows, pk=self.kwargs["pk"])
        if not assistant.picture:
            raise Http404
        return HttpResponse(
            bytes(assistant.picture), content_type="image/png", headers={"Cache-Control": "private, no-cache"}
        )


@admin_page("assistants/<int:pk>/preview/", name="kb_assistant_preview")
class PreviewView(SettingsPage):
    """Streams an answer under the settings of the form that is sent; nothing is saved, kept or counted."""

    http_method_names = ["post"]
    rate_limit_kind = ASK

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponseBase:
        form = self.form(request.POST)
        status = 400
        try:
            if form.is_valid():
                return self._answer(form, request.POST)
            detail = " ".join(
                f"{form[name].label if name in form.fields else ''}: {' '.join(map(str, errors))}"
                for name, errors in form.errors.items()
            )
        except (NotVisible, NotAllowed, Rejected) as error:
            detail = str(error)
        except NoChannelAvailable as error:
            detail, status = _("No channel could answer: %(reasons)s") % {"reasons": error}, 503
        return JsonResponse({"detail": detail}, status=status)

    def _answer(self, form: SettingsForm, given: Mapping[str, str]) -> HttpResponseBase:
        question = given.get("question", "").strip()
        if not 0 < len(question) <= QUESTION_CHARACTERS:
            raise Rejected("question", _("Type a question of at most %(most)d characters."), most=QUESTION_CHARACTERS)
        caller, kb_ids = principal(self.request), form.cleaned_data["knowledge_bases"]
        events = stream_preview(
            caller,
            self.assistant,
            form.settings,
            Asked(question=question, history=turns_of(given.get("history", ""))),
            knowledge_base_ids=kb_ids,
        )
        bases = asked_bases(caller)
        asked = [bases[kb_id] for kb_id in kb_ids if kb_id in bases]
        return event_stream(events, _shown(asked, question, form.settings))


def turns_of(written: str) -> list[Turn]:
    """The last turns of a conversation that the page holds: a list of {role, text} as JSON; what is none is left out."""
    try:
        given = json.loads(written or "[]")
    except ValueError:
        return []
    roles = {each.value: each for each in (Speaker.USER, Speaker.ASSISTANT)}
    return [
        Turn(roles[each["role"]].value, each["text"])
        for each in (given if isinstance(given, list) else [])[-MOST_TURNS:]
        if isinstance(each, dict) and each.get("role") in roles and isinstance(each.get("text"), str)
    ]


def _shown(
    bases: list[KnowledgeBase], question: str, settings: AssistantSettings
) -> Callable[[AnswerEvent], Mapping[str, Any]]:
    language = get_language()

    def shown(event: AnswerEvent) -> Mapping[str, Any]:
        if event.name == "delta":
            return event.data
        if event.name != "done":
            return {}
        with override(language):
            answer = answer_shown(event.data, bases, question)
            context = {"answer": answer, "settings": settings}
            return {"html": render_to_string("assistants/admin/answer.html", context), "text": event.data["answer"]}

    return shown
