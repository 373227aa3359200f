from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from kb.management.base import KnowledgeBaseCommand
from kb.models import Chunk, Document, KnowledgeBase
from kb.services.rechunk import documents_recut
from kb.services.reindex import reindex_embeddings, reindex_postings
from retrieval.embedders.registry import normalize_model_id


class Command(KnowledgeBaseCommand):
    help = "Builds postings and vectors of chunks anew, or cuts documents into chunks anew; searches go on meanwhile."

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.add_kb_argument(parser, required=False)
        parser.add_argument("--bm25", action="store_true", help="only the keyword postings")
        parser.add_argument("--embeddings", action="store_true", help="only the vectors")
        parser.add_argument(
            "--chunks",
            action="store_true",
            help="cut the documents anew: queues them for the worker, and does nothing else",
        )
        parser.add_argument("--model", default="", metavar="ID", help="move the knowledge base to this embedding model")
        parser.add_argument("--resume", action="store_true", help="keep what an interrupted run has made")

    def handle(self, *_: Any, **options: Any) -> None:
        if options["model"] and not (options["kb"] and options["embeddings"]):
            raise CommandError("--model moves one knowledge base to another model: add --kb NAME and --embeddings")
        if options["chunks"]:
            self._cut_anew(options)
            return
        both = options["bm25"] == options["embeddings"]
        for kb in self._knowledge_bases(options):
            total = Chunk.objects.filter(knowledge_base=kb).count()
            if both or options["bm25"]:
                with self.progress_bar(total=total, unit="chunks") as bar:
                    reindex_postings(kb, resume=options["resume"], on_progress=bar.update)
                self.stdout.write(f"{kb.name}: keyword postings are current")
            if both or options["embeddings"]:
                model = normalize_model_id(options["model"] or kb.embedding_model)
                with self.progress_bar(total=total, unit="chunks") as bar:
                    reindex_embeddings(kb, model_id=model, resume=options["resume"], on_progress=bar.update)
                self.stdout.write(f"{kb.name}: vectors of {model!r} are current")

    def _cut_anew(self, options: dict[str, Any]) -> None:
        if not options["kb"] or options["bm25"] or options["embeddings"]:
            raise CommandError(
                "--chunks cuts the documents of one knowledge base anew: add --kb NAME, and no other kind"
            )
        kb = self.knowledge_base(options)
        count = documents_recut(Document.objects.filter(knowledge_base=kb))
        self.stdout.write(f"{kb.name}: {count} documents wait for a worker to be cut anew")

    def _knowledge_bases(self, options: dict[str, Any]) -> list[KnowledgeBase]:
        if options["kb"]:
            return [self.knowledge_base(options)]
        return list(KnowledgeBase.objects.select_related("owner", "profile", "version_row"))
