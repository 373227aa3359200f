"""Documents in the admin: list, form, progress, and the upload page for files and pasted text."""

from typing import Any, ClassVar, cast

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.utils import display_for_value
from django.contrib.admin.widgets import AutocompleteSelectMultiple
from django.core.files.uploadedfile import UploadedFile
from django.db import models
from django.db.models import QuerySet
from django.forms import ModelMultipleChoiceField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext, ngettext_lazy
from django.views.decorators.http import require_GET
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import AlreadyThere, NotVisible, Rejected
from kb.base.files import largest_upload_bytes
from kb.base.models import count_of
from kb.content.models import Chunk, Document
from kb.ingest.parser import office
from kb.ingest.parser.parsed import (
    MESSAGES,
    OFFICE_FORMATS,
    PROGRAM_EXTENSIONS,
    SUPPORTED_EXTENSIONS,
)
from kb.ingest.services.documents import (
    document_add,
    document_add_text,
    document_delete,
    document_held,
    document_update,
    documents_delete,
    documents_recut,
    documents_requeue,
    error_sentence,
    file_response,
    remark_sentences,
)
from kb.ingest.services.pictures import shown_picture
from kb.web.admin.scoped import (
    IntoKnowledgeBaseForm,
    IntoKnowledgeBaseView,
    ScopedModelAdmin,
    ScopedRelatedFilter,
    column,
    row_ids,
    signed_in,
)

PICTURES_SHOWN = 60
RECHUNKED = ngettext_lazy("%(count)d document is re-chunked.", "%(count)d documents are re-chunked.", "count")


class FilesInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class FilesField(forms.FileField):
    widget = FilesInput

    def clean(self, data: Any, initial: Any = None) -> Any:
        return [super(FilesField, self).clean(each, initial) for each in data or []]


