import shlex
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase
from kb.content.models import Chunk, Document
from kb.index.services.reembedding import REEMBED, reembedding_drop, reembedding_rollback, reembedding_swap
from kb.index.services.reindex import reindex_embeddings, reindex_postings
from kb.ingest.services.documents import documents_recut
from kb.management.base import KnowledgeBaseCommand, argument, kb_arguments, one_of
from retrieval.embedders.registry import normalize_model_id

CHANGES = ("swap", "rollback", "drop_old")


class Command(KnowledgeBaseCommand):
    help = "Builds postings and vectors of chunks again, or re-chunks documents; searches go on meanwhile."

    arguments = (
        *kb_arguments(required=False),
        argument("--bm25", action="store_true", help="only the keyword postings"),
        argument("--embeddings", action="store_true", help="only the vectors"),
        argument(
            "--chunks",
            action="store_true",
            help="re-chunk the documents: queues them for the worker, and does nothing else",
        ),
        argument("--model", default="", metavar="ID", help="move the knowledge base to this embedding model"),
        argument("--resume", action="store_true", help="keep what an interrupted run has made"),
        one_of(
            argument("--no-swap", action="store_true", help="with --model: build its vectors, and swap later"),
            argument("--swap", action="store_true", help="change searches over to the vectors that were built"),
            argument("--rollback", action="store_true", help="go back to the former model's vectors"),
            argument("--drop-old", action="store_true", help="delete the former model's vectors"),
        ),
    )

    def handle(self, *_: Any, **options: Any) -> None:
        if options["model"] and not (options["kb"] and options["embeddings"]):
            raise CommandError("--model moves one knowledge base to another model: add --kb NAME and --embeddings")
        if options["chunks"]:
            self._rechunk(options)
            return
        if any(options[name] for name in ("no_swap", *CHANGES)):
            if not options["kb"] or not options["embeddings"] or options["bm25"]:
                raise CommandError("a change of the model is one knowledge base's: add --kb NAME and --embeddings")
            if options["no_swap"] != bool(options["model"]):
                raise CommandError("--model goes with --no-swap, and not with --swap, --rollback and --drop-old")
        if any(options[name] for name in CHANGES):
            self._change(self.knowledge_base(options), options)
            return
        both = options["bm25"] == options["embeddings"]
        everything = KnowledgeBase.objects.select_related("owner", "profile", "version_row")
        for kb in [self.knowledge_base(options)] if options["kb"] else list(everything):
            total = Chunk.objects.filter(knowledge_base=kb).count()
            if both or options["bm25"]:
                with self.progress_bar(total=total, unit="chunks") as bar:
                    reindex_postings(kb, resume=options["resume"], on_progress=bar.update)
                self.stdout.write(f"{kb.name}: keyword postings are current")
            if both or options["embeddings"]:
                model = normalize_model_id(options["model"] or kb.embedding_model)
                with self.progress_bar(total=total, unit="chunks") as bar:
                    reindex_embeddings(
                        kb,
                        model_id=model,
                        resume=options["resume"],
                        swap=not options["no_swap"],
                        on_progress=bar.update,
                    )
                self.stdout.write(f"{kb.name}: vectors of {model!r} are current")
                self._print_next_step(kb)

    def _rechunk(self, options: dict[str, Any]) -> None:
        if not options["kb"] or options["bm25"] or options["embeddings"]:
            raise CommandError(
                "--chunks re-chunks the documents of one knowledge base: add --kb NAME, and no other kind"
            )
        kb = self.knowledge_base(options)
        count = documents_recut(Document.objects.filter(knowledge_base=kb))
        self.stdout.write(f"{kb.name}: {count} documents wait for a worker to be re-chunked")

    def _change(self, kb: KnowledgeBase, options: dict[str, Any]) -> None:
        """Swaps, goes back or drops; what was written since the vectors were built is embedded first, in this process."""
        if options["drop_old"]:
            self.stdout.write(f"{kb.name}: {reembedding_drop(kb)} former vectors are gone")
            return
        is_done = reembedding_rollback(kb) if options["rollback"] else reembedding_swap(kb)
        if not is_done:
            with self.progress_bar(total=Chunk.objects.filter(knowledge_base=kb).count(), unit="chunks") as bar:
                REEMBED.follow(kb, on_progress=bar.update)
        kb.refresh_from_db()
        self.stdout.write(f"{kb.name}: searches use {kb.embedding_model!r}")
        self._print_next_step(kb)

    def _print_next_step(self, kb: KnowledgeBase) -> None:
        kb.refresh_from_db()
        again = f"manage.py reindex --kb {shlex.quote(kb.name)} --embeddings"
        if kb.target_embedding_model:
            self.stdout.write(f"Searches still use {kb.embedding_model!r}; to change over: {again} --swap")
        elif kb.previous_embedding_model:
            self.stdout.write(
                f"The vectors of {kb.previous_embedding_model!r} are kept. To go back: {again} --rollback; "
                f"to delete them: {again} --drop-old"
            )
