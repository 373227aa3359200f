from argparse import ArgumentParser
from typing import Any

from kb.management.base import KnowledgeBaseCommand
from kb.models import KnowledgeBase
from kb.stores.bm25 import BM25Store


class Command(KnowledgeBaseCommand):
    help = "Drops the BM25 index of one or of all knowledge bases from every cache; the next search builds it anew."

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.add_kb_argument(parser, required=False)

    def handle(self, *_args: Any, **options: Any) -> None:
        if options["kb"] is not None:
            found = [self.knowledge_base(options)]
        else:
            every = KnowledgeBase.objects.all()
            found = list(every.filter(owner__username=options["owner"]) if options["owner"] else every)
        store = BM25Store()
        for kb in found:
            store.invalidate(kb.pk)
            self.stdout.write(f"{kb.name}: dropped; the next search builds the index anew.")
        if not found:
            self.stdout.write("There is no knowledge base, so there is nothing to drop.")
