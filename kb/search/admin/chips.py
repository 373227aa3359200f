"""What the head of a knowledge base says of its searches, once, in place of every result."""

from collections.abc import Iterator

from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.content.hub import hub_state
from kb.search.services.baseline import baseline
from kb.web.admin.navigation import to_superusers
from kb.web.admin.parts import Chip, add_chips
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import DegradationCode


def by_words_chip(kb: KnowledgeBase) -> Iterator[Chip]:
    """For editors, who can change it."""
    if kb.embedding_model == HASHING_MODEL_ID:
        title = _(
            "No embedding model: a question that is worded differently from the text is not found. Choose a model."
        )
        url = reverse("admin:kb_knowledgebase_reembedding", args=[kb.pk])
        yield Chip(_("Searched by words"), "warning", url, title)


@add_chips
def baseline_chips(request: HttpRequest, kb: KnowledgeBase) -> Iterator[Chip]:
    """To each what they can end: editors the knowledge base's model, superusers the rest too, viewers nothing."""
    if hub_state(request, kb).may_edit:
        yield from by_words_chip(kb)
    if not to_superusers(request):
        return
    status, codes = reverse("admin:system_status"), baseline(kb)
    if DegradationCode.RERANKER_UNAVAILABLE in codes:
        yield Chip(_("No reranker"), "", status, _("Results are in the order of shared words and vectors."))
    if DegradationCode.LLM_NOT_CONFIGURED in codes:
        yield Chip(_("No chat model"), "", status, _("Ask shows the passages as they are."))
