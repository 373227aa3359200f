"""Reads with what callers show beside a row; all of them through `visible_to(principal)`."""

from typing import Any

from django.db import models
from django.db.models import Case, Count, F, OuterRef, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce

from kb.access.models import KnowledgeBase, Membership, Principal
from kb.content.models import Chunk, Document


def knowledge_base_overview(principal: Principal) -> QuerySet[Any]:
    """Knowledge bases with `document_count`, `chunk_count` and the principal's `role`."""
    roles = Membership.objects.filter(knowledge_base=OuterRef("pk"), user=principal.user.pk).values("role")
    default = Membership.Role.OWNER if principal.user.is_superuser else Membership.Role.VIEWER
    rows: QuerySet[Any] = (
        KnowledgeBase.objects.visible_to(principal)
        .select_related("profile")
        .annotate(
            document_count=_count(Document, "knowledge_base"),
            chunk_count=_count(Chunk, "knowledge_base"),
            role=Case(
                When(owner=principal.user.pk, then=Value(Membership.Role.OWNER)),
                default=Coalesce(Subquery(roles), Value(default)),
                output_field=models.CharField(),
            ),
        )
    )
    return rows


def document_overview(principal: Principal) -> QuerySet[Any]:
    """Documents with `chunk_count`."""
    rows: QuerySet[Any] = Document.objects.visible_to(principal).annotate(chunk_count=_count(Chunk, "document"))
    return rows


def _count(model: type[models.Model], path: str) -> Coalesce:
    """A subquery of its own for each count: two joined ones would multiply each other's rows."""
    rows = model._default_manager.filter(**{path: OuterRef("pk")}).order_by().annotate(group=F(path)).values("group")
    return Coalesce(Subquery(rows.annotate(rows=Count("pk")).values("rows")), 0)
