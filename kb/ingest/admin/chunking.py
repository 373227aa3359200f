"""How a knowledge base cuts its documents: the settings with a preview, and re-chunking."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _, gettext_lazy
from django.views.generic import FormView
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.content.hub import documents_page
from kb.content.models import Chunk, Document
from kb.content.services import knowledge_base_update
from kb.ingest.admin.documents import RECHUNKED
from kb.ingest.services.chunk_preview import CHUNKING, MOST_CHARACTERS, preview_document, preview_text
from kb.ingest.services.documents import cuttable, documents_recut
from kb.ingest.services.indexing import outdated_documents
from kb.web.admin.navigation import add_hub_tab
from kb.web.admin.scoped import KnowledgeBasePage, principal, reporting_in, row_id

MOST_OFFERED = 50  # The newest documents; any other is chosen by its id in the address


class ChunkPreviewForm(forms.ModelForm):  # type: ignore[type-arg]
    document = forms.ChoiceField(label=gettext_lazy("Document to try"), required=False, widget=UnfoldAdminSelectWidget)
    text = forms.CharField(
        label=gettext_lazy("Or a text to try"),
        required=False,
        max_length=MOST_CHARACTERS,
        help_text=gettext_lazy("Where there is one, it is tried and not the document."),
        widget=UnfoldAdminTextareaWidget({"rows": 4, "class": "kb-sample"}),
    )

    class Meta:
        model = KnowledgeBase
        fields = CHUNKING
        widgets = {
            "chunk_strategy": UnfoldAdminSelectWidget,
            "chunk_unit": UnfoldAdminSelectWidget,
            **dict.fromkeys(("chunk_size", "chunk_overlap", "parent_size"), UnfoldAdminIntegerFieldWidget),
        }

    def __init__(self, *args: Any, documents: list[Document], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.documents = {str(document.pk): document for document in documents}
        choices = [(pk, str(document) or _("untitled")) for pk, document in self.documents.items()]
        self.fields["document"].choices = choices or [("", _("no document yet"))]  # type: ignore[attr-defined]

    @property
    def chunking(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in CHUNKING}


class ChunkPreviewView(KnowledgeBasePage, FormView):  # type: ignore[type-arg]
    template_name = "ingest/chunk_preview/page.html"
    form_class = ChunkPreviewForm

    title = gettext_lazy("Chunking")

    def get_form_kwargs(self) -> dict[str, Any]:
        rows = cuttable(Document.objects.filter(knowledge_base=self.kb)).order_by("-pk")
        asked = row_id(self.request.POST.get("document") or self.request.GET.get("document", ""))
        named = [] if asked is None else rows.filter(pk=asked)
        documents = list({document.pk: document for document in [*named, *rows[:MOST_OFFERED]]}.values())
        # The form writes what was sent into its object: the page goes on with the saved one.
        instance = KnowledgeBase.objects.get(pk=self.kb.pk)
        return {**super().get_form_kwargs(), "instance": instance, "documents": documents}

    def get_initial(self) -> dict[str, Any]:
        return {"document": self.request.GET.get("document", "")}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(**kwargs, outdated=outdated_documents(self.kb).count())

    def form_valid(self, form: ChunkPreviewForm) -> HttpResponse:
        if self.request.POST.get("action") == "save":
            return self._save(form)
        text, document = form.cleaned_data["text"], form.documents.get(form.cleaned_data["document"])
        with reporting_in(form, None, Rejected):
            if text.strip() or document is None:
                preview = preview_text(self.kb, text, form.chunking)
            else:
                preview = preview_document(self.kb, document, form.chunking)
            return self.render_to_response(self.get_context_data(form=form, preview=preview))
        return self.form_invalid(form)

    def _save(self, form: ChunkPreviewForm) -> HttpResponse:
        if not self.may_edit:
            raise PermissionDenied
        knowledge_base_update(self.kb, by=principal(self.request), **form.chunking)
        messages.success(
            self.request,
            _("The settings were saved. Documents that are there keep their chunks until they are re-chunked."),
        )
        return redirect("admin:kb_knowledgebase_chunk_preview", self.kb.pk)


def recut_view(request: HttpRequest, kb: KnowledgeBase) -> HttpResponse:
    """Asks, and then puts all documents into the queue, or only those that were cut under other settings."""
    documents, outdated = Document.objects.filter(knowledge_base=kb), outdated_documents(kb)
    if request.method == "POST":
        count = documents_recut(outdated if request.POST.get("which") == "outdated" else documents)
        messages.success(request, RECHUNKED % {"count": count})
        return HttpResponseRedirect(documents_page(kb.pk))
    chunks = Chunk.objects.filter(knowledge_base=kb)
    context = {
        **admin.site.each_context(request),
        "kb": kb,
        "title": _("Re-chunk"),
        "documents": cuttable(documents).count(),
        "outdated": outdated.count(),
        "edited": chunks.exclude(cut_text="").count(),
        "disabled": chunks.filter(enabled=False).count(),
    }
    return render(request, "ingest/chunk_preview/recut.html", context)


add_hub_tab("chunk_preview", gettext_lazy("Chunking"), order=20, under="settings", covers=("kb_knowledgebase_recut",))
