"""How long an assistant keeps what was asked, and how everything of one visitor is deleted."""

from datetime import timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from kb.answers.models import Conversation, Message
from kb.assistants.models import Assistant, AssistantUse, Visitor
from kb.base.db.transactions import BATCH, delete_in_batches
from kb.search.models import SearchLog
from kb.search.services import search_log

# Limits look at today alone; what all together have asked is shown for longer.
DAYS_OF_EACH, DAYS_OF_ALL = 2, 400

_CONVERSATIONS = """
WITH old AS (
    SELECT c.id FROM kb_conversation c JOIN kb_visitor v ON v.id = c.visitor_id
    WHERE v.assistant_id = %(assistant)s AND c.updated_at < %(before)s LIMIT %(batch)s
), messages AS (DELETE FROM kb_message USING old WHERE conversation_id = old.id)
DELETE FROM kb_conversation USING old WHERE kb_conversation.id = old.id
"""
_VISITORS = """
WITH old AS (
    SELECT v.id FROM kb_visitor v WHERE v.assistant_id = %(assistant)s AND v.created_at < %(before)s
        AND NOT EXISTS (SELECT FROM kb_conversation c WHERE c.visitor_id = v.id) LIMIT %(batch)s
)
DELETE FROM kb_visitor USING old WHERE kb_visitor.id = old.id
"""


def assistants_purge() -> None:
    """Deletes conversations, searches and visitors past their assistant's time, in short transactions."""
    now, today = timezone.now(), timezone.localdate()
    for assistant in Assistant.objects.filter(retention_days__gt=0).only("pk", "retention_days"):
        before = now - timedelta(days=assistant.retention_days)
        for statement in (_CONVERSATIONS, _VISITORS):
            delete_in_batches(statement, assistant=assistant.pk, before=before)
        while _delete_searches(SearchLog.objects.filter(assistant_id=assistant.pk, created_at__lt=before)[:BATCH]):
            pass
    AssistantUse.objects.filter(day__lt=today - timedelta(days=DAYS_OF_EACH)).exclude(whose="").delete()
    AssistantUse.objects.filter(day__lt=today - timedelta(days=DAYS_OF_ALL)).delete()


def visitor_delete(visitor: Visitor) -> None:
    """Deletes a visitor with everything that was asked, in the search log too; counts of days stay."""
    with transaction.atomic():
        _delete_searches_of(visitor.conversations.all())
        visitor.delete()


def conversation_delete(conversation: Conversation) -> None:
    """Deletes a visitor's conversation in the same way."""
    with transaction.atomic():
        _delete_searches_of(Conversation.objects.filter(pk=conversation.pk))
        conversation.delete()


def _delete_searches_of(conversations: QuerySet[Conversation]) -> None:
    """Those of the answers, the ones too that this process has not yet written to the log."""
    search_log.flush()
    asked = Message.objects.filter(conversation__in=conversations, trace_id__isnull=False)
    _delete_searches(SearchLog.objects.filter(pk__in=list(asked.values_list("trace_id", flat=True))))


@transaction.atomic
def _delete_searches(rows: QuerySet[SearchLog]) -> int:
    """Returns how many there were."""
    found = list(rows.only("query", "knowledge_base_ids"))
    search_log.searches_deleting.send(SearchLog, rows=found)
    SearchLog.objects.filter(pk__in=[each.pk for each in found]).delete()
    return len(found)
