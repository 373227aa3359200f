from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from kb.management.base import KnowledgeBaseCommand, argument
from kb.operations.services.archives.restore import restore_kb


class Command(KnowledgeBaseCommand):
    help = (
        "Makes a knowledge base of an archive that `export_kb`, the admin or the API has written; whole or not at all."
    )

    arguments = (
        argument("file", type=Path, help="the archive"),
        argument("--name", default="", help="of the knowledge base; without it, that in the archive"),
        argument("--owner", metavar="USER", help="whose it will be; without it, the first superuser's"),
        argument(
            "--embedding-model",
            default="",
            metavar="ID",
            help="another one than the archive's: every chunk is embedded",
        ),
    )

    def handle(self, *_: Any, **options: Any) -> None:
        path, owner = options["file"], self.user(options["owner"])
        if not path.is_file():
            raise CommandError(f"there is no file {path}: name an archive that `manage.py export_kb` has written")
        with self.progress_bar(unit="rows") as bar:

            def advance(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            restored = restore_kb(
                path, owner=owner, name=options["name"], embedding_model=options["embedding_model"], on_progress=advance
            )
        self.build_indexes([restored.knowledge_base])
        rows = restored.rows
        self.stdout.write(
            f"{restored.knowledge_base.name}: {rows['documents']} documents, {rows['chunks']} chunks, "
            f"{rows['judgments']} judgments"
        )
        for note in restored.notes:
            self.stdout.write(f"note: {note}")
