"""How far documents are read for the graph, what went wrong, and another attempt."""

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import localtime
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from kb.access.models import KnowledgeBase
from kb.base.messages import shown
from kb.content.models import Document
from kb.graph.models import GraphExtraction
from kb.graph.services.writing import graph_request
from kb.web.admin.scoped import ReadOnlyAdmin, ScopedRelatedFilter, column
from kb.web.admin.site import add_part

Status = GraphExtraction.Status


@admin.register(GraphExtraction)
class GraphExtractionAdmin(ReadOnlyAdmin):
    """Written by workers; the action that reads a document again needs the right to change on the list."""

    list_display = ("document_link", "state", "passages", "fact_count", "knowledge_base", "finished_at")
    list_display_links = None
    list_filter = (("document__knowledge_base", ScopedRelatedFilter), ("status", ChoicesDropdownFilter))
    list_select_related: ClassVar[Any] = ("document__knowledge_base",)
    search_fields = ("document__title", "document__source")
    search_help_text = gettext_lazy("Search by title or source")
    list_before_template = "graph/readings.html"
    actions = ("read_again",)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and self.has_module_permission(request)

    @admin.action(description=gettext_lazy("Read again"), permissions=["change"])
    def read_again(self, request: HttpRequest, queryset: QuerySet[GraphExtraction]) -> None:
        editable = self.only_granted(request, queryset, "editable_by")
        asked = list(editable.select_related("document"))
        for each in asked:
            graph_request(each.document)
        message = ngettext(
            "%(count)d document is read again; passages that have not changed are taken as they were read.",
            "%(count)d documents are read again; passages that have not changed are taken as they were read.",
            len(asked),
        )
        self.message_user(request, message % {"count": len(asked)}, messages.SUCCESS if asked else messages.INFO)

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("document"), ordering="document__title")
    def document_link(self, extraction: GraphExtraction) -> str:
        url = reverse("admin:kb_document_change", args=[extraction.document_id])
        return format_html('<a href="{}" class="kb-link kb-name">{}</a>', url, extraction.document)

    @column(gettext_lazy("status"), ordering="status")
    def state(self, extraction: GraphExtraction) -> SafeString:
        return state_cell(extraction)

    @column(gettext_lazy("passages read"))
    def passages(self, extraction: GraphExtraction) -> str:
        return f"{extraction.read_count} / {extraction.chunk_count}"

    @column(gettext_lazy("knowledge base"))
    def knowledge_base(self, extraction: GraphExtraction) -> str:
        return str(extraction.document.knowledge_base)


def state_cell(extraction: GraphExtraction) -> SafeString:
    return format_html(
        '<span class="kb-state" data-status="{}">{}{}</span>',
        extraction.status,
        extraction.get_status_display(),
        format_html_join("", '<span class="kb-error kb-block">{}</span>', ((line,) for line in _notes(extraction))),
    )


def document_graph_state(document: Document) -> SafeString | str:
    """How far a document's graph is, for the document's own page; blank where it was never asked for."""
    extraction = GraphExtraction.objects.filter(document=document).first()
    return "" if extraction is None else format_html("{} {}", _("Graph:"), state_cell(extraction))


def base_graph_state(kb: KnowledgeBase) -> SafeString | str:
    """How many of a knowledge base's documents could not be read for the graph, as a link to them; blank where all could."""
    troubled = GraphExtraction.objects.filter(document__knowledge_base=kb).exclude(error="").count()
    if not troubled:
        return ""
    message = ngettext(
        "%(count)d document could not be read for the graph.",
        "%(count)d documents could not be read for the graph.",
        troubled,
    )
    url = f"{reverse('admin:kb_graphextraction_changelist')}?document__knowledge_base__id__exact={kb.pk}"
    return format_html('<a href="{}" class="kb-link kb-bad">{}</a>', url, message % {"count": troubled})


def _notes(extraction: GraphExtraction) -> list[str]:
    notes = [shown(extraction.error)] if extraction.error else []
    if extraction.error and extraction.status == Status.WAITING and extraction.due_at:
        notes.append(
            _("Attempt %(number)d failed; the next one is at %(time)s.")
            % {"number": extraction.attempts, "time": date_format(localtime(extraction.due_at), "TIME_FORMAT")}
        )
    if extraction.status == Status.FAILED:
        notes.append(_("It is not tried again by itself: fix what is wrong, then choose “Read again”."))
    counts = [
        (
            extraction.unusable_count,
            ngettext(
                "The model gave no usable answer for %(count)d passage.",
                "The model gave no usable answer for %(count)d passages.",
                extraction.unusable_count,
            ),
        ),
        (
            extraction.skipped_count,
            ngettext(
                "%(count)d passage was not read: the document is longer than GRAPH_LLM_MAX_CHUNKS.",
                "%(count)d passages were not read: the document is longer than GRAPH_LLM_MAX_CHUNKS.",
                extraction.skipped_count,
            ),
        ),
        (
            extraction.refused_count,
            ngettext(
                "%(count)d finding was refused: it does not stand in the passage.",
                "%(count)d findings were refused: they do not stand in the passage.",
                extraction.refused_count,
            ),
        ),
    ]
    return [*notes, *(message % {"count": count} for count, message in counts if count)]


add_part(Document, context=lambda _request, document: {"graph_state": document_graph_state(document)})
add_part(KnowledgeBase, context=lambda _request, kb: {"graph_state": base_graph_state(kb) if kb.extract_graph else ""})
