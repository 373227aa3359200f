"""Evaluation sets as ZIP files: what is uploaded is bounded, and only files of a set are taken out of it."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from django.conf import settings
from django.core.files import File
from django.utils.translation import gettext as _

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import Rejected
from kb.quality.eval_sets.services.errors import format_problem_in_words
from kb.quality.eval_sets.services.sets import ImportedSet, eval_set_export, eval_set_import
from kb.quality.models import EvalSet
from retrieval.eval.judged_sets import Layout
from retrieval.eval.set_errors import SetFormatError

MAX_ENTRIES = 1_000
MAX_BYTES = 200 * 1024**2
"""Of the files of a set, unpacked; a corpus is not unpacked."""

_BLOCK = 1024**2
_NAME_CHARACTERS = 100
_NAMES = frozenset({"meta.json", "queries.jsonl", "passages.jsonl", "unanswerable.txt"})
_PREFIXES = ("topics", "qrels")
# What zipfile raises for an archive that is damaged, or made in a way that it does not know.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)


def eval_set_import_archive(
    principal: Principal,
    knowledge_base: KnowledgeBase,
    file: "File[Any]",
    name: str = "",
    *,
    layout: Layout | None = None,
    replace: bool = False,
) -> ImportedSet:
    """As `eval_set_import`, from a ZIP file; a set without a name in its files has that of the file.

    Raises:
        Rejected: the archive or a file in it is wrong; nothing was changed.
        NotVisible, NotAllowed: as `eval_set_import`.
    """
    if file.size > settings.MAX_UPLOAD_BYTES:
        megabytes = settings.MAX_UPLOAD_BYTES // 1024**2
        message = _("“%(name)s” is larger than %(megabytes)s MB: take its corpus out, which is not read.")
        raise Rejected("too_large", message % {"name": file.name, "megabytes": megabytes})
    with TemporaryDirectory(prefix="eval-set-", dir=settings.FILE_UPLOAD_TEMP_DIR) as folder:
        root = Path(folder) / (PurePosixPath((file.name or "").replace("\\", "/")).stem[:_NAME_CHARACTERS] or "set")
        root.mkdir()
        unpack(file, root)
        try:
            return eval_set_import(principal, knowledge_base, root, name, layout=layout, replace=replace)
        except SetFormatError as error:
            raise Rejected("bad_set_file", format_problem_in_words(error, str(root))) from error


def eval_set_archive(
    principal: Principal, eval_set: EvalSet, layout: Layout, *, with_documents: bool = True
) -> IO[bytes]:
    """A set as an open ZIP file, at its start; the caller closes it, which deletes it.

    Raises:
        NotVisible: the set does not exist for the principal.
    """
    with TemporaryDirectory(prefix="eval-set-", dir=settings.FILE_UPLOAD_TEMP_DIR) as folder:
        root = Path(folder) / "set"
        eval_set_export(principal, eval_set, root, layout, with_documents=with_documents)
        archive = TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 - the caller reads it
        pack(root, archive)
    archive.seek(0)
    return archive


def archive_name(eval_set: EvalSet, layout: Layout) -> str:
    """The file name of a download."""
    name = "".join("-" if character in '/\\:*?"<>|' else character for character in eval_set.name)
    return f"{name}.{layout}.zip"


def pack(directory: Path, archive: IO[bytes] | Path) -> None:
    """Writes the files of a folder into a ZIP file."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                target.write(path, path.relative_to(directory).as_posix())


def unpack(archive: Any, directory: Path) -> None:
    """Takes the files of a set out of a ZIP file; they may lie in a folder of it.

    Raises:
        Rejected: it is no ZIP file, is damaged or encrypted, names files outside of it, or is too large.
    """
    try:
        with zipfile.ZipFile(archive) as source:
            entries = list(_files(source.infolist()))
            folder = _folder([path for path, _entry in entries])
            left = MAX_BYTES
            for path, entry in entries:
                name = _name_in_set(path, folder)
                if name is not None:
                    left = _copy(source, entry, directory / name, left)
    except _DAMAGED as error:
        message = _("This is no ZIP file that can be read, or it is damaged: pack the files once more.")
        raise Rejected("not_a_zip", message) from error


def _files(entries: Sequence[zipfile.ZipInfo]) -> Iterator[tuple[PurePosixPath, zipfile.ZipInfo]]:
    if len(entries) > MAX_ENTRIES:
        message = _("The ZIP file has more than %(count)d entries: pack only the files of the evaluation set.")
        raise Rejected("too_many_entries", message % {"count": MAX_ENTRIES})
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            message = _("The ZIP file names “%(name)s”, which is outside of it: pack the files once more.")
            raise Rejected("outside", message % {"name": entry.filename[:_NAME_CHARACTERS]})
        if entry.flag_bits & 1:
            raise Rejected("encrypted", _("The ZIP file is protected by a password: pack the files without one."))
        if not entry.is_dir():
            yield path, entry


def _folder(paths: Sequence[PurePosixPath]) -> PurePosixPath:
    """The folder of the archive that the set is in: where its queries are."""
    marks = [path for path in paths if path.name == "queries.jsonl" or path.name.startswith("topics")]
    return min(marks, key=lambda path: len(path.parts)).parent if marks else PurePosixPath()


def _name_in_set(path: PurePosixPath, folder: PurePosixPath) -> PurePosixPath | None:
    """Where a file of the set goes; None for others."""
    if not path.is_relative_to(folder):
        return None
    name = path.relative_to(folder)
    if len(name.name) > _NAME_CHARACTERS:
        return None
    is_split = name.parent == PurePosixPath("qrels") and name.suffix == ".tsv"
    is_top = len(name.parts) == 1 and (name.name in _NAMES or name.name.startswith(_PREFIXES))
    return name if is_split or is_top else None


def _copy(source: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, left: int) -> int:
    """Writes an entry out; returns how many bytes the others may have. What the archive says of its sizes may be false."""
    path.parent.mkdir(exist_ok=True)
    with source.open(entry) as packed, path.open("wb") as unpacked:
        while block := packed.read(_BLOCK):
            left -= len(block)
            if left < 0:
                message = _(
                    "The files of the evaluation set have more than %(megabytes)d MB: split it into smaller sets."
                )
                raise Rejected("too_large", message % {"megabytes": MAX_BYTES // 1024**2})
            unpacked.write(block)
    return left
