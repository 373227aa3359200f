"""Entities of the graph: their list, their pages with a picture of their facts, and graphs from and to CSV files."""

from collections.abc import Sequence
from typing import Any, ClassVar, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db.models import Prefetch, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.shortcuts import render
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.http import content_disposition_header
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.http import require_GET
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldBooleanSwitchWidget,
)

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.base.text import file_name, normalized_key
from kb.graph.admin.picture import MOST_DRAWN, NARROW, WIDE, Shape, draw
from kb.graph.admin.rows import GraphAdmin
from kb.graph.models import Entity, EntityName, FactSource
from kb.graph.services.entities import (
    Neighbour,
    entity_check,
    entity_merge,
    entity_split,
    entity_update,
    fact_counts,
    facts_of,
    neighbours_of,
    plan_merge,
)
from kb.graph.services.tables import (
    COLUMNS,
    MAX_BYTES,
    Effect,
    Table,
    graph_export,
    graph_import,
    graph_import_plan,
    read_bytes,
)
from kb.web.admin.navigation import add_hub_tab
from kb.web.admin.scoped import (
    BY_KB,
    Empty,
    IntoKnowledgeBaseForm,
    IntoKnowledgeBaseView,
    ScopedRelatedFilter,
    column,
    principal,
    reporting_in,
    row_id,
    row_ids,
)

LISTS = {
    Table.ENTITIES: "admin:kb_entity_changelist",
    Table.FACTS: "admin:kb_graphfact_changelist",
    Table.CONCEPTS: "admin:kb_concept_changelist",
}
ROWS_SHOWN = 100


class GraphImportForm(IntoKnowledgeBaseForm):
    table = forms.ChoiceField(
        label=gettext_lazy("What the file holds"), choices=Table.choices, widget=UnfoldAdminSelectWidget
    )
    file = forms.FileField(
        label=gettext_lazy("CSV file"),
        required=False,
        widget=UnfoldAdminFileFieldWidget({"accept": ".csv,.tsv,.txt,text/csv"}),
    )
    skip_errors = forms.BooleanField(
        label=gettext_lazy("Leave lines with errors out"), required=False, widget=UnfoldBooleanSwitchWidget
    )
    # What was shown before is what is imported.
    text = forms.CharField(required=False, strip=False, widget=forms.HiddenInput)

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        file = values.get("file")
        if file is None and not values.get("text"):
            self.add_error("file", _("Choose a file."))
        elif file is not None:
            with reporting_in(self, "file", Rejected):
                values["text"] = read_bytes(file.read(MAX_BYTES + 1))
        return values


class GraphImportView(IntoKnowledgeBaseView):
    title = gettext_lazy("Import a graph")
    template_name = "graph/import.html"
    form_class = GraphImportForm

    def get_initial(self) -> dict[str, Any]:
        return super().get_initial() | {"table": self.request.GET.get("table", "")}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(
            **kwargs,
            columns=[(table.label, ", ".join(names)) for table, names in COLUMNS.items()],
            tables=Table.choices,
            visible=KnowledgeBase.objects.visible_to(principal(self.request)),
            has_knowledge_base=self.writable.exists(),
        )

    def form_valid(self, form: GraphImportForm) -> HttpResponse:
        given = form.cleaned_data
        kb, table = given["knowledge_base"], Table(given["table"])
        with reporting_in(form, "file", Rejected):
            if "confirm" in self.request.POST:
                imported = graph_import(kb, table, given["text"], skip_errors=given["skip_errors"])
                message = _("Imported: %(new)d new, %(changed)d changed, %(same)d as they were, %(error)d left out.")
                messages.success(self.request, message % imported.counts)
                return HttpResponseRedirect(f"{reverse(LISTS[table])}?{BY_KB}={kb.pk}")
            plan = graph_import_plan(kb, table, given["text"])
            order = [Effect.ERROR, Effect.CHANGED, Effect.NEW, Effect.SAME]  # what has to be looked at comes first
            context = self.get_context_data(
                form=form,
                plan=plan,
                kb=kb,
                text=given["text"],
                shown_rows=sorted(plan.rows, key=lambda row: (order.index(row.effect), row.line))[:ROWS_SHOWN],
                counts=[(effect.label, plan.counts[effect]) for effect in order],
                not_shown=max(0, len(plan.rows) - ROWS_SHOWN),
                can_import=plan.counts[Effect.NEW] + plan.counts[Effect.CHANGED] > 0,
            )
            return self.render_to_response(context)
        return self.form_invalid(form)


