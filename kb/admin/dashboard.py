"""The first page: what is there, and what to do next."""

from typing import Any

from django.db.models import Count, Q
from django.http import HttpRequest

from kb.admin.scoped import principal
from kb.models import Chunk, Document, KnowledgeBase


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Adds the counts of what the caller may see."""
    caller = principal(request)
    documents = Document.objects.visible_to(caller).aggregate(
        all=Count("pk"),
        failed=Count("pk", filter=Q(status=Document.Status.FAILED)),
        unfinished=Count("pk", filter=Q(status__in=(Document.Status.PENDING, Document.Status.PROCESSING))),
    )
    return context | {
        "knowledge_base_count": KnowledgeBase.objects.visible_to(caller).count(),
        "may_upload": KnowledgeBase.objects.editable_by(caller).exists(),
        "document_count": documents["all"],
        "failed_count": documents["failed"],
        "unfinished_count": documents["unfinished"],
        "chunk_count": Chunk.objects.visible_to(caller).count(),
    }
