"""Graphs as CSV files: the page that shows what a file would change before it is imported, and the download."""

from typing import Any
from urllib.parse import quote

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.widgets import UnfoldAdminFileFieldWidget, UnfoldAdminSelectWidget, UnfoldBooleanSwitchWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
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
from kb.web.admin.scoped import IntoKnowledgeBaseForm, IntoKnowledgeBaseView, principal, row_id

TABLES = {
    Table.ENTITIES: gettext_lazy("Entities"),
    Table.FACTS: gettext_lazy("Graph facts"),
    Table.CONCEPTS: gettext_lazy("Concepts"),
}
LISTS = {
    Table.ENTITIES: "admin:kb_entity_changelist",
    Table.FACTS: "admin:kb_graphfact_changelist",
    Table.CONCEPTS: "admin:kb_concept_changelist",
}
EFFECTS = {
    Effect.NEW: gettext_lazy("new"),
    Effect.CHANGED: gettext_lazy("changed"),
    Effect.SAME: gettext_lazy("as it is"),
    Effect.ERROR: gettext_lazy("error"),
}
ROWS_SHOWN = 100


class GraphImportForm(IntoKnowledgeBaseForm):
    knowledge_base = forms.ModelChoiceField(
        KnowledgeBase.objects.none(),
        label=gettext_lazy("Knowledge base"),
        widget=UnfoldAdminSelectWidget,
        empty_label=gettext_lazy("Select value"),
    )
    table = forms.ChoiceField(
        label=gettext_lazy("What the file holds"),
        choices=[(table.value, message) for table, message in TABLES.items()],
        widget=UnfoldAdminSelectWidget,
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
            try:
                values["text"] = read_bytes(file.read(MAX_BYTES + 1))
            except Rejected as error:
                self.add_error("file", str(error))
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
            opts=self.model_admin.opts,
            columns=[(TABLES[table], ", ".join(names)) for table, names in COLUMNS.items()],
            tables=[(table.value, message) for table, message in TABLES.items()],
            visible=KnowledgeBase.objects.visible_to(principal(self.request)),
            has_knowledge_base=self.writable.exists(),
        )

    def form_valid(self, form: GraphImportForm) -> HttpResponse:
        given = form.cleaned_data
        kb, table = given["knowledge_base"], Table(given["table"])
        try:
            if "confirm" in self.request.POST:
                imported = graph_import(kb, table, given["text"], skip_errors=given["skip_errors"])
                message = _("Imported: %(new)d new, %(changed)d changed, %(same)d as they were, %(error)d left out.")
                messages.success(self.request, message % imported.counts)
                return HttpResponseRedirect(reverse(LISTS[table]))
            plan = graph_import_plan(kb, table, given["text"])
        except Rejected as error:
            form.add_error("file", str(error))
            return self.form_invalid(form)
        order = [Effect.ERROR, Effect.CHANGED, Effect.NEW, Effect.SAME]  # what has to be looked at comes first
        rows = sorted(plan.rows, key=lambda row: (order.index(row.effect), row.line))[:ROWS_SHOWN]
        context = self.get_context_data(
            form=form,
            plan=plan,
            kb=kb,
            text=given["text"],
            shown_rows=[{"row": row, "effect": EFFECTS[row.effect]} for row in rows],
            counts=[(EFFECTS[effect], plan.counts[effect]) for effect in order],
            not_shown=len(plan.rows) - len(rows),
            can_import=plan.counts[Effect.NEW] + plan.counts[Effect.CHANGED] > 0,
        )
        return self.render_to_response(context)


def export_view(request: HttpRequest) -> StreamingHttpResponse:
    """A knowledge base's entities, facts or concepts as CSV; `kb` and `table` name what."""
    table = request.GET.get("table", "")
    kb = KnowledgeBase.objects.visible_to(principal(request)).filter(pk=row_id(request.GET.get("kb", ""))).first()
    if kb is None or table not in list(Table):
        raise Http404
    name = "".join("-" if character in '/\\:*?"<>|' else character for character in kb.name)
    response = StreamingHttpResponse(graph_export(kb, Table(table)), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(f'{name}.{table}.csv')}"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
