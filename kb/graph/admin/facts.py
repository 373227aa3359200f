from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from kb.base.text import normalized_key
from kb.graph.admin.concepts import GraphAdmin, require_key
from kb.graph.models import GraphFact, Origin
from kb.web.admin.scoped import ScopedRelatedFilter, column


class FactForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = GraphFact
        fields = ("knowledge_base", "subject", "predicate", "object")

    def clean_subject(self) -> str:
        return require_key(self.cleaned_data["subject"])

    def clean_object(self) -> str:
        return require_key(self.cleaned_data["object"])

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        kb = values.get("knowledge_base") or self.instance.knowledge_base_id
        if kb and values.keys() >= {"subject", "predicate", "object"}:
            same = GraphFact.objects.filter(
                knowledge_base=kb,
                subject_key=normalized_key(values["subject"]),
                predicate=values["predicate"],
                object_key=normalized_key(values["object"]),
            )
            if same.exclude(pk=self.instance.pk).exists():
                self.add_error(None, _("The knowledge base holds this fact already: change it or go back."))
        return values


@admin.register(GraphFact)
class GraphFactAdmin(GraphAdmin):
    form = FactForm
    list_display = ("subject", "predicate", "object", "origin", "knowledge_base")
    list_filter: ClassVar[Any] = (("knowledge_base", ScopedRelatedFilter), ("origin", ChoicesDropdownFilter))
    search_fields = ("subject", "predicate", "object")
    search_help_text = gettext_lazy("Search by subject, predicate or object")
    ordering: ClassVar[Any] = ("subject", "predicate", "object", "pk")

    def get_queryset(self, request: HttpRequest) -> QuerySet[GraphFact]:
        rows: QuerySet[GraphFact] = super().get_queryset(request)
        return rows.select_related("knowledge_base", "source_chunk__document")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:  # noqa: ARG002
        fields = ("knowledge_base", "subject", "predicate", "object")
        return (*fields, "origin", "source") if obj else fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*super().get_readonly_fields(request, obj), "origin", "source")

    def save_model(self, request: HttpRequest, obj: GraphFact, form: Any, change: Any) -> None:
        """What a person has changed is theirs: reading its document again leaves it."""
        if form.has_changed():
            obj.origin = Origin.HAND
        super().save_model(request, obj, form, change)

    @column(gettext_lazy("source"))
    def source(self, fact: GraphFact) -> str:
        if fact.source_chunk is None:
            return "-"
        url = reverse("admin:kb_chunk_change", args=[fact.source_chunk_id])
        return format_html('<a href="{}" class="kb-link">{}</a>', url, fact.source_chunk)
