"""The answers that curators give where there was none."""

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _, gettext_lazy
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from kb.access.models import KnowledgeBase
from kb.answers.services.corrections import ANSWER_CHARACTERS, pair_add
from kb.base.text import hash_content
from kb.content.models import Chunk
from kb.ingest.services.chunks import QUESTION_CHARACTERS
from kb.ingest.services.corrections import checked_again, questions_add
from kb.web.admin.scoped import principal, reporting_in, row_id, row_ids
from kb.web.admin.site import AdminPage, admin_page


class QuestionForm(forms.Form):
    """What a passage is to be found by."""

    question = forms.CharField(
        label=gettext_lazy("Question"), max_length=QUESTION_CHARACTERS, widget=UnfoldAdminTextInputWidget
    )


class PairForm(QuestionForm):
    answer = forms.CharField(
        label=gettext_lazy("Answer"), max_length=ANSWER_CHARACTERS, widget=UnfoldAdminTextareaWidget({"rows": 4})
    )
    knowledge_base = forms.TypedChoiceField(
        label=gettext_lazy("Knowledge base"), coerce=int, widget=UnfoldAdminSelectWidget
    )

    def __init__(self, bases: Mapping[int, KnowledgeBase], data: Any, initial: Any, auto_id: str) -> None:
        super().__init__(data, initial=initial, auto_id=auto_id)
        cast(forms.ChoiceField, self.fields["knowledge_base"]).choices = [(pk, kb.name) for pk, kb in bases.items()]
        if len(bases) == 1:
            self.fields["knowledge_base"].widget = forms.HiddenInput()
            self.initial["knowledge_base"] = next(iter(bases))


@admin_page("ask/write/", name="ask_write")
class WriteAnswerView(AdminPage):
    """The answer to a question that found none: a new one, or a passage, named by `chunk`, that is to be found by it.

    `kb` are the knowledge bases that were asked, `q` is the question. A page, or for htmx the form alone.
    """

    template_name = "answers/write.html"

    def get_template_names(self) -> list[str]:
        return ["answers/write_form.html"] if self._is_fragment else super().get_template_names()

    @property
    def _is_fragment(self) -> bool:
        return self.request.headers.get("HX-Request") == "true"

    @cached_property
    def chunk(self) -> Chunk | None:
        if not (named := self.request.GET.get("chunk", "")):
            return None
        rows = Chunk.objects.editable_by(principal(self.request)).select_related("document")
        chunk = rows.filter(pk=row_id(named) or 0).first()
        if chunk is None:
            raise Http404
        return cast(Chunk, chunk)

    @cached_property
    def bases(self) -> dict[int, KnowledgeBase]:
        """Those that were asked, else all, as far as the user may write to them."""
        rows = KnowledgeBase.objects.editable_by(principal(self.request)).select_related("profile", "version_row")
        if asked := row_ids(self.request.GET.getlist("kb")):
            rows = rows.filter(pk__in=asked)
        return {kb.pk: kb for kb in rows}

    def _form(self, data: Any = None) -> QuestionForm:
        initial = {"question": self.request.GET.get("q", "")}
        about = hash_content(f"{self.request.GET.get('chunk')} {initial['question']}")[:8]
        auto_id = f"id_{about}_%s"  # several may be open on a page
        return (
            QuestionForm(data, initial=initial, auto_id=auto_id)
            if self.chunk
            else PairForm(self.bases, data, initial, auto_id)
        )

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        if not self.chunk and not self.bases:
            raise PermissionDenied
        return super().get_context_data(
            **{
                "title": _("Write the answer"),
                "form": self._form(),
                "chunk": self.chunk,
                "action": self.request.get_full_path(),
                "is_fragment": self._is_fragment,
                **kwargs,
            }
        )

    def post(self, request: HttpRequest, *_args: Any, **_kwargs: Any) -> HttpResponse:
        form = self._form(request.POST)
        if not form.is_valid():
            return self.render_to_response(self.get_context_data(form=form))
        question = form.cleaned_data["question"]
        with reporting_in(form):
            return self._done(self._write(form), question)
        return self.render_to_response(self.get_context_data(form=form))

    def _write(self, form: QuestionForm) -> Chunk:
        caller, question = principal(self.request), form.cleaned_data["question"]
        if self.chunk:
            return questions_add(caller, chunk_id=self.chunk.pk, questions=[question])
        kb, answer = self.bases[form.cleaned_data["knowledge_base"]], form.cleaned_data["answer"]
        return pair_add(caller, knowledge_base=kb, question=question, answer=answer)

    def _done(self, chunk: Chunk, question: str) -> HttpResponse:
        checked = checked_again(principal(self.request), chunk, {question, self.request.GET.get("q", "")})
        is_found = all(found for found, _sentence in checked)
        if self._is_fragment:
            url = reverse("admin:kb_chunk_place", args=[chunk.pk])
            context = {"url": url, "question": question, "checked": checked, "is_found": is_found}
            return render(self.request, "answers/written.html", context)
        messages.success(self.request, _("Saved: whoever asks this finds it now.") if is_found else _("Saved."))
        for found, sentence in checked:
            (messages.success if found else messages.warning)(self.request, sentence)
        query = urlencode([("kb", chunk.knowledge_base_id), ("q", question)])
        return HttpResponseRedirect(f"{reverse('admin:ask')}?{query}")
