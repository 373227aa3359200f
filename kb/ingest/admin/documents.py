"""Documents in the admin: form, progress, download, and what is done with several of them."""

from collections.abc import Iterator
from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import display_for_value
from django.contrib.admin.widgets import AutocompleteSelectMultiple
from django.core.files.uploadedfile import UploadedFile
from django.db import models
from django.db.models import Count, Exists, OuterRef, QuerySet
from django.forms import ModelMultipleChoiceField
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.template.defaultfilters import filesizeformat
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy, ngettext, ngettext_lazy
from django.views.decorators.http import require_GET
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected, ServiceError
from kb.base.text import validate_metadata, web_address
from kb.content.folders.services import Tree, folder_in
from kb.content.hub import failed_documents_page
from kb.content.models import Document, Folder
from kb.ingest.admin.chunk_cards import cards_context
from kb.ingest.admin.document_list import DocumentListAdmin, actions_cell, state_cell
from kb.ingest.admin.folders import FolderChoice, move_page
from kb.ingest.admin.uploads import UploadView, upload_rules
from kb.ingest.services.documents import (
    document_delete,
    document_held,
    document_replace_file,
    document_update,
    documents_delete,
    documents_recut,
    documents_requeue,
    error_sentence,
    file_response,
    remark_sentences,
)
from kb.ingest.services.pictures import shown_picture
from kb.web.admin.parts import Task, add_tasks
from kb.web.admin.scoped import back_from, column, principal, row_id, row_ids
from kb.web.admin.site import brings_files

PICTURES_SHOWN = 60
RECHUNKED = ngettext_lazy("%(count)d document is re-chunked.", "%(count)d documents are re-chunked.", "count")


class ConceptsWidget(AutocompleteSelectMultiple):
    knowledge_base_id: int | None = None

    def get_url(self) -> str:
        return f"{super().get_url()}?knowledge_base={self.knowledge_base_id}"


class MetadataField(forms.JSONField):
    """A JSON object; blank where it is empty."""

    widget = UnfoldAdminTextareaWidget({"rows": 4})

    def prepare_value(self, value: Any) -> Any:
        return "" if value == {} else super().prepare_value(value)

    def to_python(self, value: Any) -> Any:
        found = super().to_python(value)
        return {} if found is None else found


