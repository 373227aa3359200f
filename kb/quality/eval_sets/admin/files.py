"""Evaluation sets as files: the page that takes one in, and the download."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import Rejected
from kb.quality.eval_sets.services.archives import archive_name, eval_set_archive, eval_set_import_archive
from kb.quality.eval_sets.services.queries import NAME_CHARACTERS
from kb.quality.models import EvalSet
from kb.web.admin.scoped import principal
from kb.web.admin.views import IntoKnowledgeBaseForm, IntoKnowledgeBaseView
from retrieval.eval.judged_sets import Layout

FIELDS = {"name_taken": "replace", "name_too_long": "name"}


class ImportForm(IntoKnowledgeBaseForm):
    knowledge_base = forms.ModelChoiceField(
        KnowledgeBase.objects.none(),
        label=gettext_lazy("Knowledge base"),
        widget=UnfoldAdminSelectWidget,
        empty_label=gettext_lazy("Select value"),
        help_text=gettext_lazy("Its documents are judged; they are known by their source."),
    )
    file = forms.FileField(
        label=gettext_lazy("ZIP file"),
        widget=UnfoldAdminFileFieldWidget({"accept": ".zip,application/zip"}),
    )
    name = forms.CharField(
        label=gettext_lazy("Name of the set"),
        required=False,
        max_length=NAME_CHARACTERS,
        widget=UnfoldAdminTextInputWidget,
        help_text=gettext_lazy("Blank: the name in the files."),
    )
    replace = forms.BooleanField(
        label=gettext_lazy("Replace the queries and judgments of a set of this name"),
        required=False,
        widget=UnfoldBooleanSwitchWidget,
    )


class ImportView(IntoKnowledgeBaseView):
    title = gettext_lazy("Import an evaluation set")
    template_name = "quality/eval_sets/import.html"
    form_class = ImportForm

    def get_initial(self) -> dict[str, Any]:
        """The set too that a link names."""
        return super().get_initial() | {"name": self.request.GET.get("name", "")}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, opts=self.model_admin.opts, has_knowledge_base=self.writable.exists())

    def form_valid(self, form: ImportForm) -> HttpResponse:
        given = form.cleaned_data
        try:
            done = eval_set_import_archive(
                principal(self.request),
                given["knowledge_base"],
                given["file"],
                given["name"],
                replace=given["replace"],
            )
        except Rejected as error:
            form.add_error(FIELDS.get(error.code, "file"), str(error))
            return self.form_invalid(form)
        words = _("The set “%(name)s” was imported: queries %(queries)d, judgments %(judgments)d.")
        counts = {"name": done.eval_set.name, "queries": done.queries, "judgments": done.judgments}
        messages.success(self.request, words % counts)
        if done.missing:
            messages.warning(self.request, _missing_in_words(done.missing))
        return HttpResponseRedirect(reverse("admin:kb_evalset_change", args=[done.eval_set.pk]))


def export_view(request: HttpRequest, eval_set: EvalSet) -> FileResponse:
    """The set as a ZIP file, in the layout of `layout`, with the documents where `documents` is given."""
    layout = Layout.TREC if request.GET.get("layout") == Layout.TREC else Layout.BEIR
    archive = eval_set_archive(principal(request), eval_set, layout, with_documents="documents" in request.GET)
    return FileResponse(
        archive,
        as_attachment=True,
        filename=archive_name(eval_set, layout),
        content_type="application/zip",
        headers={"X-Content-Type-Options": "nosniff"},
    )


def _missing_in_words(count: int) -> str:
    words = ngettext(
        "%(count)d judgment is of a document that the knowledge base does not have: it counts once a document of the same "
        "source is uploaded.",
        "%(count)d judgments are of documents that the knowledge base does not have: they count once documents of the same "
        "source are uploaded.",
        count,
    )
    return words % {"count": count}