def export_view(request: HttpRequest) -> StreamingHttpResponse:
    """A knowledge base's entities, facts or concepts as CSV; `kb` and `table` name what."""
    table = request.GET.get("table", "")
    kb = KnowledgeBase.objects.visible_to(principal(request)).filter(pk=row_id(request.GET.get("kb", ""))).first()
    if kb is None or table not in Table.values:
        raise Http404
    disposition = content_disposition_header(as_attachment=True, filename=f"{file_name(kb.name)}.{table}.csv")
    return StreamingHttpResponse(
        graph_export(kb, Table(table)),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": disposition},
    )


# Of one neighbour, in its label; the table has all of them.
MOST_RELATIONS = 20


def _picture(entity: Entity, drawn: Sequence[Neighbour], shape: Shape) -> dict[str, Any]:
    """The picture of an entity, whose nodes lead to pages of entities; of a text that is none, to the facts that name it."""
    texts = []
    for each in drawn:
        # Outward where the entity is the subject.
        arrows = [f"{'→' if outward else '←'} {predicate}" for predicate, outward in each.relations]
        arrows[MOST_RELATIONS:] = ["…"] if len(arrows) > MOST_RELATIONS else []
        texts.append((each.name, ", ".join(arrows)))
    picture = draw(entity.name, texts, shape)
    for node, neighbour, (name, relations) in zip(picture["nodes"], drawn, texts, strict=True):
        query = urlencode({"q": name, "knowledge_base__id__exact": entity.knowledge_base_id})
        url = f"{reverse('admin:kb_graphfact_changelist')}?{query}"
        if neighbour.entity_id:
            url = reverse("admin:kb_entity_change", args=[neighbour.entity_id])
        node |= {"is_entity": bool(neighbour.entity_id), "description": f"{name}: {relations}", "url": url}
    return picture


