"""Every writer of a knowledge base's content locks its row first, so that none deadlocks."""

from collections.abc import Collection

from django.apps import apps


def lock_knowledge_bases(kb_ids: Collection[int]) -> None:
    """Locks the rows in order until the transaction ends; those that refer to them can still be added."""
    rows = apps.get_model("kb", "KnowledgeBase").objects.filter(pk__in=kb_ids).order_by("pk")
    list(rows.select_for_update(no_key=True).values_list("pk"))
