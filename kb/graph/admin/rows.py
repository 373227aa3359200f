"""Concepts and facts of the graph, and how far documents are read for it, what went wrong, and another attempt."""

from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AutocompleteSelect
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.timezone import localtime
from django.utils.translation import gettext as _, gettext_lazy, ngettext_lazy
from unfold.admin import TabularInline
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.widgets import UnfoldAdminTextareaWidget

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import holding_knowledge_bases
from kb.base.messages import shown
from kb.base.text import normalized_key
from kb.content.models import Document
from kb.graph.models import Concept, ConceptTerm, GraphExtraction, GraphFact, Origin
from kb.graph.services.writing import graph_request
from kb.web.admin.navigation import add_hub_tab
from kb.web.admin.scoped import (
    Empty,
    KnowledgeBaseRowAdmin,
    OwnRowsFormSet,
    ReadOnlyAdmin,
    ScopedModelAdmin,
    ScopedRelatedFilter,
    column,
)
from kb.web.admin.site import add_part


class GraphAdmin(KnowledgeBaseRowAdmin):
    """Rows of a graph: several are deleted under the locks of their knowledge bases."""

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        with holding_knowledge_bases(set(queryset.order_by().values_list("knowledge_base_id", flat=True))):
            super().delete_queryset(request, queryset)


class ParentWidget(AutocompleteSelect):
    """Offers concepts of one knowledge base, once it is known."""

    knowledge_base_id: int | None = None

    def get_url(self) -> str:
        url = super().get_url()
        return url if self.knowledge_base_id is None else f"{url}?knowledge_base={self.knowledge_base_id}"


class VisibleField(forms.CharField):
    """A text that can be compared: it does not hold invisible characters only."""

    def validate(self, value: str) -> None:
        super().validate(value)
        if not normalized_key(value):
            raise forms.ValidationError(_("Type some visible characters."))


class ConceptForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Concept
        fields = ("knowledge_base", "name", "description", "parent")
        field_classes: ClassVar[Any] = {"name": VisibleField}
        widgets: ClassVar[Any] = {"description": UnfoldAdminTextareaWidget({"rows": 3})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "parent" in self.fields and self.instance.pk:
            field = cast("forms.ModelChoiceField[Concept]", self.fields["parent"])
            of_same_base = field.queryset.filter(knowledge_base=self.instance.knowledge_base_id)  # type: ignore[union-attr]
            field.queryset = of_same_base.exclude(pk=self.instance.pk)
            cast(Any, field.widget).widget.knowledge_base_id = self.instance.knowledge_base_id

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        kb = values.get("knowledge_base") or self.instance.knowledge_base_id
        named = Concept.objects.filter(knowledge_base=kb, name=values.get("name")).exclude(pk=self.instance.pk)
        if kb and named.exists():
            message = _("The knowledge base has a concept named “%(name)s” already: choose another name.")
            self.add_error("name", message % {"name": values["name"]})
        return values


class TermForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = ConceptTerm
        fields = ("text", "kind")
        field_classes: ClassVar[Any] = {"text": VisibleField}


class TermFormSet(OwnRowsFormSet):
    def clean(self) -> None:
        """A concept has each term once; the stored ones count too, since they are changed one by one."""
        super().clean()
        stored = {form.instance.pk: form.instance.key for form in self.initial_forms}
        met = {normalized_key(self.instance.name)}
        for form in self.forms:
            text = form.cleaned_data.get("text") if form.is_valid() else None
            if not text or form.cleaned_data.get("DELETE"):
                continue
            key = normalized_key(text)
            of_others = {other for pk, other in stored.items() if pk != form.instance.pk}
            if key in met or (key in of_others and key != stored.get(form.instance.pk)):
                message = _("“%(term)s” is a term of this concept already: delete one of the two and save, then go on.")
                form.add_error("text", message % {"term": text})
            met.add(key)


class TermInline(TabularInline):  # type: ignore[misc]
    model = ConceptTerm
    form = TermForm
    formset = TermFormSet
    fields = ("text", "kind")
    extra = 1
    verbose_name = gettext_lazy("synonym or abbreviation")
    verbose_name_plural = gettext_lazy("Synonyms and abbreviations: other words for it in texts and questions")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ConceptTerm]:
        return cast("QuerySet[ConceptTerm]", super().get_queryset(request).exclude(kind=ConceptTerm.Kind.NAME))

    def formfield_for_choice_field(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        kwargs["choices"] = [choice for choice in ConceptTerm.Kind.choices if choice[0] != ConceptTerm.Kind.NAME]
        return super().formfield_for_choice_field(db_field, request, **kwargs)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._concepts().has_view_permission(request, obj)

    def _may_change(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._concepts().has_change_permission(request, obj)

    has_add_permission = has_change_permission = has_delete_permission = _may_change

    def _concepts(self) -> ScopedModelAdmin:
        return cast(ScopedModelAdmin, self.admin_site.get_model_admin(Concept))


@admin.register(Concept)
class ConceptAdmin(GraphAdmin):
    empty = Empty(
        gettext_lazy(
            "A concept gathers the words for one thing: a query with one of them finds passages with the others."
        ),
        gettext_lazy("For example “lodging”: hotel, accommodation, guest house."),
        "hub",
    )
    form = ConceptForm
    inlines = (TermInline,)
    list_display = ("name", "other_names", "parent", "knowledge_base")
    list_select_related: ClassVar[Any] = ("knowledge_base", "parent")
    search_fields = ("name", "terms__text")
    search_help_text = gettext_lazy("Search by name, synonym or abbreviation")
    fields = ("knowledge_base", "name", "parent", "description")
    autocomplete_fields = ("parent",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Concept]:
        return super().get_queryset(request).prefetch_related("terms")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """The choice of a wider concept asks for those of its knowledge base."""
        rows, has_duplicates = super().get_search_results(request, queryset, search_term)
        kb_id = request.GET.get("knowledge_base", "")
        return (rows.filter(knowledge_base=kb_id) if kb_id.isdecimal() else rows), has_duplicates

    def formfield_for_foreignkey(
        self, db_field: "models.ForeignKey[Any, Any]", request: HttpRequest, **kwargs: Any
    ) -> "forms.ModelChoiceField[Any] | None":
        if db_field.name == "parent":
            kwargs["widget"] = ParentWidget(db_field, self.admin_site)
        return cast("forms.ModelChoiceField[Any] | None", super().formfield_for_foreignkey(db_field, request, **kwargs))

    @column(gettext_lazy("synonyms and abbreviations"))
    def other_names(self, concept: Concept) -> str:
        return Truncator(" · ".join(term.text for term in concept.other_terms)).chars(120) or "-"


class FactForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = GraphFact
        fields = ("knowledge_base", "subject", "predicate", "object")
        field_classes: ClassVar[Any] = {"subject": VisibleField, "object": VisibleField}

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        kb = values.get("knowledge_base") or (self.instance.pk and self.instance.knowledge_base)
        fact = GraphFact(**{"pk": self.instance.pk, "knowledge_base": kb or None, **values})
        if kb and values.keys() >= {"subject", "predicate", "object"} and fact.is_stated_already():
            self.add_error(None, _("The knowledge base holds this fact already: change it or go back."))
        return values


@admin.register(GraphFact)
class GraphFactAdmin(GraphAdmin):
    empty = Empty(
        gettext_lazy("A fact joins two things by a relation; answers cite it beside the passages."),
        gettext_lazy("For example “TH-01” — “warranty” — “24 months”."),
        "share",
    )
    form = FactForm
    list_display = ("subject", "predicate", "object", "origin", "knowledge_base")
    list_filter: ClassVar[Any] = (("knowledge_base", ScopedRelatedFilter), ("origin", ChoicesDropdownFilter))
    search_fields = ("subject", "predicate", "object")
    search_help_text = gettext_lazy("Search by subject, predicate or object")
    ordering: ClassVar[Any] = ("subject", "predicate", "object", "pk")

    def get_queryset(self, request: HttpRequest) -> QuerySet[GraphFact]:
        return super().get_queryset(request).select_related("knowledge_base", "source_chunk__document")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:  # noqa: ARG002
        return (*FactForm.Meta.fields, "origin", "source") if obj else FactForm.Meta.fields

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


Status = GraphExtraction.Status


@admin.register(GraphExtraction)
class GraphExtractionAdmin(ReadOnlyAdmin):
    """Rows that workers write; the action on the list that reads a document again needs the right to change it."""

    list_display = fields = ("document_link", "state", "passages", "fact_count", "knowledge_base", "finished_at")
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
        asked = list(self.only_granted(request, queryset, "editable_by").select_related("document"))
        for each in asked:
            graph_request(each.document)
        message = ngettext_lazy(
            "%(count)d document is read again; passages that have not changed are taken as they were read.",
            "%(count)d documents are read again; passages that have not changed are taken as they were read.",
            "count",
        )
        self.report(request, message, len(asked))

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
    """How many of a knowledge base's documents could not be read for the graph, as a link to them; blank: none."""
    troubled = GraphExtraction.objects.filter(document__knowledge_base=kb).exclude(error="").count()
    if not troubled:
        return ""
    message = ngettext_lazy(
        "%(count)d document could not be read for the graph.",
        "%(count)d documents could not be read for the graph.",
        "count",
    )
    url = f"{reverse('admin:kb_graphextraction_changelist')}?document__knowledge_base__id__exact={kb.pk}"
    return format_html('<a href="{}" class="kb-link kb-bad">{}</a>', url, message % {"count": troubled})


COUNTED = {
    "unusable_count": ngettext_lazy(
        "The model gave no usable answer for %(count)d passage.",
        "The model gave no usable answer for %(count)d passages.",
        "count",
    ),
    "skipped_count": ngettext_lazy(
        "%(count)d passage was not read: the document is longer than GRAPH_LLM_MAX_CHUNKS.",
        "%(count)d passages were not read: the document is longer than GRAPH_LLM_MAX_CHUNKS.",
        "count",
    ),
    "refused_count": ngettext_lazy(
        "%(count)d finding was refused: it does not stand in the passage.",
        "%(count)d findings were refused: they do not stand in the passage.",
        "count",
    ),
}


def _notes(extraction: GraphExtraction) -> list[str]:
    notes = [shown(extraction.error)] if extraction.error else []
    if extraction.error and extraction.status == Status.WAITING and extraction.due_at:
        notes.append(
            _("Attempt %(number)d failed; the next one is at %(time)s.")
            % {"number": extraction.attempts, "time": date_format(localtime(extraction.due_at), "TIME_FORMAT")}
        )
    if extraction.status == Status.FAILED:
        notes.append(_("It is not tried again by itself: fix what is wrong, then choose “Read again”."))
    counts = ((getattr(extraction, name), message) for name, message in COUNTED.items())
    return [*notes, *(str(message % {"count": count}) for count, message in counts if count)]


add_part(Document, context=lambda _request, document: {"graph_state": document_graph_state(document)})
add_part(KnowledgeBase, context=lambda _request, kb: {"graph_state": base_graph_state(kb) if kb.extract_graph else ""})

add_hub_tab("knowledge", gettext_lazy("Knowledge"), order=30)
add_hub_tab("concepts", gettext_lazy("Concepts and synonyms"), order=10, under="knowledge", model=Concept)
add_hub_tab(
    "facts", gettext_lazy("Facts"), order=30, under="knowledge", model=GraphFact, covers=("kb_graphextraction_",)
)
