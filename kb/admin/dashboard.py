"""The first page: what is there, and what to do next."""

from typing import Any

from django.db.models import Count, Q
from django.http import HttpRequest
from django.utils.translation import gettext as _

from kb.admin.scoped import principal
from kb.conf import tokenizer
from kb.models import Chunk, Document, KnowledgeBase
from retrieval.model_files import libraries_available


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Adds the counts of what the caller may see."""
    caller = principal(request)
    documents = Document.objects.visible_to(caller).aggregate(
        all=Count("pk"),
        failed=Count("pk", filter=Q(status=Document.Status.FAILED)),
        unfinished=Count("pk", filter=Q(status__in=(Document.Status.PENDING, Document.Status.PROCESSING))),
    )
    return context | {
        "degraded": _degraded(),
        "knowledge_base_count": KnowledgeBase.objects.visible_to(caller).count(),
        "may_upload": KnowledgeBase.objects.editable_by(caller).exists(),
        "document_count": documents["all"],
        "failed_count": documents["failed"],
        "unfinished_count": documents["unfinished"],
        "chunk_count": Chunk.objects.visible_to(caller).count(),
    }


def _degraded() -> list[str]:
    """What this server cannot do, with the remedy of each."""
    notices = []
    if not libraries_available():
        notices.append(
            _("Embedding models cannot run on this server, because sentence-transformers or torch is not installed.")
            + " pip install 'zhiku[models]'"
        )
    if tokenizer() is None:
        notices.append(
            _("Keyword search is off, because rank-bm25 or jieba is not installed.") + " pip install rank-bm25 jieba"
        )
    return notices
