from typing import Any

from kb.access.models import KnowledgeBase
from kb.index.bm25 import BM25Store
from kb.management.base import KnowledgeBaseCommand, argument, kb_arguments
from kb.search.services.invalidation import responses_invalidate


class Command(KnowledgeBaseCommand):
    help = (
        "Makes the cached responses of searches in one or all knowledge bases unreachable, and drops their BM25 indexes "
        "from every cache: the next search builds them again."
    )

    arguments = (
        *kb_arguments(required=False),
        argument("--hot-queries", action="store_true", help="the cached responses only; the BM25 indexes stay"),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["kb"] is not None:
            found = [self.knowledge_base(options)]
        else:
            every = KnowledgeBase.objects.all()
            found = list(every.filter(owner__username=options["owner"]) if options["owner"] else every)
        responses_invalidate([kb.pk for kb in found])
        store = BM25Store()
        then = "." if options["hot_queries"] else ", and the next search builds the index again."
        for kb in found:
            if not options["hot_queries"]:
                store.invalidate(kb.pk)
            self.stdout.write(f"{kb.name}: no earlier response is served again{then}")
        if not found:
            self.stdout.write("There is no knowledge base, so there is nothing to drop.")
