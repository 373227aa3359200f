"""Uploads in the admin: the page for files and pasted text, what its script is told, and how far an upload is."""

from pathlib import PurePath
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import AlreadyThere, Rejected
from kb.base.files import largest_upload_bytes
from kb.content.hub import documents_page
from kb.content.models import Document, IngestBatch
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS
from kb.ingest.services.batches import batch_progress, is_moving, shown_note
from kb.ingest.services.documents import document_add, document_add_text, error_sentence
from kb.ingest.services.file_kinds import kinds_for_browser
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.scoped import IntoKnowledgeBaseForm, IntoKnowledgeBaseView, signed_in

SHOWN_FAILURES = 10


class FilesInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class FilesField(forms.FileField):
    widget = FilesInput

    def clean(self, data: Any, initial: Any = None) -> Any:
        return [super(FilesField, self).clean(each, initial) for each in data or []]


class UploadForm(IntoKnowledgeBaseForm):
    source_type = forms.ChoiceField(
        label=gettext_lazy("Source type"),
        choices=[("", gettext_lazy("by file: video for subtitles, else document")), *Document.SourceType.choices],
        required=False,
        widget=UnfoldAdminSelectWidget,
    )
    uploads = FilesField(
        label=gettext_lazy("Files"),
        required=False,
        allow_empty_file=True,  # ends as failed, with a sentence, and holds up no other file
    )
    title = forms.CharField(
        label=gettext_lazy("Title"), required=False, max_length=500, widget=UnfoldAdminTextInputWidget
    )
    text = forms.CharField(
        label=gettext_lazy("Text"), required=False, strip=False, widget=UnfoldAdminTextareaWidget(attrs={"rows": 8})
    )

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        has_text = bool(values.get("text", "").strip())
        if not self.errors and not values.get("uploads") and not has_text:
            raise forms.ValidationError(_("Choose at least one file, or paste some text."))
        if has_text and not values.get("title", "").strip():
            self.add_error("title", _("A pasted text needs a title: search results show it."))
        return values


def upload_rules() -> dict[str, Any]:
    """What a page that takes files says of them, and what its script refuses before it sends them."""
    return {
        "extensions": " ".join(SUPPORTED_EXTENSIONS),
        "file_kinds": kinds_for_browser(),
        "max_megabytes": settings.MAX_UPLOAD_BYTES // 1024**2,
        "zip_megabytes": settings.MAX_ZIP_BYTES // 1024**2,
    }


class UploadView(IntoKnowledgeBaseView):
    title = gettext_lazy("Upload documents")
    template_name = "ingest/upload.html"
    form_class = UploadForm
    most_form_bytes = staticmethod(largest_upload_bytes)

    def get_initial(self) -> dict[str, Any]:
        """The knowledge base that the user is in, where no link names another."""
        initial, current = super().get_initial(), current_knowledge_base(self.request)
        if not initial and current is not None and self.writable.filter(pk=current.pk).exists():
            return {"knowledge_base": current.pk}
        return initial

    @cached_property
    def kb(self) -> KnowledgeBase | None:
        """The knowledge base whose page it is."""
        chosen: Any = self.get_initial().get("knowledge_base")
        found: KnowledgeBase | None = self.writable.filter(pk=chosen).select_related("owner").first()
        return found

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        has_knowledge_base = self.kb is not None or self.writable.exists()
        return super().get_context_data(**kwargs, kb=self.kb, has_knowledge_base=has_knowledge_base, **upload_rules())

    def form_valid(self, form: UploadForm) -> HttpResponse:
        added = sum(self._add(form.cleaned_data, file) for file in form.cleaned_data["uploads"])
        if form.cleaned_data["text"].strip():
            added += self._add(form.cleaned_data, None)
        if added:
            message = ngettext("Added %(count)d document.", "Added %(count)d documents.", added) % {"count": added}
            promise = _("They become searchable one by one; this page shows how far.")
            messages.success(self.request, f"{message} {promise}")
        return HttpResponseRedirect(documents_page(form.cleaned_data["knowledge_base"].pk))

    def _add(self, values: dict[str, Any], file: "UploadedFile[Any] | None") -> bool:
        """Adds one file, or the pasted text; False, and a message that says why, where nothing was added."""
        common = {name: values[name] for name in ("knowledge_base", "source_type")}
        name = values["title"].strip() if file is None else file.name or ""
        try:
            if file is None:
                document_add_text(text=values["text"], title=name, user=signed_in(self.request), **common)
            else:
                document_add(file=file, name=name, user=signed_in(self.request), **common)
        except AlreadyThere as error:
            known = Document.objects.get(pk=error.document_id)
            link = format_html('<a href="{}">{}</a>', reverse("admin:kb_document_change", args=[known.pk]), known)
            messages.warning(
                self.request, format_html(_("“{}” is here already, as {}: nothing was added."), name, link)
            )
        except Rejected as error:
            messages.error(self.request, str(error))
        else:
            return True
        return False


# -- How far an upload is --------------------------------------------------------------------------------------------------
def shown_upload(kb: KnowledgeBase, asked: int | None) -> IngestBatch | None:
    """The upload that a link names, else the newest one with documents that are not done."""
    uploads = IngestBatch.objects.filter(knowledge_base=kb)
    if asked is not None:
        return uploads.filter(pk=asked).first()
    unfinished = Document.objects.filter(knowledge_base=kb, status__in=Document.UNFINISHED, batch__isnull=False)
    return uploads.filter(pk__in=unfinished.order_by().values("batch")).order_by("-pk").first()


def upload_context(batch: IngestBatch, *, may_change: bool) -> dict[str, Any]:
    """What the bar above the documents says of an upload: how far it is, then what failed."""
    progress = batch_progress(batch)
    moving = is_moving(batch, progress)
    failures = Document.objects.filter(batch=batch, status=Document.Status.FAILED).order_by("pk")
    shown = [] if moving or not progress.counts[Document.Status.FAILED] else list(failures[:SHOWN_FAILURES])
    return {
        "batch": batch,
        "progress": progress,
        "is_moving": moving,
        "time_left": time_text(progress.seconds_left),
        "failures": [{"document": each, "name": name_of(each), "error": error_sentence(each)} for each in shown],
        "more_failures": max(0, progress.counts[Document.Status.FAILED] - SHOWN_FAILURES) if shown else 0,
        "notes": [] if moving else [shown_note(each) for each in batch.notes[:SHOWN_FAILURES]],
        "may_change": may_change,
    }


def name_of(document: Document) -> str:
    """The name of its file, since many of one upload may have the same title."""
    return document.metadata.get("path") or document.source or str(document)


def title_beside(document: Document, name: str) -> str:
    """The title of a document where it says more than the name of its file."""
    title = str(document)
    return "" if title in {name, PurePath(name).stem, PurePath(name).name} else title


def time_text(seconds: int | None) -> str:
    if seconds is None:
        return ""
    if seconds < 90:
        return ngettext("%(count)d second left", "%(count)d seconds left", seconds) % {"count": seconds}
    minutes = round(seconds / 60)
    if minutes < 90:
        return ngettext("%(count)d minute left", "%(count)d minutes left", minutes) % {"count": minutes}
    hours = round(minutes / 60)
    return ngettext("%(count)d hour left", "%(count)d hours left", hours) % {"count": hours}