class DocumentForm(forms.ModelForm):  # type: ignore[type-arg]
    metadata = MetadataField(
        label=gettext_lazy("Metadata"),
        required=False,
        validators=[validate_metadata],
        help_text=gettext_lazy('Fields of your own, which results show and filters ask for, as {"department": "HR"}.'),
    )

    folder = FolderChoice(label=gettext_lazy("Folder"))

    class Meta:
        widgets = {"tags": UnfoldAdminTextInputWidget}
        help_texts = {
            "tags": gettext_lazy("Separated by commas."),
            "title": gettext_lazy("A new title is searched too: the document is indexed again."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        kb_id = self.instance.knowledge_base_id
        cast(FolderChoice, self.fields["folder"]).offer(Tree(kb_id), kb_id)
        if concepts := cast("ModelMultipleChoiceField[Any] | None", self.fields.get("concepts")):
            concepts.queryset = concepts.queryset.filter(knowledge_base=kb_id)  # type: ignore[union-attr]
            concepts.widget.widget.knowledge_base_id = kb_id

    def clean_folder(self) -> Folder | None:
        return folder_in(self.instance.knowledge_base, self.cleaned_data["folder"])


@admin.register(Document)
class DocumentAdmin(DocumentListAdmin):
    form = DocumentForm
    actions = ("retry_failed", "rechunk", "move_to_folder", "delete_selected")
    change_form_template = "ingest/document/page.html"
    warn_unsaved_form = True
    readonly_fields: ClassVar[Any] = ("knowledge_base", "source", "mime", "file_size", "fingerprint", "added")
    fields = ("title", "folder", "knowledge_base", "source_type", "tags", "concepts", "metadata", *readonly_fields[1:])

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:  # noqa: ARG002
        has = dict.fromkeys(("concepts", "folder"), False)
        if obj is not None:
            of_kb = {"knowledge_base": OuterRef("pk")}
            rows = KnowledgeBase.objects.filter(pk=obj.knowledge_base_id).order_by()
            models_of: tuple[Any, ...] = (Document._meta.get_field("concepts").related_model, Folder)
            held = rows.values_list(*(Exists(model.objects.filter(**of_kb)) for model in models_of)).get()
            has = dict(zip(has, held, strict=True))
        return tuple(name for name in self.fields if has.get(name, True))

    def formfield_for_manytomany(
        self, db_field: "models.ManyToManyField[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> "ModelMultipleChoiceField[Any] | None":
        kwargs["widget"] = ConceptsWidget(db_field, self.admin_site)
        field: ModelMultipleChoiceField[Any] | None = super().formfield_for_manytomany(db_field, request, **kwargs)
        if field is not None:
            del field.widget.attrs["class"]  # that of a plain list, set by the theme
        return field

    # -- Pages of its own ------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("upload/", UploadView.as_view(model_admin=self), "upload"),
            self.page("progress/", require_GET(self.progress_view), "progress"),
            self.row_page("download", self.download_view, "GET"),
            self.row_page("retry", self.retry_view, "POST"),
            self.row_page("replace", self.replace_view, "GET", "POST"),
            *super().get_urls(),
        ]

    def progress_view(self, request: HttpRequest) -> HttpResponse:
        """The cells of documents that were unfinished, for a page that polls; it asks again while one still is."""
        asked = row_ids(request.GET.get("ids", "").split(","))[: self.list_per_page]
        documents = list(self.get_queryset(request).filter(pk__in=asked))
        editable = set(
            Document.objects.editable_by(principal(request)).filter(pk__in=asked).values_list("pk", flat=True)
        )
        rows = [
            {
                "document": each,
                "state": state_cell(each, swap=True),
                "actions": actions_cell(each, may_change=each.pk in editable, swap=True),
            }
            for each in documents
        ]
        context = {"rows": rows, "unfinished_ids": self.unfinished_ids(documents)}
        return render(request, "ingest/document_progress.html", context)

    def download_view(self, request: HttpRequest, document: Document) -> Any:  # noqa: ARG002 - a page of a row
        return file_response(document)

    def retry_view(self, request: HttpRequest, document: Document) -> HttpResponse:
        if document.status not in Document.UNFINISHED and documents_requeue([document]):
            self.message_user(request, _("The document is processed again."), messages.SUCCESS)
        return (
            HttpResponseRedirect(back_from(request))
            if back_from(request)
            else redirect("admin:kb_document_change", document.pk)
        )

    @brings_files
    def replace_view(self, request: HttpRequest, document: Document) -> HttpResponse:
        """Gives a document another file; the page says why one is refused."""
        error = ""
        if request.method == "POST":
            try:
                self._replace(request, document)
            except ServiceError as refused:
                error = str(refused)
            else:
                self.message_user(request, _("The file was replaced: the document is read again."), messages.SUCCESS)
                return redirect("admin:kb_document_change", document.pk)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Replace the file"),
            "opts": self.opts,
            "document": document,
            "kb": document.knowledge_base,
            "failure": error_sentence(document),
            "error": error,
            **upload_rules(),
        }
        return render(request, "ingest/document/replace.html", context)

    @staticmethod
    def _replace(request: HttpRequest, document: Document) -> None:
        file = request.FILES.get("file")
        if not isinstance(file, UploadedFile):
            raise Rejected("no_file", _("Choose a file."))
        with document_held(document) as held:
            document_replace_file(document=held, file=file, name=file.name or "")

    def form_context(self, request: HttpRequest, row: Document) -> dict[str, Any]:
        url = str(row.metadata.get("url", ""))
        chunk_id = row_id(request.GET.get("chunk", ""))
        own = {
            **cards_context(row, chunk_id=chunk_id),
            "chunk_id": chunk_id,
            "document": row,
            "failure": error_sentence(row),
            "state": state_cell(row),
            "unfinished_ids": self.unfinished_ids([row]),
            "may_change": self.has_change_permission(request, row),
            "show_save_and_add_another": False,
            "may_retry": row.status not in Document.UNFINISHED,
            "remarks": remark_sentences(row),
            "picture_count": (count := row.pictures.count() if row.picture_bytes else 0),
            "pictures": [shown_picture(each) for each in row.pictures.all()[:PICTURES_SHOWN]] if count else [],
            # The address that it was read from, where that is one a browser may be led to
            "page_url": web_address(url),
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

    @admin.action(description=gettext_lazy("Move to a folder"), permissions=["change"])
    def move_to_folder(self, request: HttpRequest, queryset: QuerySet[Document]) -> HttpResponse | None:
        allowed = self.only_granted(request, queryset, "editable_by")
        return None if allowed.query.is_empty() else move_page(self, request, allowed)

    @admin.action(description=gettext_lazy("Re-chunk from the stored files"), permissions=["change"])
    def rechunk(self, request: HttpRequest, queryset: QuerySet[Document]) -> None:
        self.report(request, RECHUNKED, documents_recut(self.only_granted(request, queryset, "editable_by")))

    # -- Fields that are only shown -------------------------------------------------------------------------------------
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


# Knowledge bases with failed documents that the workbench names one by one.
MOST_NAMED = 3


@add_tasks
def failed_documents(request: HttpRequest) -> Iterator[Task]:
    """The failed documents of the knowledge bases that the user may change, those with most first."""
    rows = Document.objects.editable_by(principal(request)).filter(status=Document.Status.FAILED).order_by()
    counted = (
        rows.values_list("knowledge_base_id", "knowledge_base__name").annotate(count=Count("pk")).order_by("-count")
    )
    groups = list(counted)
    for kb_id, name, count in groups[:MOST_NAMED]:
        text = ngettext("%(count)d document failed in “%(name)s”.", "%(count)d documents failed in “%(name)s”.", count)
        named, url = text % {"count": count, "name": name}, failed_documents_page(kb_id)
        yield Task(named, url, _("Replace or retry"), order=20, is_urgent=True, count=count)
    if rest := sum(count for _kb_id, _name, count in groups[MOST_NAMED:]):
        text = ngettext("%(count)d more document failed.", "%(count)d more documents failed.", rest)
        url = f"{reverse('admin:kb_document_changelist')}?status__exact={Document.Status.FAILED}"
        yield Task(text % {"count": rest}, url, _("Replace or retry"), order=21, is_urgent=True, count=rest)
