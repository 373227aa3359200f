"""An entity's page: the picture of its neighbours, and what is known of it as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.http import HttpRequest
from django.urls import reverse

from kb.graph.admin.layout import MOST_DRAWN, NARROW, WIDE, Node, Picture, Shape, draw
from kb.graph.models import Entity, FactSource, GraphFact
from kb.graph.services.neighbourhood import Neighbour, facts_of, neighbours_of, sources_of

FACTS_A_PAGE = 25
MOST_RELATIONS = 20
"""Of one neighbour, told in words; the table has all of them."""


@dataclass(frozen=True, slots=True)
class Linked:
    """A node with where it leads and what a screen reader says."""

    node: Node
    url: str
    words: str
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


def relations_in_words(neighbour: Neighbour) -> str:
    """The first relations with arrows: outward where the entity is the subject."""
    told = [f"{'→' if each.outward else '←'} {each.predicate}" for each in neighbour.relations[:MOST_RELATIONS]]
    return ", ".join([*told, "…"] if len(neighbour.relations) > MOST_RELATIONS else told)


def _drawing(kind: str, entity: Entity, neighbours: Sequence[Neighbour], shape: Shape) -> Drawing:
    drawn = neighbours[:MOST_DRAWN]
    picture = draw(entity.name, [(each.name, relations_in_words(each)) for each in drawn], shape)
    links = [
        Linked(node, _url(entity, each), f"{each.name}: {relations_in_words(each)}", each.entity_id is not None)
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