class UploadForm(IntoKnowledgeBaseForm):
    source_type = forms.ChoiceField(
        label=gettext_lazy("Source type"),
        choices=[("", gettext_lazy("by file: video for subtitles, else book")), *Document.SourceType.choices],
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


class UploadView(IntoKnowledgeBaseView):
    title = gettext_lazy("Upload documents")
    template_name = "ingest/upload.html"
    form_class = UploadForm
    most_form_bytes = staticmethod(largest_upload_bytes)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            has_knowledge_base=self.writable.exists(),
            extensions=" ".join(SUPPORTED_EXTENSIONS),
            programs=" ".join(sorted(PROGRAM_EXTENSIONS)),
            unread={
                kind[1:]: _(MESSAGES[error.code]).format(**error.params)
                for kind in OFFICE_FORMATS
                if (error := office.refusal(kind))
            },
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
        return HttpResponseRedirect(documents_url(form.cleaned_data["knowledge_base"]))

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


def documents_url(kb: KnowledgeBase) -> str:
    return f"{reverse('admin:kb_document_changelist')}?knowledge_base__id__exact={kb.pk}"


class ConceptsWidget(AutocompleteSelectMultiple):
    knowledge_base_id: int | None = None

    def get_url(self) -> str:
        return f"{super().get_url()}?knowledge_base={self.knowledge_base_id}"


class DocumentForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        widgets = {"tags": UnfoldAdminTextInputWidget, "metadata": UnfoldAdminTextareaWidget({"rows": 4})}
        help_texts = {
            "tags": gettext_lazy("Separated by commas."),
            "title": gettext_lazy("A new title is searched too: the document is indexed again."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if concepts := cast("ModelMultipleChoiceField[Any] | None", self.fields.get("concepts")):
            kb_id = self.instance.knowledge_base_id
            concepts.queryset = concepts.queryset.filter(knowledge_base=kb_id)  # type: ignore[union-attr]
            concepts.widget.can_add_related = False
            concepts.widget.widget.knowledge_base_id = kb_id


class UploadedAdmin(ScopedModelAdmin):
    """Rows that the page for uploads adds."""

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        query = request.GET.urlencode()
        return HttpResponseRedirect(reverse("admin:kb_document_upload") + (f"?{query}" if query else ""))


@admin.register(Document)
class DocumentAdmin(UploadedAdmin):
    form = DocumentForm
    list_display = ("name", "state", "chunks", "knowledge_base", "type_of_source", "file_size", "created_at")
    linked_lookups = frozenset({"batch__id__exact"})
    unfinished = Document.UNFINISHED
    list_filter = (
        ("knowledge_base", ScopedRelatedFilter),
        ("status", ChoicesDropdownFilter),
        ("source_type", ChoicesDropdownFilter),
    )
    list_select_related = ("knowledge_base",)
    search_fields = ("title", "source")
    search_help_text = gettext_lazy("Search by title or source")
    actions = ("retry_failed", "rechunk", "delete_selected")
    list_after_template = "ingest/document_poll.html"
    change_form_outer_before_template = "ingest/document_panel.html"
    warn_unsaved_form = True
    readonly_fields: ClassVar[Any] = ("knowledge_base", "source", "mime", "file_size", "fingerprint", "added")
    fields = ("title", "knowledge_base", "source_type", "tags", "concepts", "metadata", *readonly_fields[1:])

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:  # noqa: ARG002
        has_concepts = obj is not None and obj.knowledge_base.concepts.exists()
        return tuple(name for name in self.fields if name != "concepts" or has_concepts)

    def formfield_for_manytomany(
        self, db_field: "models.ManyToManyField[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> "ModelMultipleChoiceField[Any] | None":
        kwargs["widget"] = ConceptsWidget(db_field, self.admin_site)
        field: ModelMultipleChoiceField[Any] | None = super().formfield_for_manytomany(db_field, request, **kwargs)
        if field is not None:
            del field.widget.attrs["class"]  # that of a plain list, set by the theme
        return field

    def get_queryset(self, request: HttpRequest) -> QuerySet[Document]:
        return cast(
            "QuerySet[Document]",
            super().get_queryset(request).annotate(chunk_count=count_of(Chunk.objects, "document")),
        )

    # -- Pages of its own ------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("upload/", UploadView.as_view(model_admin=self), "upload"),
            self.page("progress/", require_GET(self.progress_view), "progress"),
            self.row_page("download", self.download_view, "GET"),
            self.row_page("retry", self.retry_view, "POST"),
            *super().get_urls(),
        ]

    def progress_view(self, request: HttpRequest) -> HttpResponse:
        """The cells of documents that were unfinished, for a page that polls; it asks again while one still is."""
        asked = row_ids(request.GET.get("ids", "").split(","))[: self.list_per_page]
        documents = list(self.get_queryset(request).filter(pk__in=asked))
        rows = [{"document": each, "state": state_cell(each, swap=True)} for each in documents]
        context = {"rows": rows, "unfinished_ids": self.unfinished_ids(documents)}
        return render(request, "ingest/document_progress.html", context)

    def download_view(self, request: HttpRequest, document: Document) -> Any:  # noqa: ARG002 - a page of a row
        try:
            return file_response(document)
        except NotVisible as error:
            raise Http404 from error

    def retry_view(self, request: HttpRequest, document: Document) -> HttpResponse:
        if document.status not in Document.UNFINISHED and documents_requeue([document]):
            self.message_user(request, _("The document is processed again."), messages.SUCCESS)
        return redirect("admin:kb_document_change", document.pk)

    def form_context(self, request: HttpRequest, row: Document) -> dict[str, Any]:
        url = str(row.metadata.get("url", ""))
        own = {
            "document": row,
            "state": state_cell(row),
            "unfinished_ids": self.unfinished_ids([row]),
            "may_change": self.has_change_permission(request, row),
            "show_save_and_add_another": False,
            "may_retry": row.status not in Document.UNFINISHED,
            "remarks": remark_sentences(row),
            "picture_count": (count := row.pictures.count() if row.picture_bytes else 0),
            "pictures": [shown_picture(each) for each in row.pictures.all()[:PICTURES_SHOWN]] if count else [],
            # The address that it was read from, where that is one a browser may be led to
            "page_url": url if url.startswith(("http://", "https://")) else "",
        }
        return {**super().form_context(request, row), **own}

    # -- Writes ----------------------------------------------------------------------------------------------------------
    def save_model(self, request: HttpRequest, obj: Document, form: Any, change: Any) -> None:  # noqa: ARG002
        """Hands the service only what was edited: a worker may be writing the rest."""
        edited = [name for name in form.changed_data if name != "concepts"]  # those are saved after it, by Django
        with document_held(obj) as stored:
            document_update(stored, **{name: form.cleaned_data[name] for name in edited})
        if "title" in form.changed_data and stored.status == Document.Status.PENDING:
            self.message_user(request, _("The title has changed, so the document is indexed again."), messages.INFO)

    def delete_model(self, request: HttpRequest, obj: Document) -> None:  # noqa: ARG002 - Django's interface
        document_delete(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Document]) -> None:  # noqa: ARG002 - Django's interface
        documents_delete(queryset)

    @admin.action(description=gettext_lazy("Retry the failed ones"), permissions=["change"])
    def retry_failed(self, request: HttpRequest, queryset: QuerySet[Document]) -> None:
        editable = self.only_granted(request, queryset, "editable_by")
        message = ngettext_lazy("%(count)d document is tried again.", "%(count)d documents are tried again.", "count")
        self.report(request, message, documents_requeue(list(editable.filter(status=Document.Status.FAILED))))

    @admin.action(description=gettext_lazy("Re-chunk from the stored files"), permissions=["change"])
    def rechunk(self, request: HttpRequest, queryset: QuerySet[Document]) -> None:
        self.report(request, RECHUNKED, documents_recut(self.only_granted(request, queryset, "editable_by")))

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("title"), ordering="title")
    def name(self, document: Document) -> str:
        return format_html('<span id="document-{}-name" class="kb-name">{}</span>', document.pk, document)

    @column(gettext_lazy("status"), ordering="status")
    def state(self, document: Document) -> SafeString:
        return state_cell(document)

    @column(gettext_lazy("chunks"), ordering="chunk_count")
    def chunks(self, document: Any) -> str:
        url = f"{reverse('admin:kb_chunk_changelist')}?document__id__exact={document.pk}"
        return format_html(
            '<a href="{}" id="document-{}-chunks" class="kb-link">{}</a>', url, document.pk, document.chunk_count
        )

    @column(gettext_lazy("source type"), ordering="source_type")
    def type_of_source(self, document: Document) -> str:
        return document.get_source_type_display()

    @column(gettext_lazy("size"), ordering="size")
    def file_size(self, document: Document) -> str:
        return filesizeformat(document.size)

    @column("SHA-256")
    def fingerprint(self, document: Document) -> str:
        return format_html('<code class="kb-mono">{}</code>', document.sha256)

    @column(gettext_lazy("added"))
    def added(self, document: Document) -> str:
        when = display_for_value(document.created_at, "-")
        return f"{when} · {document.created_by}" if document.created_by else when


def state_cell(document: Document, *, swap: bool = False) -> SafeString:
    """Status, progress and error of a document; `swap` makes HTMX put it in the place of the one on the page."""
    context = {"document": document, "error": error_sentence(document), "swap": swap}
    return render_to_string("ingest/document_state.html", context)
