from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_GET, require_POST
from unfold.contrib.filters.admin import DropdownFilter
from unfold.widgets import UnfoldAdminTextareaWidget

from kb.base.errors import NotVisible, Rejected, ServiceError, Superseded
from kb.content.models.documents import Chunk, Document
from kb.ingest.admin.chunk_duplicates import NEIGHBOUR_CHARACTERS, NearDuplicatesView, alike, moved_meanwhile
from kb.ingest.admin.chunk_split import ChunkSplitView
from kb.ingest.services.chunk_work.bulk import chunks_delete, chunks_set_enabled
from kb.ingest.services.chunk_work.editing import chunk_update
from kb.ingest.services.chunk_work.merging import chunks_merge
from kb.ingest.services.chunk_work.neighbours import neighbours_of
from kb.web.admin.ids import row_id
from kb.web.admin.scoped import ScopedAutocompleteFilter, ScopedModelAdmin, ScopedRelatedFilter, column

EXCERPT_CHARACTERS = 120


class LinesField(forms.CharField):
    """A text of one entry a line; its value is a list."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, widget=UnfoldAdminTextareaWidget({"rows": 3}), **kwargs)

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value

    def clean(self, value: Any) -> Any:
        return [line for each in super().clean(value).splitlines() if (line := each.strip())]

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(list(initial or []) != self.clean(data))


class ChunkForm(forms.ModelForm):  # type: ignore[type-arg]
    """Validating a change writes it to the indexes, so that what they refuse is said beside the field."""

    keywords = LinesField(
        label=gettext_lazy("Keywords"),
        help_text=gettext_lazy(
            "Keywords that this chunk is found by, one a line. Empty: they are extracted from its text, where the knowledge "
            "base has keyword vectors."
        ),
    )
    questions = LinesField(
        label=gettext_lazy("Questions"),
        help_text=gettext_lazy("Questions that this chunk answers, one a line: whoever asks alike finds it."),
    )

    class Meta:
        model = Chunk
        fields = ("text", "keywords", "questions", "enabled")

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if self.errors or not self.has_changed():
            return values
        chunk = Chunk.objects.select_related("document", "knowledge_base").get(pk=self.instance.pk)
        try:
            chunk_update(
                chunk,
                text=values["text"],
                enabled=values["enabled"],
                questions=values["questions"] if "questions" in self.changed_data else None,
                keywords=values["keywords"] if "keywords" in self.changed_data else None,
            )
        except Rejected as error:
            self.add_error("text", str(error))
        except NotVisible as error:
            self.add_error(None, str(error))
        except Superseded:
            self.add_error(None, moved_meanwhile())
        return values


class EditedFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("changed by hand")
    parameter_name = "changed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ARG002
        return [
            ("text", _("text edited")),
            ("cut", _("merged or split")),
            ("keywords", _("keywords given")),
            ("questions", _("questions given")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> QuerySet[Chunk]:  # noqa: ARG002
        conditions = {
            "text": ~Q(cut_text=""),
            "cut": Q(own_cut=True),
            "keywords": Q(own_keywords=True),
            "questions": Q(own_questions=True),
        }
        return queryset.filter(conditions.get(self.value() or "", Q()))


class QuestionsFilter(DropdownFilter):  # type: ignore[misc]
    title = gettext_lazy("questions")
    parameter_name = "questions"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ARG002
        return [("yes", _("has questions")), ("no", _("has no questions"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> QuerySet[Chunk]:  # noqa: ARG002
        conditions = {"yes": ~Q(questions=[]), "no": Q(questions=[])}
        return queryset.filter(conditions.get(self.value() or "", Q()))


@admin.register(Chunk)
class ChunkAdmin(ScopedModelAdmin):
    form = ChunkForm
    list_display = ("excerpt", "document_link", "number", "page", "headings", "token_count", "enabled")
    list_select_related = ("document", "knowledge_base")
    list_filter = (
        ("knowledge_base", ScopedRelatedFilter),
        ("document", ScopedAutocompleteFilter),
        "enabled",
        EditedFilter,
        QuestionsFilter,
    )
    list_filter_submit = True
    actions = ("enable", "disable", "merge", "delete_selected")
    search_fields = ("text",)
    search_help_text = gettext_lazy("Search in the text")
    ordering = ("document_id", "position")
    list_before_template = "ingest/chunk_list.html"
    change_form_outer_before_template = "ingest/chunk_panel.html"
    change_form_outer_after_template = "quality/debug/chunk_neighbours.html"
    delete_confirmation_template = "ingest/chunk_delete.html"
    delete_selected_confirmation_template = "ingest/chunk_delete_selected.html"
    warn_unsaved_form = True
    fields = (
        "text",
        "keywords",
        "questions",
        "enabled",
        "document_link",
        "number",
        "page",
        "headings",
        "token_count",
        "former_text",
    )
    readonly_fields: ClassVar[Any] = ("document_link", "number", "page", "headings", "token_count", "former_text")

    class Media:
        css: ClassVar = {"all": ("kb/chunks.css",)}

    # -- Pages -----------------------------------------------------------------------------------------------------------
    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("duplicates/", NearDuplicatesView.as_view(model_admin=self), "duplicates"),
            self.page("<int:object_id>/split/", ChunkSplitView.as_view(model_admin=self), "split"),
            self.page("<int:object_id>/merge/", require_POST(self.merge_view), "merge"),
            self.page("<int:object_id>/alike/", require_GET(self.alike_view), "alike"),
            *super().get_urls(),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - chunks come from documents
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Chunk]:
        rows: QuerySet[Chunk] = super().get_queryset(request).select_related("document", "knowledge_base")
        return rows

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        kb_id = row_id(request.GET.get("knowledge_base__id__exact", ""))
        url = reverse("admin:kb_chunk_duplicates") + (f"?kb={kb_id}" if kb_id is not None else "")
        response: HttpResponse = super().changelist_view(request, {"duplicates_url": url, **(extra_context or {})})
        return response

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        chunk = kwargs.get("obj")
        if chunk is not None:
            found = neighbours_of(chunk)
            context |= {
                "chunk": chunk,
                "previous_chunk": next(iter(found.previous), None),
                "next_chunk": next(iter(found.following), None),
                "neighbour_characters": NEIGHBOUR_CHARACTERS,
            }
        response: HttpResponse = super().render_change_form(request, context, **kwargs)
        return response

    def alike_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """The near-duplicates of a chunk; its page asks for them when it is there, since they take a search."""
        chunk = self.get_object_or_404(request, str(object_id))
        return render(request, "ingest/chunk_alike.html", alike(chunk))

    def merge_view(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """Merges a chunk with the one before or after it."""
        chunk = self.get_object_or_404(request, str(object_id), to_change=True)
        found = neighbours_of(chunk)
        others = found.previous if request.POST.get("with") == "previous" else found.following
        merged = self._merged(request, chunk.document, [chunk.pk, *(other.pk for other in others)])
        return HttpResponseRedirect(reverse("admin:kb_chunk_change", args=[merged.pk if merged else chunk.pk]))

    # -- Writes ----------------------------------------------------------------------------------------------------------
    def save_model(self, request: HttpRequest, obj: Chunk, form: Any, change: Any) -> None:
        """The form has written the change already."""

    def delete_model(self, request: HttpRequest, obj: Chunk) -> None:  # noqa: ARG002 - Django's interface
        chunks_delete(chunk_ids=[obj.pk])

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> None:  # noqa: ARG002 - Django's interface
        chunks_delete(chunk_ids=list(queryset.values_list("pk", flat=True)))

    @admin.action(description=gettext_lazy("Enable"), permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> None:
        count = self._switched(request, queryset, enabled=True)
        message = ngettext(
            "%(count)d chunk is found by searches again.", "%(count)d chunks are found by searches again.", count
        )
        self.message_user(request, message % {"count": count}, messages.SUCCESS if count else messages.INFO)

    @admin.action(description=gettext_lazy("Disable"), permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> None:
        count = self._switched(request, queryset, enabled=False)
        message = ngettext(
            "%(count)d chunk is found by no search now.", "%(count)d chunks are found by no search now.", count
        )
        self.message_user(request, message % {"count": count}, messages.SUCCESS if count else messages.INFO)

    @admin.action(description=gettext_lazy("Merge neighbours into one"), permissions=["change"])
    def merge(self, request: HttpRequest, queryset: QuerySet[Chunk]) -> None:
        editable = self.only_granted(request, queryset, "editable_by")
        chunks = [] if editable is None else list(editable.select_related("document__knowledge_base"))
        if chunks:
            self._merged(request, chunks[0].document, [chunk.pk for chunk in chunks])

    def _switched(self, request: HttpRequest, queryset: QuerySet[Chunk], *, enabled: bool) -> int:
        editable = self.only_granted(request, queryset, "editable_by")
        ids = [] if editable is None else list(editable.values_list("pk", flat=True))
        return chunks_set_enabled(chunk_ids=ids, enabled=enabled)

    def _merged(self, request: HttpRequest, document: Document, chunk_ids: list[int]) -> Chunk | None:
        try:
            merged = chunks_merge(document=document, chunk_ids=chunk_ids)
        except Superseded:
            self.message_user(request, moved_meanwhile(), messages.ERROR)
        except ServiceError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            message = _("%(count)d chunks have become one.") % {"count": len(chunk_ids)}
            self.log_change(request, merged, message)
            self.message_user(request, message, messages.SUCCESS)
            return merged
        return None

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("text"))
    def excerpt(self, chunk: Chunk) -> str:
        return format_html('<span class="kb-excerpt">{}</span>', Truncator(chunk.text).chars(EXCERPT_CHARACTERS))

    @column(gettext_lazy("document"), ordering="document__title")
    def document_link(self, chunk: Chunk) -> str:
        url = reverse("admin:kb_document_change", args=[chunk.document_id])
        return format_html('<a href="{}" class="kb-name kb-link">{}</a>', url, chunk.document)

    @column(gettext_lazy("position"), ordering="position")
    def number(self, chunk: Chunk) -> int:
        return chunk.position + 1

    @column(gettext_lazy("as it was cut"))
    def former_text(self, chunk: Chunk) -> str:
        return format_html('<span class="kb-text">{}</span>', chunk.cut_text) if chunk.cut_text else "-"

    @column(gettext_lazy("headings"))
    def headings(self, chunk: Chunk) -> str:
        return " > ".join(chunk.heading_path) or "-"
