"""How a knowledge base cuts its documents: a preview of settings before they are saved, and cutting all of them anew."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.generic import FormView
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.content.models import Chunk, Document
from kb.content.services import knowledge_base_update
from kb.ingest.services.chunk_preview import CHUNKING, MOST_CHARACTERS, Preview, preview_document, preview_text
from kb.ingest.services.documents import cut_otherwise, cuttable, documents_recut
from kb.ingest.services.indexing import chunk_settings
from kb.web.admin.scoped import principal
from kb.web.admin.views import KnowledgeBasePage

MOST_OFFERED = 50
"""The newest documents; any other is chosen by its id in the address."""


class ChunkPreviewForm(forms.ModelForm):  # type: ignore[type-arg]
    """Settings, and what to try them on."""

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

    @property
    def title(self) -> str:
        return _("Chunks of “%(name)s”: preview") % {"name": self.kb.name}

    def get_form_kwargs(self) -> dict[str, Any]:
        # The form writes what was sent into its object: the page goes on with the saved one.
        instance = KnowledgeBase.objects.get(pk=self.kb.pk)
        return {**super().get_form_kwargs(), "instance": instance, "documents": self._documents()}

    def get_initial(self) -> dict[str, Any]:
        return {"document": self.request.GET.get("document", "")}

    def _documents(self) -> list[Document]:
        rows = cuttable(Document.objects.filter(knowledge_base=self.kb)).order_by("-pk")
        asked = self.request.POST.get("document") or self.request.GET.get("document", "")
        named = list(rows.filter(pk=asked)) if asked.isascii() and asked.isdecimal() and len(asked) < 19 else []
        return list({document.pk: document for document in [*named, *rows[:MOST_OFFERED]]}.values())

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            opts=self.model_admin.opts,
            original=self.kb,
            kb=self.kb,
            may_edit=self.may_edit,
            outdated=outdated_count(self.kb),
            recut_url=recut_url(self.kb),
        )

    def form_valid(self, form: ChunkPreviewForm) -> HttpResponse:
        if self.request.POST.get("action") == "save":
            return self._save(form)
        try:
            preview = self._preview(form)
        except Rejected as error:
            form.add_error(None, str(error))
            return self.form_invalid(form)
        return self.render_to_response(self.get_context_data(form=form, preview=preview))

    def _preview(self, form: ChunkPreviewForm) -> Preview:
        text, document = form.cleaned_data["text"], form.documents.get(form.cleaned_data["document"])
        if text.strip() or document is None:
            return preview_text(self.kb, text, form.chunking)
        return preview_document(self.kb, document, form.chunking)

    def _save(self, form: ChunkPreviewForm) -> HttpResponse:
        if not self.may_edit:
            raise PermissionDenied
        knowledge_base_update(self.kb, by=principal(self.request), **form.chunking)
        messages.success(
            self.request,
            _("The settings were saved. Documents that are there keep their chunks until they are cut anew."),
        )
        return HttpResponseRedirect(chunk_preview_url(self.kb))


def chunk_preview_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_chunk_preview", args=[kb.pk])


def recut_url(kb: KnowledgeBase) -> str:
    return reverse("admin:kb_knowledgebase_recut", args=[kb.pk])


def outdated_count(kb: KnowledgeBase) -> int:
    """How many documents were cut under other settings than the present ones."""
    return cut_otherwise(Document.objects.filter(knowledge_base=kb), _fingerprint(kb)).count()


def recut_view(request: HttpRequest, kb: KnowledgeBase, site: dict[str, Any]) -> HttpResponse:
    """Asks, and then puts all documents into the queue, or only those that were cut under other settings."""
    documents = Document.objects.filter(knowledge_base=kb)
    outdated = cut_otherwise(documents, _fingerprint(kb))
    if request.method == "POST":
        count = documents_recut(outdated if request.POST.get("which") == "outdated" else documents)
        words = ngettext("%(count)d document is cut anew.", "%(count)d documents are cut anew.", count)
        messages.success(request, words % {"count": count})
        return HttpResponseRedirect(f"{reverse('admin:kb_document_changelist')}?knowledge_base__id__exact={kb.pk}")
    chunks = Chunk.objects.filter(knowledge_base=kb)
    context = {
        **site,
        "kb": kb,
        "title": _("Cut the documents of “%(name)s” anew") % {"name": kb.name},
        "documents": cuttable(documents).count(),
        "outdated": outdated.count(),
        "edited": chunks.exclude(cut_text="").count(),
        "disabled": chunks.filter(enabled=False).count(),
        "back_url": reverse("admin:kb_knowledgebase_change", args=[kb.pk]),
        "preview_url": chunk_preview_url(kb),
    }
    return render(request, "ingest/chunk_preview/recut.html", context)


def _fingerprint(kb: KnowledgeBase) -> str:
    return chunk_settings(kb).fingerprint(kb.embedding_model)
