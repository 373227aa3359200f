"""What models were asked of late, summed for pages and the API."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final, cast

from django.db.models import F, QuerySet, Sum
from django.utils import timezone

from kb.access.models import KnowledgeBase
from kb.providers.usage.models import ModelUse

DAYS: Final = 30
WEEK: Final = 7


@dataclass(frozen=True, slots=True)
class Used:
    """Sums of a model, or of a model and a knowledge base."""

    role: str
    model: str
    requests: int
    input_tokens: int
    output_tokens: int
    estimated_tokens: int
    knowledge_base_id: int = 0
    knowledge_base: str = ""  # its name; blank: none, or deleted

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def days(count: int = DAYS) -> list[date]:
    """The last days, oldest first, the present one among them."""
    today = timezone.localdate()
    return [today - timedelta(days=back) for back in reversed(range(count))]


def tokens_by_day(since: date, kb_id: int | None = None) -> Mapping[tuple[date, str], int]:
    """Tokens by day and model, of one knowledge base or of all."""
    rows = _rows(since, kb_id).values_list("day", "model")
    return {(day, model): sum_ for day, model, sum_ in rows.annotate(sum=Sum(F("input_tokens") + F("output_tokens")))}


def used_since(since: date, kb_id: int | None = None) -> list[Used]:
    """By role, model and knowledge base, of one or of all, the most tokens first."""
    rows = (
        _rows(since, kb_id)
        .values("role", "model", "knowledge_base_id")
        .annotate(
            **{each: Sum(each) for each in ("requests", "input_tokens", "output_tokens", "estimated_tokens")},
        )
    )
    names = dict(
        KnowledgeBase.objects.filter(pk__in={row["knowledge_base_id"] for row in rows}).values_list("pk", "name")
    )
    found = [
        Used(**cast("dict[str, Any]", row), knowledge_base=names.get(row["knowledge_base_id"], "")) for row in rows
    ]
    return sorted(found, key=lambda used: (-used.tokens, used.role, used.model))


def _rows(since: date, kb_id: int | None) -> QuerySet[ModelUse]:
    rows = ModelUse.objects.filter(day__gte=since)
    return rows if kb_id is None else rows.filter(knowledge_base_id=kb_id)
