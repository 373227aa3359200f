import time
from typing import Any

from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase
from kb.content.models import Document
from kb.ingest.services.indexing import index_document
from kb.management.base import KnowledgeBaseCommand, argument, kb_arguments
from kb.sources.models import Source
from kb.sources.services.sources import UNFINISHED, source_accept, source_request
from kb.sources.services.working import run_source

LOOK_SECONDS = 0.5

COUNTED = {
    "added": "new",
    "changed": "changed",
    "unchanged": "unchanged",
    "duplicate": "the same as another document",
    "refused": "refused by robots.txt",
    "failed": "failed",
    "gone": "gone (kept for now)",
    "deleted": "deleted",
}


class Command(KnowledgeBaseCommand):
    help = "Reads the web sources of a knowledge base; a worker does it, or with --wait this command itself."

    arguments = (
        *kb_arguments(),
        argument("--source", metavar="NAME", help="only this one, also where it is switched off"),
        argument("--accept", action="store_true", help="do what the last run has held back"),
        argument("--wait", action="store_true", help="read here and index what is new, without a worker"),
    )

    def handle(self, *_args: Any, **options: Any) -> None:
        kb = self.knowledge_base(options)
        failed = []
        for source in _sources(kb, options["source"]):
            if options["accept"]:
                source_accept(source)
            elif not source_request(source):
                self.stdout.write(f"{source.name}: is being read already")
                continue
            if not options["wait"]:
                self.stdout.write(f"{source.name}: a worker reads it")
            elif not self._read(source):
                failed.append(f"{source.name}: {source.error}")
        if options["wait"]:
            # Makes what was read searchable; a document that a worker has taken meanwhile is left to it.
            waiting = Document.objects.filter(source_item__source__knowledge_base=kb, status=Document.Status.PENDING)
            ids = list(waiting.order_by("pk").values_list("pk", flat=True))
            for document_id in self.progress_bar(ids, unit="documents"):
                index_document(document_id)
        if failed:
            raise CommandError("\n".join(failed))

    def _read(self, source: Source) -> bool:
        while True:
            goes_on = run_source(source.pk)
            source.refresh_from_db()
            if source.status not in UNFINISHED:
                break
            if not goes_on:  # a worker was faster
                self.pause()
        counts = ", ".join(f"{count} {COUNTED[name]}" for name, count in source.counts.items())
        self.stdout.write(f"{source.name}: {counts or 'nothing was read'}")
        return source.status == Source.Status.DONE

    def pause(self) -> None:
        time.sleep(LOOK_SECONDS)


def _sources(kb: KnowledgeBase, name: str | None) -> list[Source]:
    rows = Source.objects.filter(knowledge_base=kb)
    found = list(rows.filter(name=name) if name else rows.filter(enabled=True))
    if not found:
        names = ", ".join(rows.values_list("name", flat=True)) or "none: make one in the admin"
        raise CommandError(f"{kb.name!r} has no such web source; there are: {names}")
    return found
