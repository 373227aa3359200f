"""The list of documents: of all of them, and as the first tab of a knowledge base with filters as chips, drop zone and upload."""

from collections import Counter
from pathlib import PurePath
from typing import Any, Final, cast

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from kb.access.models import KnowledgeBase
from kb.base.models import count_of
from kb.content.hub import hub_state
from kb.content.models import GONE_SINCE, Chunk, Document
from kb.content.services import document_counts
from kb.ingest.admin.folders import PARAMETER, FolderFilter, folder_context, folder_place
from kb.ingest.admin.uploads import shown_upload, upload_context, upload_rules
from kb.ingest.services.documents import error_sentence
from kb.web.admin.navigation import add_hub_tab, hub_of
from kb.web.admin.scoped import Choice, ScopedModelAdmin, ScopedRelatedFilter, column, row_ids

Status = Document.Status

ICONS: Final = {
    "picture_as_pdf": "pdf",
    "description": "doc docx odt rtf",
    "table": "xls xlsx ods csv tsv",
    "slideshow": "ppt pptx odp",
    "language": "html htm xhtml mhtml",
    "article": "md markdown txt text rst",
    "subtitles": "srt vtt",
    "mail": "eml msg mbox",
    "data_object": "json jsonl xml yaml yml",
    "folder_zip": "zip",
    "menu_book": "epub",
    "image": "png jpg jpeg webp gif tiff bmp",
}
"""Icons of the theme's font by the extensions that they stand for."""
_ICON_OF: Final = {extension: icon for icon, extensions in ICONS.items() for extension in extensions.split()}

STATES: Final = {
    "": (gettext_lazy("All"), None),
    "ready": (gettext_lazy("Ready"), (Status.READY,)),
    "pending,processing": (gettext_lazy("Processing"), Document.UNFINISHED),
    "failed": (gettext_lazy("Failed"), (Status.FAILED,)),
    "cancelled": (gettext_lazy("Cancelled"), (Status.CANCELLED,)),
}
"""The filters by status: by the value of their parameter the label and the statuses."""


ALWAYS: Final = ("", "ready", "pending,processing", "failed")
"""Those that stand there also where they match nothing, since an upload changes their counts."""


def icon_of(document: Document) -> str:
    """The icon of a document's format, by the extension of its file."""
    name = document.file.name or document.source or ""
    return _ICON_OF.get(PurePath(name).suffix.lower().lstrip("."), "draft")


def state_cell(document: Document, *, swap: bool = False) -> SafeString:
    """Status, progress and error of a document; `swap` makes HTMX put it in the place of the one on the page."""
    context = {"document": document, "error": error_sentence(document), "swap": swap}
    return render_to_string("ingest/document_state.html", context)


def actions_cell(document: Document, *, may_change: bool, swap: bool = False) -> SafeString:
    """The buttons of a row: what can be done with the document as it is."""
    has_original = bool(document.file) or document.status == Status.FAILED
    context = {
        "document": document,
        "may_replace": may_change and has_original,
        "may_retry": may_change and document.status in (Status.FAILED, Status.CANCELLED),
        "swap": swap,
    }
    return render_to_string("ingest/documents/actions.html", context)


class UploadedAdmin(ScopedModelAdmin):
    """Rows that the page for uploads adds."""

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        query = request.GET.urlencode()
        return HttpResponseRedirect(reverse("admin:kb_document_upload") + (f"?{query}" if query else ""))


