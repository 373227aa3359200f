from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from kb.base.files import private_file
from kb.management.base import KnowledgeBaseCommand, argument, kb_arguments
from kb.operations.services.archives.export import archive_rows, export_kb


class Command(KnowledgeBaseCommand):
    help = "Writes a whole knowledge base into one archive, from which `import_kb` makes the same one anywhere."

    arguments = (
        argument("file", type=Path, help="where to; a file that is there is not replaced"),
        *kb_arguments(),
        argument("--vectors", action="store_true", help="with its vectors, so that the importer need not embed"),
    )

    def handle(self, *_: Any, **options: Any) -> None:
        path, kb = options["file"], self.knowledge_base(options)
        if path.exists():
            raise CommandError(f"{path} is there already: choose another file, or delete it")
        unfinished = path.with_name(f"{path.name}.part")
        try:
            total = archive_rows(kb, vectors=options["vectors"])
            with private_file(unfinished) as target, self.progress_bar(total=total, unit="rows") as bar:
                done = export_kb(kb, target, vectors=options["vectors"], on_progress=bar.update)
            unfinished.rename(path)
        except OSError as error:
            raise CommandError(f"{path} cannot be written ({error.strerror}): choose another folder") from error
        finally:
            unfinished.unlink(missing_ok=True)
        rows = done.rows
        self.stdout.write(
            f"{kb.name}: {rows['documents']} documents, {rows['chunks']} chunks, {rows['judgments']} judgments, "
            f"{done.files} files, {done.vectors} vectors, {path.stat().st_size / 1024**2:.1f} MB"
        )
        if done.missing_files:
            self.stderr.write(f"{done.missing_files} original files are no longer on the disk and were left out")
