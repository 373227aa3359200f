import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.files.storage import default_storage
from django.core.management.base import CommandError

from kb.access.models import KnowledgeBase
from kb.management.base import KnowledgeBaseCommand, argument
from kb.operations.services.archives.export import archive_folder
from kb.operations.services.backups.backup import stored_name
from kb.operations.services.backups.restore import restore
from kb.operations.services.secrets import unreadable_secrets


class Command(KnowledgeBaseCommand):
    help = "Makes the installation of a file that `backup` has written; the other processes must have stopped."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    arguments = (
        argument("source", help="the file; with --storage, its name in the storage of uploads"),
        argument("--storage", action="store_true", help="it lies in the storage of uploads, in backups/"),
        argument("--force", action="store_true", help="replace all that the database holds"),
        argument("--trust", action="store_true", help="take it although another SECRET_KEY signed it"),
        argument("--json", action="store_true", help="print what was restored as JSON"),
    )

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            done = self._restore(options)
        except FileNotFoundError as error:
            raise CommandError(
                f"there is no backup {options['source']}: name a file that `backup` has written"
            ) from error
        self.build_indexes(list(KnowledgeBase.objects.order_by("pk")))
        counts = done["counts"]
        said = (
            f"{counts['knowledge_bases']} knowledge bases, {counts['documents']} documents, {counts['chunks']} chunks, "
            f"{done['files']} files, as of {done['created_at']}. Start web, MCP, workers and beat now."
        )
        lost = unreadable_secrets()
        lines = [f"Enter the key or password again: {each.kind} “{each.name}”" for each in lost]
        if lost:
            lines.append(
                "They were encrypted with another SECRET_KEY; with that one in SECRET_KEY_FALLBACKS they are readable."
            )
        self.answer(options, {**done, "unreadable_secrets": lost}, [said, *lines])

    def _restore(self, options: dict[str, Any]) -> dict[str, Any]:
        with (
            _source(options["source"], in_storage=options["storage"]) as path,
            self.progress_bar(unit="B", scale=True) as whole,
            self.progress_bar(unit="tables and indexes") as steps,
        ):
            whole.total = 2 * path.stat().st_size  # each byte is verified, then restored
            whole.set_description("backup")

            def begin(name: str, total: int) -> None:
                steps.total = total
                steps.set_description(name, refresh=False)
                steps.update()

            return restore(
                path, is_forced=options["force"], is_trusted=options["trust"], on_bytes=whole.update, on_step=begin
            )


@contextmanager
def _source(name: str, *, in_storage: bool) -> Iterator[Path]:
    if not in_storage:
        yield Path(name)
        return
    with tempfile.NamedTemporaryFile(dir=archive_folder()) as copy:
        with default_storage.open(stored_name(name), "rb") as stored:
            shutil.copyfileobj(stored, copy, 1024**2)
        copy.flush()
        yield Path(copy.name)
