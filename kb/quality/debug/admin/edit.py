"""Correcting a passage where a search shows it: its text, or a question that it answers, as a form inside of the result."""

from typing import ClassVar

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _, gettext_lazy
from django.views.generic import View
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from kb.access.models import Principal
from kb.base.errors import found_in, not_editable
from kb.content.models import Chunk
from kb.ingest.services.chunks import QUESTION_CHARACTERS, TEXT_CHARACTERS
from kb.ingest.services.corrections import checked_again, questions_add, text_change
from kb.web.admin.scoped import principal, reporting_in
from kb.web.admin.site import admin_page


class TextForm(forms.Form):
    value = forms.CharField(
        label=gettext_lazy("Text of the passage"),
        max_length=TEXT_CHARACTERS,
        strip=False,
        widget=UnfoldAdminTextareaWidget({"rows": 8}),
    )
    hash = forms.CharField(required=False, widget=forms.HiddenInput)  # of the text that was shown

    def save(self, caller: Principal, chunk_id: int) -> str:
        text, shown = self.cleaned_data["value"], self.cleaned_data["hash"]
        text_change(caller, chunk_id=chunk_id, text=text, shown=shown)
        return _("The passage was saved, and this search ran again.")


class QuestionForm(forms.Form):
    value = forms.CharField(
        label=gettext_lazy("A question that this passage answers"),
        max_length=QUESTION_CHARACTERS,
        widget=UnfoldAdminTextInputWidget({"autocomplete": "off"}),
    )

    def save(self, caller: Principal, chunk_id: int) -> str:
        questions = [self.cleaned_data["value"]]
        checked = checked_again(caller, questions_add(caller, chunk_id=chunk_id, questions=questions), questions)
        return " ".join([_("The question was added, and this search ran again."), *(each for _found, each in checked)])


class PassageView(View):
    """A form as a fragment; once it has saved, the page is loaded again, and so is the search."""

    http_method_names = ["get", "post"]
    form_class: ClassVar[type[TextForm | QuestionForm]]

    def get(self, request: HttpRequest, chunk_id: int) -> HttpResponse:
        chunk = _editable(request, chunk_id)
        return self._show(
            chunk, self.form_class(initial={"value": self.value_before(chunk), "hash": chunk.content_hash})
        )

    def post(self, request: HttpRequest, chunk_id: int) -> HttpResponse:
        chunk = _editable(request, chunk_id)
        form = self.form_class(request.POST)
        if form.is_valid():
            with reporting_in(form, "value"):
                messages.success(request, form.save(principal(request), chunk.pk))
                return HttpResponse(headers={"HX-Refresh": "true"})
        return self._show(chunk, form)

    def value_before(self, chunk: Chunk) -> str:
        raise NotImplementedError

    def _show(self, chunk: Chunk, form: forms.Form) -> HttpResponse:
        return render(self.request, "quality/debug/edit.html", {"chunk": chunk, "field": form["value"]})


@admin_page("search-debug/chunks/<int:chunk_id>/text/", name="search_debug_text")
class PassageTextView(PassageView):
    form_class = TextForm

    def value_before(self, chunk: Chunk) -> str:
        return chunk.text


@admin_page("search-debug/chunks/<int:chunk_id>/question/", name="search_debug_question")
class PassageQuestionView(PassageView):
    """Proposes the query that `q` names."""

    form_class = QuestionForm

    def value_before(self, chunk: Chunk) -> str:  # noqa: ARG002
        return self.request.GET.get("q", "")


def _editable(request: HttpRequest, chunk_id: int) -> Chunk:
    """With its document and knowledge base; raises NotVisible, and NotAllowed for who may only read it."""
    caller = principal(request)
    rows = Chunk.objects.visible_to(caller).select_related("document", "knowledge_base")
    chunk: Chunk = found_in(rows.filter(pk=chunk_id), _("This passage is no longer there: search again."))
    if not Chunk.objects.editable_by(caller).filter(pk=chunk.pk).exists():
        raise not_editable()
    return chunk
