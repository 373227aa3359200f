import tempfile
from pathlib import Path
from typing import Any

from django.core.files import File
from django.core.management.base import CommandError

from kb.base.files import replace_file
from kb.management.base import KnowledgeBaseCommand, argument
from kb.operations.services.archives.export import archive_folder
from kb.operations.services.backups.backup import backup, stored_name


class Command(KnowledgeBaseCommand):
    help = "Writes database and uploaded files into one file, from which `restore` rebuilds the installation."

    arguments = (
        argument("target", help="the file to make; with --storage, its name in the storage of uploads"),
        argument(
            "--storage",
            action="store_true",
            help="keep it in the storage of uploads (S3_BUCKET), in the folder backups/",
        ),
        argument("--json", action="store_true", help="print what it holds as JSON"),
    )

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            done = self._to_storage(options["target"]) if options["storage"] else self._to_path(Path(options["target"]))
        except OSError as error:
            raise CommandError(
                f"{options['target']} cannot be written ({error.strerror or error}): choose another place"
            ) from error
        said = (
            f"{done['knowledge_bases']} knowledge bases, {done['documents']} documents, {done['chunks']} chunks, "
            f"{done['files']} files, {done['size'] / 1024**2:.1f} MB. It holds everything but SECRET_KEY and the other variables: keep them elsewhere."
        )
        self.answer(options, done, [said])
        if done["missing_files"] and not options["json"]:
            self.stderr.write(
                f"{done['missing_files']} uploaded files and pictures are not there any more and were left out"
            )

    def _to_path(self, target: Path) -> dict[str, int]:
        if target.exists():
            raise CommandError(f"{target} is there already: choose another file, or delete it")
        with self.progress_bar(unit="B") as bar:
            return backup(target, on_bytes=bar.update)

    def _to_storage(self, name: str) -> dict[str, int]:
        stored = stored_name(name)
        with tempfile.TemporaryDirectory(dir=archive_folder()) as folder:
            done = self._to_path(Path(folder) / name)
            with (Path(folder) / name).open("rb") as made:
                replace_file(stored, File(made, name=name))
        return done