class DocumentListAdmin(UploadedAdmin):
    """The list; in a knowledge base chips take the place of filters, and one count of all rows serves them and the pages."""

    list_display = ("name", "state", "chunks", "knowledge_base", "type_of_source", "file_size", "created_at")
    hub_list_display = ("name", "state", "chunks", "changed", "buttons")
    linked_lookups = frozenset({"batch__id__exact", "status__exact", "status__in", "source_type__exact"})
    unfinished = Document.UNFINISHED
    list_filter = (
        ("knowledge_base", ScopedRelatedFilter),
        ("status", ChoicesDropdownFilter),
        ("source_type", ChoicesDropdownFilter),
    )
    list_select_related = ("knowledge_base",)
    show_full_result_count = False
    search_fields = ("title", "source")
    search_help_text = gettext_lazy("Search by title or source")
    change_list_template = "ingest/documents/list.html"
    list_after_template = "ingest/document_poll.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Document]:
        return cast(
            "QuerySet[Document]",
            super().get_queryset(request).annotate(chunk_count=count_of(Chunk.objects, "document")),
        )

    def get_list_display(self, request: HttpRequest) -> Any:
        return self.list_display if hub_of(request) is None else self.hub_list_display

    def get_list_filter(self, request: HttpRequest) -> Any:
        return super().get_list_filter(request) if hub_of(request) is None else (FolderFilter,)

    def completed(self, request: HttpRequest, rows: Any) -> Any:
        if (kb := hub_of(request)) is not None:
            place = folder_place(request, kb)
            for row in rows:
                row.may_change = hub_state(request, kb).may_edit
                row.folder_text = place.text_of(row.folder_id)
        return rows

    def get_paginator(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        paginator = super().get_paginator(request, *args, **kwargs)
        if (kb := hub_of(request)) is not None and (count := shown_count(request, kb)) is not None:
            paginator.count = count
        return paginator

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        kb, context = hub_of(request), {**(extra_context or {})}
        if kb is not None:
            asked, query = row_ids(request.GET.getlist("upload")), request.GET.copy()
            query.pop("upload", None)  # it is no filter of the rows
            request.GET = query  # type: ignore[assignment]
            batch = shown_upload(kb, asked[-1] if asked else None)
            may_edit = hub_state(request, kb).may_edit
            context |= {
                "title": _("Documents"),
                "filters": filter_chips(request, kb),
                "has_documents": bool(_counts(request, kb)) or folder_place(request, kb).folder is not None,
                **folder_context(request, kb),
                "may_edit": may_edit,
                **(upload_context(batch, may_change=may_edit) if batch else {}),
                **(upload_rules() if may_edit else {}),
            }
        response: HttpResponse = super().changelist_view(request, context)
        return response

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("title"), ordering="title")
    def name(self, document: Document) -> str:
        icon, name = icon_of(document), '<span id="document-{}-name" class="kb-name">{}</span>'
        mark = '<span class="material-symbols-outlined kb-format" aria-hidden="true">{}</span>'
        folder = getattr(document, "folder_text", "")
        if folder:
            name += '<small class="kb-document-folder">{}</small>'
        gone = document.metadata.get(GONE_SINCE) and _("gone from its source")
        if gone:
            name += '<small class="kb-document-folder">{}</small>'
        shown = f'<span class="kb-document">{mark}<span>{name}</span></span>'
        return format_html(shown, icon, document.pk, document, *filter(None, (folder, gone)))

    @column(gettext_lazy("status"), ordering="status")
    def state(self, document: Document) -> SafeString:
        return state_cell(document)

    @column(gettext_lazy("chunks"))
    def chunks(self, document: Any) -> str:
        url = f"{reverse('admin:kb_chunk_changelist')}?document__id__exact={document.pk}"
        return format_html(
            '<a href="{}" id="document-{}-chunks" class="kb-link">{}</a>', url, document.pk, document.chunk_count
        )

    @column(gettext_lazy("updated"), ordering="updated_at")
    def changed(self, document: Document) -> Any:
        return document.updated_at

    @column(gettext_lazy("actions"))
    def buttons(self, document: Any) -> SafeString:
        return actions_cell(document, may_change=document.may_change)

    @column(gettext_lazy("source type"))
    def type_of_source(self, document: Document) -> str:
        return document.get_source_type_display()


def _counts(request: HttpRequest, kb: KnowledgeBase) -> dict[tuple[str, str], int]:
    """Documents by status and source type, asked of the database once a request."""
    if "_document_counts" not in request.__dict__:
        request.__dict__["_document_counts"] = document_counts(kb, folder_place(request, kb).ids)
    return cast("dict[tuple[str, str], int]", request.__dict__["_document_counts"])


FILTERS: Final = frozenset({"status__exact", "status__in", "source_type__exact"})


def shown_count(request: HttpRequest, kb: KnowledgeBase) -> int | None:
    """How many rows the list has, where the filters are those of the chips; else the database has to count them."""
    given = {name: value for name, value in request.GET.items() if name not in ("p", "o") and (value or name != "q")}
    if given.keys() - FILTERS - {PARAMETER}:
        return None
    state, kind = _chosen(request)
    statuses = set(state.split(",")) if state else None
    return sum(
        count
        for (status, source_type), count in _counts(request, kb).items()
        if (statuses is None or status in statuses) and kind in ("", source_type)
    )


def _chosen(request: HttpRequest) -> tuple[str, str]:
    """The values of the filters by status and by source type; blank: all."""
    state = request.GET.get("status__in") or request.GET.get("status__exact") or ""
    return state, request.GET.get("source_type__exact") or ""


def filter_chips(request: HttpRequest, kb: KnowledgeBase) -> list[list[Choice]]:
    """The filters by status and, where there are several, by source type, each with the number of its documents."""
    by_status, by_kind = Counter[str](), Counter[str]()
    for (status, kind), count in _counts(request, kb).items():
        by_status[status] += count
        by_kind[kind] += count
    state, chosen_kind = _chosen(request)
    states = []
    for value, (label, statuses) in STATES.items():
        count = by_status.total() if statuses is None else sum(by_status[each] for each in statuses)
        if count or value in (state, *ALWAYS):
            parameter = "status__in" if "," in value else "status__exact"
            url = _url_with(request, FILTERS - {"source_type__exact"}, {parameter: value} if value else {})
            states.append(Choice(value, str(label), url, value == state, count))
    kinds = []
    if len(by_kind) > 1 or chosen_kind:
        for kind in (each for each in Document.SourceType if by_kind[each] or each == chosen_kind):
            is_chosen = kind == chosen_kind
            url = _url_with(request, {"source_type__exact"}, {} if is_chosen else {"source_type__exact": kind.value})
            called = _("Files") if kind == Document.SourceType.BOOK else str(kind.label)
            kinds.append(Choice(kind.value, called, url, is_chosen, by_kind[kind]))
    return [states, kinds]


def _url_with(request: HttpRequest, without: frozenset[str] | set[str], values: dict[str, str]) -> str:
    query = request.GET.copy()
    for name in {*without, "p"}:
        query.pop(name, None)
    query.update(values)
    return f"?{query.urlencode()}"


add_hub_tab("documents", gettext_lazy("Documents"), order=10, model=Document, covers=("kb_chunk_", "kb_ingestbatch_"))
