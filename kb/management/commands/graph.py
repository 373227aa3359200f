from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase
from kb.content.models import Document
from kb.graph.models import GraphExtraction
from kb.graph.services.tables import Table, graph_export, graph_import, graph_import_plan, read_bytes
from kb.graph.services.writing import extract_document, graph_request, graph_request_all
from kb.management.base import JSON, KnowledgeBaseCommand, actions, argument, kb_arguments


class Command(KnowledgeBaseCommand):
    help = "Imports and exports the graph of a knowledge base, and has a chat model read its documents for it."

    arguments = (
        actions(
            {
                "import": (
                    "take entities, facts or concepts in from a CSV file",
                    (
                        *kb_arguments(),
                        argument("table", choices=list(Table), help="what the file holds"),
                        argument("file", type=Path, metavar="FILE", help="CSV in UTF-8 or GB18030"),
                        argument("--dry-run", action="store_true", help="only tell what would change"),
                        argument("--skip-errors", action="store_true", help="leave lines with errors out"),
                        JSON,
                    ),
                ),
                "export": (
                    "write entities, facts or concepts as CSV",
                    (
                        *kb_arguments(),
                        argument("table", choices=list(Table)),
                        argument("--out", type=Path, metavar="FILE", help="instead of stdout"),
                    ),
                ),
                "extract": (
                    "have the documents read; passages that were read before are not read again",
                    (*kb_arguments(), argument("--wait", action="store_true", help="read here, without a worker")),
                ),
            }
        ),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        getattr(self, f"_{options['action']}")(self.knowledge_base(options), options)

    def _import(self, kb: KnowledgeBase, options: dict[str, Any]) -> None:
        table = Table(options["table"])
        try:
            text = read_bytes(options["file"].read_bytes())
        except OSError as error:
            raise CommandError(f"{options['file']} cannot be read: {error.strerror}") from error
        if options["dry_run"]:
            plan = graph_import_plan(kb, table, text)
        else:
            plan = graph_import(kb, table, text, skip_errors=options["skip_errors"])
        errors = [{"line": row.line, "message": row.message} for row in plan.errors]
        if not options["json"]:
            for each in errors:
                self.stderr.write(f"line {each['line']}: {each['message']}")
        counts = ", ".join(f"{count} {effect}" for effect, count in plan.counts.items())
        self.answer(options, {"counts": plan.counts, "errors": errors}, [counts])

    def _export(self, kb: KnowledgeBase, options: dict[str, Any]) -> None:
        lines = graph_export(kb, Table(options["table"]))
        if options["out"] is None:
            for line in lines:
                self.stdout.write(line, ending="")
            return
        with options["out"].open("w", encoding="utf-8", newline="") as file:
            file.writelines(lines)

    def _extract(self, kb: KnowledgeBase, options: dict[str, Any]) -> None:
        if not options["wait"]:
            self.stdout.write(f"{graph_request_all(kb)} documents are read by the workers")
            return
        documents = list(Document.objects.filter(knowledge_base=kb, status=Document.Status.READY).order_by("pk"))
        failed = []
        for document in self.progress_bar(documents, unit="documents"):
            extraction = self._read(document)
            if extraction.error:
                failed.append(f"{document}: {extraction.error}")
        facts = sum(GraphExtraction.objects.filter(document__in=documents).values_list("fact_count", flat=True))
        self.stdout.write(f"{len(documents) - len(failed)} documents were read; they state {facts} facts")
        if failed:
            raise CommandError("\n".join(failed))

    def _read(self, document: Document) -> GraphExtraction:
        graph_request(document)
        while extract_document(document.pk):
            pass
        return GraphExtraction.objects.get(document=document)
