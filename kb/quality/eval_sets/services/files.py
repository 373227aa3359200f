"""Evaluation sets as ZIP files: what is uploaded is bounded, and only files of a set are taken out of it."""

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from django.conf import settings
from django.core.files import File
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import Rejected
from kb.base.text import storable
from kb.content.models import Document
from kb.ingest.services.documents import WholeDocument, batches, write_whole_documents
from kb.quality.eval_sets.services.sets import ImportedSet, eval_set_export, eval_set_import, write_eval_set
from kb.quality.models import EvalSet
from retrieval.eval.judged_sets import Layout, read_judged_set
from retrieval.eval.qrels import BeirPassage, SetFormatError, SetProblem, iter_corpus


def import_passages(
    knowledge_base: KnowledgeBase, directory: Path, on_progress: Callable[[int], None] = lambda _: None
) -> tuple[int, int]:
    """Imports a corpus; passages that are there already are kept, changed ones replaced, so it can be run again.

    Args:
        knowledge_base: where to.
        directory: holds corpus.jsonl.
        on_progress: told how many further passages are done.

    Returns:
        How many passages were added, and how many were there unchanged.

    Raises:
        SetFormatError: the file is missing or a line of it is wrong; earlier batches stay imported.
        ModelUnavailable: the knowledge base's model cannot be loaded.
    """
    known = dict(Document.objects.filter(knowledge_base=knowledge_base).values_list("source", "sha256"))
    added = unchanged = 0
    for batch in batches(iter_corpus(directory)):
        fresh = [passage for passage in batch if known.get(passage.id) != _digest(passage)]
        changed = [passage.id for passage in fresh if passage.id in known]
        replaced = Document.objects.filter(knowledge_base=knowledge_base, source__in=changed)
        write_whole_documents(knowledge_base, [_document(passage) for passage in fresh], replaced=replaced)
        added, unchanged = added + len(fresh), unchanged + len(batch) - len(fresh)
        on_progress(len(batch))
    return added, unchanged


def import_eval_set(knowledge_base: KnowledgeBase, directory: Path, name: str) -> tuple[int, int]:
    """Imports queries and judgments in place of those of a set of the same name; queries of other splits are left out.

    Returns:
        The number of queries and of judgments.

    Raises:
        SetFormatError: a file is missing or a line of it is wrong; nothing was changed.
    """
    documents = frozenset(Document.objects.filter(knowledge_base=knowledge_base).values_list("source", flat=True))
    judged = read_judged_set(directory, Layout.BEIR, documents=documents)
    imported = write_eval_set(knowledge_base, name, judged)
    return imported.queries, imported.judgments


def _digest(passage: BeirPassage) -> str:
    return hashlib.sha256("\0".join((passage.id, passage.title, passage.text)).encode()).hexdigest()


def _document(passage: BeirPassage) -> WholeDocument:
    return WholeDocument(passage.text or passage.title, title=passage.title, source=passage.id, sha256=_digest(passage))


def format_problem_text(error: SetFormatError, root: str = "") -> str:
    """The sentence in the reader's language; the place is named from `root` on."""
    sentences: Mapping[SetProblem, str] = {
        "missing_file": _("“%(place)s” does not exist: add it."),
        "missing_split": _("“%(place)s” does not exist: choose one of the splits %(splits)s."),
        "no_set": _("There is neither queries.jsonl (BEIR) nor a topics file (TREC): add one."),
        "several_files": _("These files could all be the one: %(names)s. Keep one of them."),
        "not_utf8": _("%(place)s: not UTF-8: save the file as UTF-8."),
        "not_json": _("%(place)s: not valid JSON (%(reason)s): correct the line."),
        "bad_meta": _("%(place)s: not valid JSON (%(reason)s): correct the file, or take it out."),
        "not_object": _("%(place)s: not a JSON object: each line must be one."),
        "no_field": _("%(place)s: the field “%(field)s” is missing or no string: add it."),
        "bad_id": _("%(place)s: the id “%(id)s” is empty or was used before: give each line an id of its own."),
        "too_long": _("%(place)s: the field “%(field)s” is longer than %(length)s characters: shorten it."),
        "bad_answerable": _("%(place)s: metadata.answerable must be true, false or absent: correct it."),
        "bad_topic": _("%(place)s: this is no topic: write the query’s id, a tab and the query."),
        "bad_judgment": _(
            "%(place)s: there are %(count)s fields: a line is query-id, corpus-id and score with tabs between."
        ),
        "bad_trec_judgment": _(
            "%(place)s: this is no judgment: a line is a query’s id, 0, a document’s id and a whole number."
        ),
        "unknown_query": _("%(place)s: unknown query “%(id)s”: add it to %(queries)s, or delete the line."),
        "unknown_passage": _("%(place)s: unknown document “%(id)s”: import it first, or delete the line."),
        "not_a_grade": _("%(place)s: the score “%(grade)s” is no whole number from 0: correct the line."),
        "grade_too_high": _(
            "%(place)s: the grade %(grade)s is above %(most)s: scale the grades down to 0 to %(most)s."
        ),
        "judged_twice": _("%(place)s: the query “%(query)s” judges “%(id)s” twice: keep one line."),
    }
    place = error.place.removeprefix(root).removeprefix("/")
    return storable(sentences[error.problem] % {**error.params, "place": place})


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
        raise Rejected(
            "too_large",
            _("“%(name)s” is larger than %(megabytes)s MB: take its corpus out, which is not read.")
            % {"name": file.name, "megabytes": megabytes},
        )
    with TemporaryDirectory(prefix="eval-set-", dir=settings.FILE_UPLOAD_TEMP_DIR) as folder:
        root = Path(folder) / (PurePosixPath((file.name or "").replace("\\", "/")).stem[:_NAME_CHARACTERS] or "set")
        root.mkdir()
        unpack(file, root)
        try:
            return eval_set_import(principal, knowledge_base, root, name, layout=layout, replace=replace)
        except SetFormatError as error:
            raise Rejected("bad_set_file", format_problem_text(error, str(root))) from error


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
    name = "".join("-" if character in '/\\:*?"<>|' else character for character in eval_set.name)
    return f"{name}.{layout}.zip"


def pack(directory: Path, archive: IO[bytes] | Path) -> None:
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
                if name := _name_in_set(path, folder):
                    left = _copy(source, entry, directory / name, left)
    except _DAMAGED as error:
        raise Rejected(
            "not_a_zip", _("This is no ZIP file that can be read, or it is damaged: pack the files once more.")
        ) from error


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
    if not path.is_relative_to(folder) or len(path.name) > _NAME_CHARACTERS:
        return None
    name = path.relative_to(folder)
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
                raise Rejected(
                    "too_large",
                    _("The files of the evaluation set have more than %(megabytes)d MB: split it into smaller sets.")
                    % {"megabytes": MAX_BYTES // 1024**2},
                )
            unpacked.write(block)
    return left
