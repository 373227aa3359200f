"""Graphs as CSV files: the page that shows what one would change before it is taken in, and the download.

An entity's page: the picture of its neighbours, and what is known of it as a table.
"""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from urllib.parse import quote, urlencode

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.widgets import UnfoldAdminFileFieldWidget, UnfoldAdminSelectWidget, UnfoldBooleanSwitchWidget

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.graph.models import Entity, FactSource, GraphFact
from kb.graph.services.entities import Neighbour, facts_of, neighbours_of, sources_of
from kb.graph.services.importing import Effect, ImportPlan, graph_import, graph_import_plan
from kb.graph.services.tables import COLUMNS, MAX_BYTES, Table, graph_export, read_bytes
from kb.web.admin.scoped import IntoKnowledgeBaseForm, IntoKnowledgeBaseView, principal

TABLES = {
    Table.ENTITIES: gettext_lazy("Entities"),
    Table.FACTS: gettext_lazy("Graph facts"),
    Table.CONCEPTS: gettext_lazy("Concepts"),
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
                return self._imported(graph_import(kb, table, given["text"], skip_errors=given["skip_errors"]))
            plan = graph_import_plan(kb, table, given["text"])
        except Rejected as error:
            form.add_error("file", str(error))
            return self.form_invalid(form)
        return self.render_to_response(
            self.get_context_data(form=form, plan=plan, kb=kb, text=given["text"], **_shown(plan))
        )

    def _imported(self, plan: ImportPlan) -> HttpResponse:
        message = _("Imported: %(new)d new, %(changed)d changed, %(same)d as they were, %(error)d left out.")
        messages.success(self.request, message % plan.counts)
        models = {Table.ENTITIES: "entity", Table.FACTS: "graphfact", Table.CONCEPTS: "concept"}
        return HttpResponseRedirect(reverse(f"admin:kb_{models[plan.table]}_changelist"))


def export_view(request: HttpRequest) -> StreamingHttpResponse:
    """A knowledge base's entities, facts or concepts as CSV; `kb` and `table` name what."""
    asked, table = request.GET.get("kb", ""), request.GET.get("table", "")
    rows = KnowledgeBase.objects.visible_to(principal(request))
    kb = rows.filter(pk=asked).first() if asked.isdecimal() and len(asked) < 19 else None
    if kb is None or table not in list(Table):
        raise Http404
    name = "".join("-" if character in '/\\:*?"<>|' else character for character in kb.name)
    response = StreamingHttpResponse(graph_export(kb, Table(table)), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(f'{name}.{table}.csv')}"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _shown(plan: ImportPlan) -> dict[str, Any]:
    """Errors first: they are what has to be looked at."""
    order = {Effect.ERROR: 0, Effect.CHANGED: 1, Effect.NEW: 2, Effect.SAME: 3}
    rows = sorted(plan.rows, key=lambda row: (order[row.effect], row.line))[:ROWS_SHOWN]
    return {
        "shown_rows": [{"row": row, "effect": EFFECTS[row.effect]} for row in rows],
        "counts": [(EFFECTS[effect], plan.count(effect)) for effect in order],
        "not_shown": len(plan.rows) - len(rows),
        "can_import": plan.count(Effect.NEW) + plan.count(Effect.CHANGED) > 0,
    }


MOST_DRAWN = 40
ROW = 44.0
"""Of a label's two lines, the name and its relations."""
MARGIN = 14.0
NAME_SIZE, RELATION_SIZE = 14.0, 12.0
GAP = 12.0
"""Between a dot and its label."""
_WIDE = frozenset("WF")
_NARROW_CHARACTER, _WIDE_CHARACTER = 0.58, 1.0
_LEAST_BEND = 0.35


@dataclass(frozen=True, slots=True)
class Shape:
    """How a picture is laid out: `sides` is 2 for labels on both sides of the centre, 1 for a narrow screen."""

    width: float
    sides: int
    centre_x: float
    radius: float
    centre_width: float


WIDE = Shape(width=860.0, sides=2, centre_x=430.0, radius=170.0, centre_width=200.0)
NARROW = Shape(width=340.0, sides=1, centre_x=52.0, radius=84.0, centre_width=100.0)


@dataclass(frozen=True, slots=True)
class Node:
    """A neighbour's dot with its label, which is on the side away from the centre.

    Attributes:
        left, top, width, height: of the label with its dot, as a target for pointers.
        anchor: of the label's text, as SVG calls it.
    """

    x: float
    y: float
    text_x: float
    anchor: str
    name: str
    relation: str
    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Picture:
    width: float
    height: float
    centre_x: float
    centre_y: float
    centre_left: float
    centre_width: float
    name: str
    nodes: tuple[Node, ...]


def draw(name: str, neighbours: Sequence[tuple[str, str]], shape: Shape) -> Picture:
    """Places neighbours, each a name with its relations in words, on an arc around the entity.

    Each label has a row of its own on its side, so that none covers another; with more than fit beside each other the arc
    grows higher, not the labels smaller.
    """
    drawn = neighbours[:MOST_DRAWN]
    right = math.ceil(len(drawn) / shape.sides)
    height = max(3, right) * ROW + 2 * MARGIN
    nodes = [
        *_side(drawn[:right], 1, height, shape),
        *_side(drawn[right:], -1, height, shape),
    ]
    return Picture(
        shape.width,
        height,
        shape.centre_x,
        height / 2,
        shape.centre_x - shape.centre_width / 2,
        shape.centre_width,
        shortened(name, shape.centre_width - 2 * GAP, NAME_SIZE),
        tuple(nodes),
    )


def text_width(text: str, size: float) -> float:
    """An estimate of a text's width: Chinese characters are as wide as they are high."""
    return size * sum(map(_character_width, text))


def _character_width(character: str) -> float:
    return _WIDE_CHARACTER if unicodedata.east_asian_width(character) in _WIDE else _NARROW_CHARACTER


def shortened(text: str, width: float, size: float) -> str:
    """The text, or as much of its beginning as fits, with an ellipsis."""
    kept, room = 0, width / size
    ends = room - _character_width("…")
    for place, used in enumerate(accumulate(map(_character_width, text)), start=1):
        if used > room:
            return text[:kept].rstrip() + "…"
        if used <= ends:
            kept = place
    return text


def _side(neighbours: Sequence[tuple[str, str]], direction: int, height: float, shape: Shape) -> list[Node]:
    top = (height - len(neighbours) * ROW) / 2
    return [
        _node(name, relation, top + (row + 0.5) * ROW, direction, height, shape)
        for row, (name, relation) in enumerate(neighbours)
    ]


def _node(name: str, relation: str, y: float, direction: int, height: float, shape: Shape) -> Node:
    away = (y - height / 2) / (height / 2)
    bend = max(_LEAST_BEND, math.sqrt(max(0.0, 1.0 - away * away)))
    x = shape.centre_x + direction * shape.radius * bend
    edge = shape.width - MARGIN if direction > 0 else MARGIN
    room = abs(edge - x) - GAP
    short_name, short_relation = shortened(name, room, NAME_SIZE), shortened(relation, room, RELATION_SIZE)
    width = max(text_width(short_name, NAME_SIZE), text_width(short_relation, RELATION_SIZE)) + 2 * GAP
    width = min(width, room + GAP + MARGIN)
    left = x - GAP / 2 if direction > 0 else x + GAP / 2 - width
    return Node(
        x=round(x, 1),
        y=round(y, 1),
        text_x=round(x + direction * GAP, 1),
        anchor="start" if direction > 0 else "end",
        name=short_name,
        relation=short_relation,
        left=round(left, 1),
        top=round(y - ROW / 2 + 2, 1),
        width=round(width, 1),
        height=ROW - 4,
    )


FACTS_A_PAGE = 25
MOST_RELATIONS = 20
"""Of one neighbour, told in words; the table has all of them."""


@dataclass(frozen=True, slots=True)
class Linked:
    """A node with where it leads and what a screen reader says."""

    node: Node
    url: str
    description: str
    is_entity: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    kind: str
    picture: Picture
    links: Sequence[Linked]


@dataclass(frozen=True, slots=True)
class FactRow:
    fact: GraphFact
    url: str
    sources: Sequence[FactSource]


def entity_context(request: HttpRequest, entity: Entity) -> Mapping[str, Any]:
    """What the page of an entity shows of its surroundings."""
    neighbours = neighbours_of(entity)
    page = Paginator(facts_of(entity).select_related("source_chunk__document"), FACTS_A_PAGE).get_page(
        request.GET.get("facts")
    )
    return {
        "drawings": [_drawing("wide", entity, neighbours, WIDE), _drawing("narrow", entity, neighbours, NARROW)],
        "neighbour_count": len(neighbours),
        "not_drawn": max(0, len(neighbours) - MOST_DRAWN),
        "facts_page": page,
        "fact_rows": _rows(list(page.object_list)),
    }


def relations_text(neighbour: Neighbour) -> str:
    """The first relations with arrows: outward where the entity is the subject."""
    told = [f"{'→' if each.outward else '←'} {each.predicate}" for each in neighbour.relations[:MOST_RELATIONS]]
    return ", ".join([*told, "…"] if len(neighbour.relations) > MOST_RELATIONS else told)


def _drawing(kind: str, entity: Entity, neighbours: Sequence[Neighbour], shape: Shape) -> Drawing:
    drawn = neighbours[:MOST_DRAWN]
    picture = draw(entity.name, [(each.name, relations_text(each)) for each in drawn], shape)
    links = [
        Linked(node, _url(entity, each), f"{each.name}: {relations_text(each)}", each.entity_id is not None)
        for node, each in zip(picture.nodes, drawn, strict=True)
    ]
    return Drawing(kind, picture, links)


def _url(entity: Entity, neighbour: Neighbour) -> str:
    """The page of an entity; of a text that is none, the facts that name it."""
    if neighbour.entity_id is not None:
        return reverse("admin:kb_entity_change", args=[neighbour.entity_id])
    query = urlencode({"q": neighbour.name, "knowledge_base__id__exact": entity.knowledge_base_id})
    return f"{reverse('admin:kb_graphfact_changelist')}?{query}"


def _rows(facts: Sequence[GraphFact]) -> list[FactRow]:
    sources = sources_of(facts)
    rows = []
    for fact in facts:
        found = [source for source in sources.get(fact.pk, []) if source.chunk is not None]
        if not found and fact.source_chunk is not None:
            found = [FactSource(fact=fact, document=fact.source_chunk.document, chunk=fact.source_chunk)]
        rows.append(FactRow(fact, reverse("admin:kb_graphfact_change", args=[fact.pk]), found[:3]))
    return rows
