from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase
from kb.content.services import knowledge_base_by_name, knowledge_base_create
from kb.management.base import KnowledgeBaseCommand, argument, kb_arguments
from kb.quality.eval_sets.services.files import import_eval_set, import_passages
from retrieval.embedders.registry import normalize_model_id
from retrieval.eval.qrels import iter_corpus


class Command(KnowledgeBaseCommand):
    help = "Imports an evaluation set in BEIR layout: one passage becomes one document with one chunk."

    arguments = (
        argument(
            "directory",
            type=Path,
            help="holds corpus.jsonl, queries.jsonl and qrels/test.tsv; a bare name is looked for in ZHIKU_EVAL_DATA too",
        ),
        *kb_arguments(),
        argument("--embedding-model", default="", metavar="ID", help="of a knowledge base made by this run"),
        argument("--eval-set", default="", metavar="NAME", help="import queries and judgments under this name"),
    )

    def handle(self, *_: Any, **options: Any) -> None:
        directory = options["directory"] = _find(options["directory"])
        total = sum(1 for _ in iter_corpus(directory))
        kb = self._find_or_create(options)
        with self.progress_bar(total=total, unit="passages") as bar:
            added, unchanged = import_passages(kb, directory, bar.update)
        self.stdout.write(f"{kb.name}: {added} passages imported, {unchanged} were there already")
        if options["eval_set"]:
            done = import_eval_set(kb, directory, options["eval_set"])
            self.stdout.write(
                f"evaluation set {done.eval_set.name}: {done.queries} queries, {done.judgments} judgments"
            )
        self.build_indexes([kb])

    def _find_or_create(self, options: dict[str, Any]) -> KnowledgeBase:
        wanted = normalize_model_id(options["embedding_model"]) if options["embedding_model"] else ""
        kb = self.found_knowledge_base(options)
        if kb is None:
            return self._create(options, wanted)
        if wanted not in ("", kb.embedding_model):
            raise CommandError(
                f"knowledge base {kb.name!r} uses the model {kb.embedding_model!r}: choose another --kb, or run "
                f"`manage.py reindex --kb {kb.name} --embeddings --model {wanted}`"
            )
        return kb

    def _create(self, options: dict[str, Any], model: str) -> KnowledgeBase:
        first = next(iter_corpus(options["directory"]), None)
        chinese = first is not None and any("\u4e00" <= character <= "\u9fff" for character in first.text)
        kb = knowledge_base_create(
            name=options["kb"],
            owner=self.user(options["owner"]),
            embedding_model=model,
            language=KnowledgeBase.Language.CHINESE if chinese else KnowledgeBase.Language.ENGLISH,
        )
        self.stdout.write(f"made knowledge base {kb.name!r} with the model {kb.embedding_model!r}")
        return knowledge_base_by_name(kb.name, owner=kb.owner.username)


def _find(directory: Path) -> Path:
    elsewhere: Path = settings.EVAL_DATA / directory
    return elsewhere if not directory.is_dir() and elsewhere.is_dir() else directory
