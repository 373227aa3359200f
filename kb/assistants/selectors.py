"""Assistants as those who run them see them: the list, what was asked, and visitors' conversations."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from django.db.models import Count, Exists, F, IntegerField, Max, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce, Left
from django.utils import timezone

from kb.access.models import KnowledgeBase, Principal
from kb.answers.models import Conversation, Message
from kb.assistants.models import Assistant, AssistantQuerySet, AssistantUse, AssistantVersion, ShareLink
from kb.base.models import count_of
from kb.search.models import SearchLog

DAYS_SHOWN = 30


@dataclass(frozen=True, slots=True)
class DayOfUse:
    day: date
    questions: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How the answers of some days came out; `answered` are those that rest on something found."""

    visitors: int
    answers: int
    answered: int
    helpful: int
    not_helpful: int

    @property
    def share_answered(self) -> int | None:
        """Per cent; None: nothing was asked."""
        return round(100 * self.answered / self.answers) if self.answers else None


def assistant_overview(principal: Principal, *, words: str = "", kb_id: int | None = None) -> AssistantQuerySet:
    """Those that the principal may edit, by name, with `newest` and `published_number`, `questions_today` and `conversation_count`."""
    rows = with_newest(Assistant.objects.editable_by(principal))
    today = AssistantUse.objects.filter(assistant=OuterRef("pk"), day=timezone.localdate(), whose="")
    if words:
        rows = rows.filter(Q(name__icontains=words) | Q(slug__icontains=words))
    if kb_id is not None:
        rows = rows.filter(
            Exists(Assistant.knowledge_bases.through.objects.filter(assistant=OuterRef("pk"), knowledgebase=kb_id))
        )
    return rows.prefetch_related("knowledge_bases").annotate(
        questions_today=Coalesce(Subquery(today.values("questions")), 0, output_field=IntegerField()),
        conversation_count=count_of(Conversation.objects, "visitor__assistant"),
    )


def with_newest(rows: AssistantQuerySet) -> AssistantQuerySet:
    """With the numbers of the newest version and of the published one, and `has_picture` in place of the picture."""
    versions = AssistantVersion.objects.filter(assistant=OuterRef("pk")).order_by("-number")
    return rows.defer("picture").annotate(
        newest=Subquery(versions.values("number")[:1]),
        published_number=F("published__number"),
        has_picture=~Q(picture=b""),
    )


def links_of(assistant: Assistant) -> tuple[list[ShareLink], list[ShareLink]]:
    """Those that let somebody in, the newest first, and those that were revoked or have expired."""
    links = assistant.links.select_related("created_by")
    usable = list(links.usable())
    return usable, list(links.exclude(pk__in=[link.pk for link in usable]))


def days_of_use(assistant: Assistant) -> list[DayOfUse]:
    """The last `DAYS_SHOWN` days, today last, those on which nothing was asked too."""
    today = timezone.localdate()
    first = today - timedelta(days=DAYS_SHOWN - 1)
    rows = AssistantUse.objects.filter(assistant=assistant, whose="", day__gte=first)
    by_day = {day: (questions, tokens) for day, questions, tokens in rows.values_list("day", "questions", "tokens")}
    days = (first + timedelta(days=number) for number in range(DAYS_SHOWN))
    return [DayOfUse(day, *by_day.get(day, (0, 0))) for day in days]


def most_of_today(assistant: Assistant) -> dict[str, tuple[int, int]]:
    """The questions and tokens of today of everybody (""), and the most of one visitor ("v") and of one address ("a")."""
    rows = AssistantUse.objects.filter(assistant=assistant, day=timezone.localdate()).values(kind=Left("whose", 1))
    most = rows.annotate(most_questions=Max("questions"), most_tokens=Max("tokens"))
    found = {each["kind"]: (each["most_questions"], each["most_tokens"]) for each in most}
    return {kind: found.get(kind, (0, 0)) for kind in ("", "v", "a")}


def outcomes_of(assistant: Assistant) -> Outcomes:
    """Of the last `DAYS_SHOWN` days, as far as their conversations are kept."""
    since = timezone.now() - timedelta(days=DAYS_SHOWN)
    rows = Message.objects.filter(
        conversation__visitor__assistant=assistant, role=Message.Role.ASSISTANT, created_at__gte=since
    )
    return Outcomes(
        **rows.aggregate(
            visitors=Count("conversation__visitor", distinct=True),
            answers=Count("pk", filter=Q(hit__isnull=False)),
            answered=Count("pk", filter=Q(hit=True)),
            helpful=Count("pk", filter=Q(feedback=SearchLog.Feedback.GOOD)),
            not_helpful=Count("pk", filter=Q(feedback=SearchLog.Feedback.BAD)),
        )
    )


def conversations_of(principal: Principal, assistant: Assistant) -> QuerySet[Any]:
    """Visitors' conversations over knowledge bases that the principal may edit, all of them, the one continued last first.

    Each has `turns`, `missed`, `helpful` and `not_helpful`; what a visitor asked again or in other words counts too.
    """
    editable = list(KnowledgeBase.objects.editable_by(principal).values_list("pk", flat=True))
    rows = Conversation.objects.filter(visitor__assistant=assistant, knowledge_base_ids__contained_by=editable)
    answers = Q(messages__role=Message.Role.ASSISTANT)
    return (
        rows.select_related("visitor__user")
        .annotate(
            turns=Count("messages", filter=answers),
            missed=Count("messages", filter=answers & Q(messages__hit=False)),
            helpful=Count("messages", filter=answers & Q(messages__feedback=SearchLog.Feedback.GOOD)),
            not_helpful=Count("messages", filter=answers & Q(messages__feedback=SearchLog.Feedback.BAD)),
        )
        .order_by("-updated_at", "pk")
    )
