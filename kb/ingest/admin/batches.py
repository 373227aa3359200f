"""Uploads: what each has brought in and how far it is, with the buttons that steer it, and the browser's way of filling it."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from django.contrib import admin, messages
from django.db.models import Case, QuerySet, When
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.urls import URLPattern, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from kb.access.models import KnowledgeBase
from kb.base.errors import AlreadyThere, Rejected
from kb.content.models import Document, IngestBatch
from kb.ingest.admin.document_list import UploadedAdmin, filter_chips, state_cell
from kb.ingest.admin.folders import folder_url
from kb.ingest.admin.uploads import name_of, time_text, title_beside, upload_context
from kb.ingest.services.batches import (
    batch_add,
    batch_cancel,
    batch_create,
    batch_pause,
    batch_progress,
    batch_resume,
    batch_retry,
    is_moving,
    shown_note,
    with_progress,
)
from kb.ingest.services.tables import batch_describe, read_table
from kb.web.admin.scoped import ScopedRelatedFilter, column, principal, reporting, row_id, signed_in
from kb.web.admin.site import brings_files

SHOWN_DOCUMENTS = 20
SHOWN_NOTES = 50
# What a curator has to see first.
URGENCY = Case(When(status=Document.Status.FAILED, then=0), When(status=Document.Status.PROCESSING, then=1), default=2)


@admin.register(IngestBatch)
class IngestBatchAdmin(UploadedAdmin):
    list_display = ("name", "state", "knowledge_base", "created_by", "created_at")
    list_filter = (("knowledge_base", ScopedRelatedFilter),)
    list_select_related = ("knowledge_base", "created_by")
    search_fields = ("name",)
    search_help_text = gettext_lazy("Search by name")
    list_before_template = "ingest/batches/empty.html"
    change_form_outer_before_template = "ingest/batches/panel.html"
    fields = ("name", "knowledge_base", "created_by", "created_at")
    readonly_fields = ("knowledge_base", "created_by", "created_at")

    class Media:
        js = ("kb/files.js",)

    def completed(self, request: HttpRequest, rows: Any) -> Any:  # noqa: ARG002
        return with_progress(rows)

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("begin/", require_POST(self.begin_view), "begin"),
            self.row_page("file", self.file_view, "POST"),
            self.row_page("table", self.table_view, "POST"),
            self.row_page("progress", self.progress_view, "GET"),
            self.row_page("bar", self.bar_view, "GET"),
            self.row_page("steer", self.steer_view, "POST"),
            *super().get_urls(),
        ]

    # -- How a browser fills an upload: one request a file ------------------------------------------------------------------
    def begin_view(self, request: HttpRequest) -> JsonResponse:
        writable: QuerySet[Any] = KnowledgeBase.objects.editable_by(principal(request))
        kb = get_object_or_404(writable, pk=row_id(request.POST.get("knowledge_base", "")))
        table = request.FILES.get("table")
        try:
            rows = read_table(table.read()) if table is not None else []
        except Rejected as error:
            return _refusal(error)
        batch = batch_create(
            knowledge_base=kb,
            name=request.POST.get("name", ""),
            user=signed_in(request),
            folder_id=row_id(request.POST.get("folder", "")),
        )
        batch_describe(batch, rows)
        return JsonResponse(
            {
                "file": reverse("admin:kb_ingestbatch_file", args=[batch.pk]),
                "page": reverse("admin:kb_ingestbatch_change", args=[batch.pk]),
                "documents": folder_url(kb.pk, batch.folder_id, upload=batch.pk),
            },
            status=HTTPStatus.CREATED,
        )

    @brings_files
    def file_view(self, request: HttpRequest, batch: IngestBatch) -> JsonResponse:
        file = request.FILES.get("file")
        if file is None:
            return JsonResponse({"message": _("There is no file in the request.")}, status=HTTPStatus.BAD_REQUEST)
        source_type = request.POST.get("source_type", "")
        if source_type not in Document.SourceType.values:
            source_type = ""
        name = request.POST.get("path") or file.name or ""
        try:
            document = batch_add(batch, file, name[:1_000], user=signed_in(request), source_type=source_type)
        except AlreadyThere as error:
            return _known(batch, error)
        except Rejected as error:
            return _refusal(error)
        return JsonResponse({"id": document.pk}, status=HTTPStatus.CREATED)

    def table_view(self, request: HttpRequest, batch: IngestBatch) -> HttpResponse:
        table = request.FILES.get("table")
        with reporting(request, Rejected):
            count = batch_describe(batch, read_table(table.read() if table else b""))
            message = ngettext(
                "The table has described %(count)d document.", "The table has described %(count)d documents.", count
            )
            messages.success(request, message % {"count": count})
        return redirect("admin:kb_ingestbatch_change", batch.pk)

    # -- How far it is, and its buttons -------------------------------------------------------------------------------------
    def progress_view(self, request: HttpRequest, batch: IngestBatch) -> HttpResponse:
        return render(request, "ingest/batches/progress.html", self._progress_context(request, batch))

    def bar_view(self, request: HttpRequest, batch: IngestBatch) -> HttpResponse:
        """The bar above the documents of a knowledge base, for a page that polls, with the counts of its filters."""
        may_change = self.has_change_permission(request, batch)
        filters = filter_chips(request, batch.knowledge_base)
        context = {**upload_context(batch, may_change=may_change), "filters": filters, "swap": True}
        return render(request, "ingest/batches/bar.html", context)

    def steer_view(self, request: HttpRequest, batch: IngestBatch) -> HttpResponse:
        if steer := STEERING.get(request.POST.get("do", "")):
            steer(batch)
        return redirect("admin:kb_ingestbatch_change", batch.pk)

    def form_context(self, request: HttpRequest, row: IngestBatch) -> dict[str, Any]:
        own = {**self._progress_context(request, row), "show_save_and_add_another": False}
        return {**super().form_context(request, row), **own}

    def _progress_context(self, request: HttpRequest, batch: IngestBatch) -> dict[str, Any]:
        documents = Document.objects.filter(batch=batch).order_by(URGENCY, "-pk")
        stages = dict(Document.Stage.choices)
        progress = batch_progress(batch)
        return {
            "batch": batch,
            "progress": progress,
            "is_moving": is_moving(batch, progress),
            "statuses": [
                (each.label, each.value, progress.counts[each]) for each in Document.Status if each in progress.counts
            ],
            "stages": [(stages.get(stage, "–"), count) for stage, count in progress.stages.items()],
            "time_left": time_text(progress.seconds_left),
            "rows": [_row(each) for each in documents[:SHOWN_DOCUMENTS]],
            "notes": [shown_note(each) for each in batch.notes[:SHOWN_NOTES]],
            "may_change": self.has_change_permission(request, batch),
        }

    # -- Lists --------------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("progress"))
    def state(self, batch: Any) -> SafeString:
        context = {"batch": batch, "progress": batch.progress, "says_paused": True}
        return render_to_string("ingest/batches/state.html", context)


STEERING: dict[str, Callable[[IngestBatch], object]] = {
    "pause": batch_pause,
    "resume": batch_resume,
    "cancel": batch_cancel,
    "retry_failed": batch_retry,
    "retry_cancelled": lambda batch: batch_retry(batch, Document.Status.CANCELLED),
}


def _row(document: Document) -> dict[str, Any]:
    name = name_of(document)
    return {
        "document": document,
        "name": name,
        "title": title_beside(document, name),
        "state": state_cell(document),
    }


def _known(batch: IngestBatch, error: AlreadyThere) -> JsonResponse:
    """A file that was sent twice is no trouble: the answer to the first request was lost."""
    if Document.objects.filter(pk=error.document_id, batch=batch).exists():
        return JsonResponse({"id": error.document_id})
    url = reverse("admin:kb_document_change", args=[error.document_id])
    return JsonResponse({"message": str(error), "url": url}, status=HTTPStatus.CONFLICT)


def _refusal(error: Rejected) -> JsonResponse:
    return JsonResponse({"message": str(error), "code": error.code}, status=HTTPStatus.UNPROCESSABLE_ENTITY)
