"""Reads with what callers show beside a row; all of them through `visible_to(principal)`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.db import models
from django.db.models import Case, Count, F, OuterRef, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce

from kb.models import (
    Chunk,
    ChunkEmbedding,
    ConceptTerm,
    Document,
    GraphFact,
    KnowledgeBase,
    Membership,
    Principal,
)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a knowledge base holds besides the text and the vectors of its chunks."""

    keyword_vectors: bool
    questions: bool
    concepts: bool
    facts: bool


def searchable(principal: Principal, kb_ids: Sequence[int]) -> dict[int, Any]:
    """Knowledge bases by id with `profile` and `version_row`, in one query; those out of sight are missing."""
    rows: QuerySet[Any] = KnowledgeBase.objects.visible_to(principal).filter(pk__in=kb_ids)
    return rows.select_related("profile", "version_row").in_bulk()


def holdings(kb: KnowledgeBase) -> Holdings:
    """What a knowledge base read by `searchable` holds; asked of the database once for each of its content's versions."""
    return _holdings(kb.pk, kb.embedding_model, kb.version_row.content_version)


@lru_cache(maxsize=1_000)
def _holdings(kb_id: int, model: str, content_version: int) -> Holdings:  # noqa: ARG001 - another version is another answer
    vectors = ChunkEmbedding.objects.filter(knowledge_base=kb_id, model=model)
    return Holdings(
        keyword_vectors=vectors.filter(kind=ChunkEmbedding.Kind.KEYWORDS).exists(),
        questions=vectors.filter(kind=ChunkEmbedding.Kind.QUESTION).exists(),
        concepts=ConceptTerm.objects.filter(knowledge_base=kb_id).exists(),
        facts=GraphFact.objects.filter(knowledge_base=kb_id).exists(),
    )


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
