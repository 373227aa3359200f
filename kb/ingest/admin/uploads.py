"""The upload page: files or pasted text into a knowledge base."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import AlreadyThere, Rejected
from kb.base.files import largest_upload_bytes
from kb.content.models.documents import Document
from kb.ingest.parser.parsed import LEGACY_EXTENSIONS, PROGRAM_EXTENSIONS, SUPPORTED_EXTENSIONS
from kb.ingest.services.documents import document_add, document_add_text
from kb.web.admin.scoped import signed_in
from kb.web.admin.views import IntoKnowledgeBaseForm, IntoKnowledgeBaseView


class FilesInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class FilesField(forms.FileField):
    """Any number of files."""

    widget = FilesInput

    def clean(self, data: Any, initial: Any = None) -> Any:
        return [super(FilesField, self).clean(each, initial) for each in data or []]


class UploadForm(IntoKnowledgeBaseForm):
    knowledge_base = forms.ModelChoiceField(
        KnowledgeBase.objects.none(),
        label=gettext_lazy("Knowledge base"),
        widget=UnfoldAdminSelectWidget,
        empty_label=gettext_lazy("Select value"),
    )
    source_type = forms.ChoiceField(
        label=gettext_lazy("Source type"), choices=Document.SourceType.choices, widget=UnfoldAdminSelectWidget
    )
    uploads = FilesField(
        label=gettext_lazy("Files"),
        required=False,
        allow_empty_file=True,  # ends as failed, with a sentence, and holds up no other file
        widget=FilesInput,
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


class UploadView(IntoKnowledgeBaseView):
    title = gettext_lazy("Upload documents")
    template_name = "ingest/upload.html"
    form_class = UploadForm
    most_form_bytes = staticmethod(largest_upload_bytes)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            opts=self.model_admin.opts,
            has_knowledge_base=self.writable.exists(),
            extensions=" ".join(SUPPORTED_EXTENSIONS),
            programs=" ".join(sorted(PROGRAM_EXTENSIONS)),
            legacy=LEGACY_EXTENSIONS,
            max_megabytes=settings.MAX_UPLOAD_BYTES // 1024**2,
            zip_megabytes=settings.MAX_ZIP_BYTES // 1024**2,
        )

    def form_valid(self, form: UploadForm) -> HttpResponse:
        added = sum(self._add(form.cleaned_data, file) for file in form.cleaned_data["uploads"])
        if form.cleaned_data["text"].strip():
            added += self._add(form.cleaned_data, None)
        if added:
            message = ngettext("Added %(count)d document.", "Added %(count)d documents.", added) % {"count": added}
            promise = _("They become searchable one by one; this page shows how far.")
            messages.success(self.request, f"{message} {promise}")
        kb = form.cleaned_data["knowledge_base"]
        return HttpResponseRedirect(f"{reverse('admin:kb_document_changelist')}?knowledge_base__id__exact={kb.pk}")

    def _add(self, values: dict[str, Any], file: "UploadedFile[Any] | None") -> bool:
        """Adds one file, or the pasted text; False, and a message that says why, where nothing was added."""
        common = {
            "knowledge_base": values["knowledge_base"],
            "user": signed_in(self.request),
            "source_type": values["source_type"],
        }
        try:
            if file is None:
                document_add_text(text=values["text"], title=values["title"].strip(), **common)
            else:
                document_add(file=file, name=file.name or "", **common)
        except AlreadyThere as error:
            self._say_known(values["title"] if file is None else file.name or "", error.document_id)
            return False
        except Rejected as error:
            messages.error(self.request, str(error))
            return False
        return True

    def _say_known(self, name: str, document_id: int) -> None:
        known = Document.objects.get(pk=document_id)
        link = format_html('<a href="{}">{}</a>', reverse("admin:kb_document_change", args=[document_id]), known)
        messages.warning(self.request, format_html(_("“{}” is here already, as {}: nothing was added."), name, link))
