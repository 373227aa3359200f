from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from kb.management.base import KnowledgeBaseCommand
from kb.models import Chunk, KnowledgeBase
from kb.services.reindex import reindex_embeddings, reindex_postings
from retrieval.embedders.registry import normalize_model_id


class Command(KnowledgeBaseCommand):
    help = "Builds the keyword postings and the vectors of chunks anew; searches go on meanwhile."

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.add_kb_argument(parser, required=False)
        parser.add_argument("--bm25", action="store_true", help="only the keyword postings")
        parser.add_argument("--embeddings", action="store_true", help="only the vectors")
        parser.add_argument("--model", default="", metavar="ID", help="move the knowledge base to this embedding model")
        parser.add_argument("--resume", action="store_true", help="keep what an interrupted run has made")

    def handle(self, *_: Any, **options: Any) -> None:
        if options["model"] and not (options["kb"] and options["embeddings"]):
            raise CommandError("--model moves one knowledge base to another model: add --kb NAME and --embeddings")
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

    def _knowledge_bases(self, options: dict[str, Any]) -> list[KnowledgeBase]:
        if options["kb"]:
            return [self.knowledge_base(options)]
        return list(KnowledgeBase.objects.select_related("owner", "profile", "version_row"))