class EntityForm(forms.ModelForm):  # type: ignore[type-arg]
    aliases = forms.CharField(
        label=gettext_lazy("Other names"),
        required=False,
        widget=UnfoldAdminTextareaWidget({"rows": 4}),
        help_text=gettext_lazy("One a line. Queries and documents that use one of them mean this entity."),
    )

    class Meta:
        model = Entity
        fields = ("knowledge_base", "name", "kind", "description")
        widgets: ClassVar[Any] = {"description": UnfoldAdminTextareaWidget({"rows": 3})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk and "aliases" in self.fields:
            self.fields["aliases"].initial = "\n".join(self.instance.aliases)

    def clean_aliases(self) -> list[str]:
        return [line.strip() for line in self.cleaned_data["aliases"].splitlines() if line.strip()]

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        kb = values.get("knowledge_base") or (self.instance.pk and self.instance.knowledge_base)
        if kb and "name" in values and "aliases" in values:
            entity = self.instance if self.instance.pk else Entity(knowledge_base=kb)
            with reporting_in(self, "name", Rejected):
                entity_check(entity, values["name"], values["aliases"])
        return values

    def validate_unique(self) -> None:
        """The names are checked by their keys, with a sentence that tells whose a name is."""


class KindFilter(admin.SimpleListFilter):
    title = gettext_lazy("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        rows = Entity.objects.visible_to(principal(request)).exclude(kind="").order_by("kind")
        return [(kind, kind) for kind in rows.values_list("kind", flat=True).distinct()[:60]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        return queryset.filter(kind=self.value()) if self.value() else queryset


@admin.register(Entity)
class EntityAdmin(GraphAdmin):
    empty = Empty(
        gettext_lazy(
            "An entity is a thing that documents speak of, with all its names. A chat model finds them where the knowledge "
            "base’s settings switch it on; a CSV file brings them in; or add them by hand."
        ),
        gettext_lazy("For example the product “TH-01”, also named “thermostat”."),
        "category",
        "kb_entity_import",
        gettext_lazy("Import from CSV"),
    )
    form = EntityForm
    list_display = ("shown_name", "kind", "facts", "knowledge_base", "origin")
    list_filter: ClassVar[Any] = (
        ("knowledge_base", ScopedRelatedFilter),
        KindFilter,
        ("origin", ChoicesDropdownFilter),
    )
    search_fields = ("names__text",)
    search_help_text = gettext_lazy("Search by any of its names")
    fields = ("knowledge_base", "name", "aliases", "kind", "description")
    list_before_template = "graph/list.html"
    change_form_outer_before_template = "graph/panel.html"
    change_form_after_template = "graph/known.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Entity]:
        return super().get_queryset(request).select_related("knowledge_base").prefetch_related("names")

    def completed(self, request: HttpRequest, rows: Any) -> Any:  # noqa: ARG002
        """Counts the facts of the entities that are shown, and of no others."""
        counts = fact_counts([entity.pk for entity in rows])
        for entity in rows:
            entity.fact_count = counts.get(entity.pk, 0)
        return rows

    def get_urls(self) -> list[URLPattern]:
        return [
            self.page("import/", GraphImportView.as_view(model_admin=self), "import"),
            self.page("export/", require_GET(export_view), "export"),
            self.row_page("merge", self.merge_view, "GET", "HEAD", "POST"),
            self.row_page("split", self.split_view, "GET", "HEAD", "POST"),
            *super().get_urls(),
        ]

    def merge_view(self, request: HttpRequest, entity: Entity) -> HttpResponse:
        """Search for the other entity, then what merging the two would do, then the merge."""
        others = Entity.objects.filter(knowledge_base=entity.knowledge_base_id).exclude(pk=entity.pk)
        given = request.POST if request.method == "POST" else request.GET
        chosen = others.filter(pk=row_id(given.get("with", ""))).first()
        if request.method == "POST" and chosen is not None:
            entity_merge(entity, chosen)
            message = _("“%(merged)s” is one with “%(kept)s” now.") % {"merged": chosen.name, "kept": entity.name}
            return self._changed(request, entity, message)
        query = request.GET.get("q", "").strip()
        named = EntityName.objects.filter(entity__in=others, key__contains=normalized_key(query)).values("entity")
        offered = others.filter(pk__in=named).prefetch_related("names").order_by("name")[:20]
        context = {"query": query, "offered": offered, "merged": chosen, "facts": chosen and plan_merge(entity, chosen)}
        return self._page(request, entity, "merge", _("Merge another entity into “%(name)s”"), context)

    def split_view(self, request: HttpRequest, entity: Entity) -> HttpResponse:
        """Which name becomes an entity of its own, and which facts go with it."""
        context: dict[str, Any] = {"aliases": entity.aliases, "facts": facts_of(entity)[:200]}
        if request.method == "POST":
            try:
                part = entity_split(entity, request.POST.get("alias", ""), row_ids(request.POST.getlist("fact")))
            except Rejected as rejected:
                context["error"] = str(rejected)
            else:
                return self._changed(request, part, _("“%(name)s” is an entity of its own now.") % {"name": part.name})
        return self._page(request, entity, "split", _("Split a name off “%(name)s”"), context)

    def _changed(self, request: HttpRequest, entity: Entity, message: str) -> HttpResponse:
        self.message_user(request, message, messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:kb_entity_change", args=[entity.pk]))

    def _page(
        self, request: HttpRequest, entity: Entity, name: str, title: str, context: dict[str, Any]
    ) -> HttpResponse:
        common = {
            "title": title % {"name": entity.name},
            "opts": self.opts,
            "entity": entity,
            "entity_url": reverse("admin:kb_entity_change", args=[entity.pk]),
        }
        return render(request, f"graph/{name}.html", self.admin_site.each_context(request) | common | context)

    def form_context(self, request: HttpRequest, row: Entity) -> dict[str, Any]:
        neighbours = neighbours_of(row)
        found = FactSource.objects.exclude(chunk=None).select_related("document", "chunk").order_by("pk")
        facts = facts_of(row).select_related("source_chunk__document").prefetch_related(Prefetch("sources", found))
        return super().form_context(request, row) | {
            "pictures": [_picture(row, neighbours[:MOST_DRAWN], shape) for shape in (WIDE, NARROW)],
            "neighbour_count": len(neighbours),
            "not_drawn": max(0, len(neighbours) - MOST_DRAWN),
            "facts_page": Paginator(facts, 25).get_page(request.GET.get("facts")),
            "entity": row,
            "may_change": self.has_change_permission(request, row),
            "show_save_and_add_another": False,
        }

    # -- Writes ----------------------------------------------------------------------------------------------------------
    def save_model(self, request: HttpRequest, obj: Entity, form: Any, change: Any) -> None:  # noqa: ARG002
        values = {name: form.cleaned_data[name] for name in ("name", "aliases", "kind", "description")}
        entity_update(Entity.objects.get(pk=obj.pk) if change else obj, **values)

    def delete_model(self, request: HttpRequest, obj: Entity) -> None:
        count = fact_counts([obj.pk]).get(obj.pk, 0)
        obj.delete()
        if count:
            message = ngettext("%(count)d fact that names it stays.", "%(count)d facts that name it stay.", count)
            self.message_user(request, message % {"count": count}, messages.INFO)

    # -- Columns ---------------------------------------------------------------------------------------------------------
    @column(gettext_lazy("name"), ordering="name")
    def shown_name(self, entity: Entity) -> str:
        others = Truncator(" · ".join(entity.aliases)).chars(120)
        return format_html('<span class="kb-name">{}</span><small class="kb-block">{}</small>', entity.name, others)

    @column(gettext_lazy("facts"))
    def facts(self, entity: Any) -> int:
        return cast(int, entity.fact_count)


add_hub_tab("entities", gettext_lazy("Entities"), order=20, under="knowledge", model=Entity)
