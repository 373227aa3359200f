"""Making two entities one, and one entity two."""

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.base.errors import Rejected
from kb.base.text import normalized_key
from kb.graph.models import Entity, EntityName
from kb.graph.services.entities import aliases_of, entity_merge, entity_split, plan_merge
from kb.graph.services.neighbourhood import facts_of
from kb.web.admin.scoped import ScopedModelAdmin

OFFERED = 20
MOST_FACTS = 200


def merge_view(model_admin: ScopedModelAdmin, request: HttpRequest, entity: Entity) -> HttpResponse:
    """Search for the other entity, then what merging the two would do, then the merge."""
    others = Entity.objects.filter(knowledge_base=entity.knowledge_base_id).exclude(pk=entity.pk)
    chosen = _chosen(others, (request.POST if request.method == "POST" else request.GET).get("with", ""))
    if request.method == "POST" and chosen is not None:
        done = entity_merge(entity, chosen)
        message = _("“%(merged)s” is one with “%(kept)s” now.") % {"merged": done.merged.name, "kept": done.kept.name}
        model_admin.message_user(request, message, messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:kb_entity_change", args=[entity.pk]))
    query = request.GET.get("q", "").strip()
    context = {
        "query": query,
        "offered": None if chosen else _offered(others, query),
        "plan": plan_merge(entity, chosen) if chosen else None,
    }
    return _page(model_admin, request, entity, "merge", _("Merge another entity into “%(name)s”"), context)


def split_view(model_admin: ScopedModelAdmin, request: HttpRequest, entity: Entity) -> HttpResponse:
    """Which name becomes an entity of its own, and which facts go with it."""
    error = ""
    if request.method == "POST":
        fact_ids = [int(each) for each in request.POST.getlist("fact") if each.isascii() and each.isdigit()]
        try:
            part = entity_split(entity, request.POST.get("alias", ""), fact_ids)
        except Rejected as rejected:
            error = str(rejected)
        else:
            message = _("“%(name)s” is an entity of its own now.") % {"name": part.name}
            model_admin.message_user(request, message, messages.SUCCESS)
            return HttpResponseRedirect(reverse("admin:kb_entity_change", args=[part.pk]))
    context = {"aliases": aliases_of(entity), "facts": list(facts_of(entity)[:MOST_FACTS]), "error": error}
    return _page(model_admin, request, entity, "split", _("Split a name off “%(name)s”"), context)


def _chosen(others: QuerySet[Any], asked: str) -> Entity | None:
    is_id = asked.isascii() and asked.isdigit() and len(asked) < 19
    return others.filter(pk=asked).first() if is_id else None


def _offered(others: QuerySet[Any], query: str) -> Sequence[Entity]:
    """Entities one of whose names holds what was typed; without a query those that share a part of the name."""
    if not query:
        return []
    named = EntityName.objects.filter(entity__in=others, key__contains=normalized_key(query)).values("entity")
    return list(others.filter(pk__in=named).prefetch_related("names").order_by("name")[:OFFERED])


def _page(
    model_admin: ScopedModelAdmin, request: HttpRequest, entity: Entity, name: str, title: str, context: dict[str, Any]
) -> HttpResponse:
    return render(
        request,
        f"graph/{name}.html",
        {
            **model_admin.admin_site.each_context(request),
            "title": title % {"name": entity.name},
            "opts": model_admin.opts,
            "entity": entity,
            "entity_url": reverse("admin:kb_entity_change", args=[entity.pk]),
            **context,
        },
    )
