from datetime import timedelta

from django.utils import timezone

from kb.models import SearchLog


def logged(kb, days=0, **fields):
    """A search of a knowledge base, so many days ago."""
    return SearchLog.objects.create(
        knowledge_base_ids=[kb.pk],
        query="q",
        profile="default",
        profile_version=1,
        configuration={},
        trace={},
        duration_ms=1,
        created_at=timezone.now() - timedelta(days=days),
        **{"result_count": 1, "timings": {"vector": 20, "total": 30}, **fields},
    )
