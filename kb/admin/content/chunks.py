from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.widgets import UnfoldAdminTextareaWidget

from kb.admin.scoped import ScopedAutocompleteFilter, ScopedModelAdmin, ScopedRelatedFilter, column
from kb.models import Chunk
from kb.services.errors import NotVisible, Rejected
from kb.services.indexing import chunk_update
from kb.services.writing import Superseded

EXCERPT_CHARACTERS = 120
NEIGHBOUR_CHARACTERS = 300


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

    questions = LinesField(
        label=gettext_lazy("Questions"),
        help_text=gettext_lazy("Questions that this chunk answers, one a line: whoever asks alike finds it."),
    )

    class Meta:
        model = Chunk
        fields = ("text", "questions", "enabled")

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if self.errors or not self.has_changed():
            return values
        try:
            chunk_update(self.instance, text=values["text"], enabled=values["enabled"], questions=values["questions"])
        except Rejected as error:
            self.add_error("text", str(error))
        except NotVisible as error:
            self.add_error(None, str(error))
        except Superseded:
            self.add_error(
                None,
                _("The knowledge base moved to another embedding model meanwhile, and nothing was saved: save again."),
            )
        return values


@admin.register(Chunk)
class ChunkAdmin(ScopedModelAdmin):
    form = ChunkForm
    list_display = ("excerpt", "document_link", "number", "page", "headings", "token_count", "enabled")
    list_select_related = ("document", "knowledge_base")
    list_filter = (
        ("knowledge_base", ScopedRelatedFilter),
        ("document", ScopedAutocompleteFilter),
        "enabled",
    )
    list_filter_submit = True
    search_fields = ("text",)
    search_help_text = gettext_lazy("Search in the text")
    ordering = ("document_id", "position")
    change_form_outer_before_template = "admin/kb/chunk_panel.html"
    change_form_outer_after_template = "admin/kb/chunk_neighbours.html"
    warn_unsaved_form = True
    fields = ("text", "questions", "enabled", "key_terms", "document_link", "number", "page", "headings", "token_count")
    readonly_fields: ClassVar[Any] = ("key_terms", "document_link", "number", "page", "headings", "token_count")

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - chunks come from documents
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Chunk]:
        rows: QuerySet[Chunk] = super().get_queryset(request).select_related("document", "knowledge_base")
        return rows

    def save_model(self, request: HttpRequest, obj: Chunk, form: Any, change: Any) -> None:
        """The form has written the change already."""

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        chunk = kwargs.get("obj")
        if chunk is not None:
            siblings = Chunk.objects.filter(document_id=chunk.document_id).order_by("position")
            context |= {
                "chunk": chunk,
                "previous_chunk": siblings.filter(position__lt=chunk.position).last(),
                "next_chunk": siblings.filter(position__gt=chunk.position).first(),
                "neighbour_characters": NEIGHBOUR_CHARACTERS,
            }
        response: HttpResponse = super().render_change_form(request, context, **kwargs)
        return response

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

    @column(gettext_lazy("keywords"))
    def key_terms(self, chunk: Chunk) -> str:
        return " · ".join(chunk.keywords) or "-"

    @column(gettext_lazy("headings"))
    def headings(self, chunk: Chunk) -> str:
        return " > ".join(chunk.heading_path) or "-"
