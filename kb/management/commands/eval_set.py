from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.core.files import File
from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase, Principal
from kb.management.base import JSON, KnowledgeBaseCommand, actions, argument, kb_arguments
from kb.quality.eval_sets.services.files import (
    ImportedSet,
    eval_set_export,
    eval_set_import,
    eval_set_import_archive,
    pack,
)
from kb.quality.eval_sets.services.sets import eval_set_by_name, eval_set_overview
from retrieval.eval.judged_sets import Layout

ARCHIVE = ".zip"


class Command(KnowledgeBaseCommand):
    help = "Lists evaluation sets, and imports and exports them in the layouts of BEIR and TREC."

    arguments = (
        actions(
            {
                "list": ("the sets of a knowledge base", (*kb_arguments(), JSON)),
                "import": (
                    "read a set; its judgments find documents by their source",
                    (
                        argument("path", type=Path, metavar="PATH", help="a folder, or a ZIP file of one"),
                        *kb_arguments(),
                        argument("--eval-set", default="", metavar="NAME", help="left out: the name in the files"),
                        argument(
                            "--format",
                            choices=[*Layout],
                            default=None,
                            help="left out: beir where there is queries.jsonl, else trec",
                        ),
                        argument(
                            "--replace",
                            action="store_true",
                            help="replace the queries and judgments of a set of this name",
                        ),
                    ),
                ),
                "export": (
                    "write a set",
                    (
                        argument(
                            "path", type=Path, metavar="PATH", help="a new folder, or a new file that ends in .zip"
                        ),
                        *kb_arguments(),
                        argument("--eval-set", required=True, metavar="NAME"),
                        argument("--format", choices=[*Layout], default=Layout.BEIR),
                        argument(
                            "--without-documents",
                            action="store_true",
                            help="leave corpus.jsonl with the documents' texts out",
                        ),
                    ),
                ),
            },
            metavar="{list,import,export}",
            described=False,
        ),
    )

    def handle(self, *_: Any, **options: Any) -> None:
        getattr(self, f"_{options['action']}")(self.knowledge_base(options), options)

    def _list(self, kb: KnowledgeBase, options: dict[str, Any]) -> None:
        sets = [
            {
                "name": each.name,
                "queries": each.query_count,
                "judged": each.judged_count,
                "unanswerable": each.unanswerable_count,
            }
            for each in eval_set_overview(Principal(kb.owner)).filter(knowledge_base=kb).order_by("name")
        ]
        lines = [
            f"{each['name']}: {each['queries']} queries, {each['judged']} with judgments, "
            f"{each['unanswerable']} without an answer"
            for each in sets
        ]
        none = f"{kb.name} has no evaluation set: see `manage.py eval_set import --help`"
        self.answer(options, sets, lines or [none])

    def _import(self, kb: KnowledgeBase, options: dict[str, Any]) -> None:
        done = self._imported(kb, options)
        self.stdout.write(f"evaluation set {done.eval_set.name}: {done.queries} queries, {done.judgments} judgments")
        if done.missing:
            self.stdout.write(
                self.style.WARNING(
                    f"{done.missing} judgments are of documents that {kb.name!r} does not have: they count once documents "
                    "of the same source are there"
                )
            )

    def _imported(self, kb: KnowledgeBase, options: dict[str, Any]) -> ImportedSet:
        path: Path = options["path"]
        layout = Layout(options["format"]) if options["format"] else None
        given: dict[str, Any] = {"name": options["eval_set"], "layout": layout, "replace": options["replace"]}
        if path.is_dir():
            return eval_set_import(Principal(kb.owner), kb, path, **given)
        if not path.is_file():
            raise CommandError(f"{path} does not exist: name a folder, or a ZIP file")
        with path.open("rb") as file:
            return eval_set_import_archive(Principal(kb.owner), kb, File(file, name=path.name), **given)

    def _export(self, kb: KnowledgeBase, options: dict[str, Any]) -> None:
        path: Path = options["path"]
        if path.exists() and (path.is_file() or any(path.iterdir())):
            raise CommandError(f"{path} is there already: name a new file or an empty folder")
        eval_set = eval_set_by_name(kb, options["eval_set"])
        given: dict[str, Any] = {"with_documents": not options["without_documents"]}
        layout = Layout(options["format"])
        if path.suffix != ARCHIVE:
            eval_set_export(Principal(kb.owner), eval_set, path, layout, **given)
        else:
            with TemporaryDirectory(prefix="eval-set-") as folder:
                eval_set_export(Principal(kb.owner), eval_set, Path(folder), layout, **given)
                pack(Path(folder), path)
        self.stdout.write(f"evaluation set {eval_set.name} was written to {path}")
