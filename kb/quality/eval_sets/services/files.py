"""Evaluation sets as files: in the layouts of BEIR and TREC, as folders and as ZIP files, which are bounded."""

import hashlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from django.conf import settings
from django.core.files import File
from django.db import transaction
from django.db.models import Case, Exists, F, OuterRef, Prefetch, When
from django.http import FileResponse
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, User
from kb.base.errors import NotVisible, Rejected
from kb.base.text import file_name, storable
from kb.content.models import Chunk, Document
from kb.ingest.services.documents import batches, write_whole_documents
from kb.quality.eval_sets.services.sets import documents_by_label, require_editable_base, set_name, source_label
from kb.quality.models import EvalQuery, EvalSet, Judgment
from retrieval.eval.judged_sets import (
    JudgedQuery,
    JudgedSet,
    Layout,
    SourceJudgment,
    anchor_hash,
    read_judged_set,
    squeezed,
    write_judged_set,
)
from retrieval.eval.qrels import BeirPassage, SetFormatError, SetProblem, iter_corpus, write_json_lines

BATCH = 500
DOCUMENTS_AT_ONCE = 200
_SHORTEST_OVERLAP = 8  # characters: an overlap of chunks is of whole sentences


@dataclass(frozen=True, slots=True)
class ImportedSet:
    """What an import made; `missing` judgments are of documents that the base lacks, and count once it has them."""

    eval_set: EvalSet
    queries: int
    judgments: int
    missing: int


def eval_set_import(
    principal: Principal,
    knowledge_base: KnowledgeBase,
    directory: Path,
    name: str = "",
    *,
    layout: Layout | None = None,
    replace: bool = False,
) -> ImportedSet:
    """Reads a folder as an evaluation set of a knowledge base, whose documents are known by their source.

    A blank name stands for the one in the files, no layout for that which they have. With `replace` a set of the name
    gives its queries and judgments up; its runs stay. Raises as `require_editable_base`, `SetFormatError` where a file
    is missing or wrong, and `Rejected` where there is a set of the name that shall stay; nothing was changed then.
    """
    require_editable_base(principal, knowledge_base)
    judged = read_judged_set(directory, layout)
    name = set_name(name or judged.name)
    if not replace and EvalSet.objects.filter(knowledge_base=knowledge_base, name=name).exists():
        raise Rejected(
            "name_taken",
            _("The knowledge base has an evaluation set named “%(name)s” already: replace it, or choose another name."),
            name=name,
        )
    return write_eval_set(knowledge_base, name, judged, user=principal.user)


def write_eval_set(kb: KnowledgeBase, name: str, judged: JudgedSet, *, user: Any = None) -> ImportedSet:
    """Writes a set in one transaction, in place of the queries and judgments of one of the same name.

    Queries that stay, by their ids, keep their rows, so that earlier runs still lead to them.
    """
    judgments = _distinct(
        SourceJudgment(storable(each.query_id), storable(each.source), each.grade, storable(each.quote))
        for each in judged.judgments
    )
    by_label = documents_by_label(kb, {each.source for each in judgments})
    with transaction.atomic():
        eval_set, _is_new = EvalSet.objects.get_or_create(knowledge_base=kb, name=name)
        EvalSet.objects.select_for_update(no_key=True).get(pk=eval_set.pk)
        queries = _write_queries(eval_set, judged.queries)
        rows = [
            Judgment(
                query_id=queries[each.query_id],
                # Where several have the source, the judgment is of the one that holds its words.
                document_id=by_label[each.source][0] if len(by_label.get(each.source, ())) == 1 else None,
                source=each.source,
                quote=each.quote,
                quote_hash=anchor_hash(each.quote) if each.quote else "",
                grade=each.grade,
                created_by=user if isinstance(user, User) else None,
            )
            for each in judgments
        ]
        Judgment.objects.bulk_create(rows, batch_size=BATCH)
    return ImportedSet(eval_set, len(queries), len(rows), sum(row.source not in by_label for row in rows))


def eval_set_export(
    principal: Principal, eval_set: EvalSet, directory: Path, layout: Layout, *, with_documents: bool = True
) -> None:
    """Writes a set into a folder, which it makes, and from which `eval_set_import` makes the same set.

    With documents, the texts of all of them stand beside, as corpus.jsonl, for an installation that lacks them
    (`manage.py import_beir`). Raises `NotVisible` where the set does not exist for the principal.
    """
    if not EvalSet.objects.visible_to(principal).filter(pk=eval_set.pk).exists():
        raise NotVisible(_("There is no such evaluation set: choose one of the list."))
    kb = eval_set.knowledge_base
    write_judged_set(
        directory, judged_set(eval_set), layout, documents=frozenset(_labelled(kb).values_list("label", flat=True))
    )
    if with_documents:
        write_json_lines(directory / "corpus.jsonl", corpus(kb))


def judged_set(eval_set: EvalSet) -> JudgedSet:
    """A set as its files hold it: documents are known by their source; of equal judgments the best counts."""
    queries = EvalQuery.objects.filter(eval_set=eval_set).order_by("pk")
    rows = Judgment.objects.filter(query__eval_set=eval_set).select_related("document", "query").order_by("query", "pk")
    judgments = (
        SourceJudgment(
            row.query.external_id, source_label(row.document) if row.document else row.source, row.grade, row.quote
        )
        for row in rows.iterator(BATCH)
    )
    return JudgedSet(
        eval_set.name,
        tuple(JudgedQuery(query.external_id, query.text, query.answerable) for query in queries.iterator(BATCH)),
        _distinct(judgments),
    )


def corpus(kb: KnowledgeBase) -> Iterator[dict[str, str]]:
    """The documents as lines of corpus.jsonl: by source, each with the text of its chunks; those of one source are one."""
    chunks = Prefetch("chunks", Chunk.objects.only("document", "text").order_by("position"))
    rows = _labelled(kb).order_by("label", "pk").prefetch_related(chunks).iterator(DOCUMENTS_AT_ONCE)
    for label, documents in groupby(rows, key=lambda document: document.label):
        same = list(documents)
        texts = (joined_text([chunk.text for chunk in each.chunks.all()]) for each in same)
        yield {"_id": label, "title": same[0].title, "text": "\n\n".join(texts)}


def joined_text(texts: Iterable[str]) -> str:
    """The text that chunks were cut from, with what they repeat of each other left out."""
    whole = ""
    for text in texts:
        repeated = _overlap(whole, text)
        whole += text[repeated:] if repeated else f"\n{text}"
    return whole.strip()


def _overlap(before: str, text: str) -> int:
    """How many characters at the start of a chunk stand at the end of the text before it."""
    tail = before[-len(text) :]
    places = (found.start() for found in re.finditer(f"(?={re.escape(text[:_SHORTEST_OVERLAP])})", tail))
    sizes = (len(tail) - at for at in places if text.startswith(tail[at:]))
    return next((size for size in sizes if size >= _SHORTEST_OVERLAP), 0)


def _labelled(kb: KnowledgeBase) -> Any:
    """The documents that can be found, with the `label` that judgments know them by."""
    label = Case(When(source="", then=F("title")), default=F("source"))
    return (
        Document.objects.filter(Exists(Chunk.objects.filter(document=OuterRef("pk"))), knowledge_base=kb)
        .annotate(label=label)
        .exclude(label="")
    )


def _write_queries(eval_set: EvalSet, queries: Iterable[JudgedQuery]) -> dict[str, int]:
    wanted = {storable(query.id): query for query in queries}
    own = EvalQuery.objects.filter(eval_set=eval_set)
    Judgment.objects.filter(query__eval_set=eval_set).delete()
    own.exclude(external_id__in=wanted).delete()
    EvalQuery.objects.bulk_create(
        [
            EvalQuery(eval_set=eval_set, external_id=key, text=storable(query.text), answerable=query.answerable)
            for key, query in wanted.items()
        ],
        batch_size=BATCH,
        update_conflicts=True,
        unique_fields=["eval_set", "external_id"],
        update_fields=["text", "answerable"],
    )
    return dict(own.values_list("external_id", "pk"))


def _distinct(judgments: Iterable[SourceJudgment]) -> tuple[SourceJudgment, ...]:
    """Each passage once, whatever its white space, with the best grade."""
    best: dict[tuple[str, str, str], SourceJudgment] = {}
    for each in judgments:
        key = (each.query_id, each.source, squeezed(each.quote))
        if key not in best or best[key].grade < each.grade:
            best[key] = each
    return tuple(best.values())


def import_passages(
    knowledge_base: KnowledgeBase, directory: Path, on_progress: Callable[[int], None] = lambda _: None
) -> tuple[int, int]:
    """Imports corpus.jsonl; passages that are there already are kept, changed ones replaced, so it can be run again.

    `on_progress` is called with how many further passages are done. Returns how many were added, and how many were
    there unchanged. Raises `SetFormatError` where the file is missing or a line of it is wrong (earlier batches stay
    imported), and `ModelUnavailable` where the knowledge base's model cannot be loaded.
    """
    known = dict(Document.objects.filter(knowledge_base=knowledge_base).values_list("source", "sha256"))
    added = unchanged = 0
    for batch in batches(iter_corpus(directory)):
        fresh = [passage for passage in batch if known.get(passage.id) != _digest(passage)]
        changed = [passage.id for passage in fresh if passage.id in known]
        replaced = Document.objects.filter(knowledge_base=knowledge_base, source__in=changed)
        documents = [
            (Document(title=each.title, source=each.id, sha256=_digest(each)), each.text or each.title)
            for each in fresh
        ]
        write_whole_documents(knowledge_base, documents, replaced=replaced)
        added, unchanged = added + len(fresh), unchanged + len(batch) - len(fresh)
        on_progress(len(batch))
    return added, unchanged


def import_eval_set(knowledge_base: KnowledgeBase, directory: Path, name: str) -> ImportedSet:
    """Imports queries and judgments in place of those of a set of the same name; queries of other splits are left out.

    Raises `SetFormatError` where a file is missing or a line of it is wrong; nothing was changed then.
    """
    documents = frozenset(Document.objects.filter(knowledge_base=knowledge_base).values_list("source", flat=True))
    return write_eval_set(knowledge_base, name, read_judged_set(directory, Layout.BEIR, documents=documents))


def _digest(passage: BeirPassage) -> str:
    return hashlib.sha256("\0".join((passage.id, passage.title, passage.text)).encode()).hexdigest()


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
MAX_BYTES = 200 * 1024**2  # of the files of a set, unpacked; a corpus is not unpacked

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

    Raises `Rejected` where the archive or a file in it is wrong.
    """
    if file.size > settings.MAX_UPLOAD_BYTES:
        megabytes = settings.MAX_UPLOAD_BYTES // 1024**2
        raise Rejected(
            "too_large",
            _("“%(name)s” is larger than %(megabytes)s MB: take its corpus out, which is not read."),
            name=file.name,
            megabytes=megabytes,
        )
    with TemporaryDirectory(prefix="eval-set-", dir=settings.FILE_UPLOAD_TEMP_DIR) as folder:
        root = Path(folder) / (PurePosixPath((file.name or "").replace("\\", "/")).stem[:_NAME_CHARACTERS] or "set")
        root.mkdir()
        unpack(file, root)
        try:
            return eval_set_import(principal, knowledge_base, root, name, layout=layout, replace=replace)
        except SetFormatError as error:
            raise Rejected("bad_set_file", format_problem_text(error, str(root))) from error


def eval_set_response(
    principal: Principal, eval_set: EvalSet, layout: Layout, *, with_documents: bool = True
) -> FileResponse:
    """A set as a ZIP file to download; `NotVisible` where the set does not exist for the principal."""
    with TemporaryDirectory(prefix="eval-set-", dir=settings.FILE_UPLOAD_TEMP_DIR) as folder:
        root = Path(folder) / "set"
        eval_set_export(principal, eval_set, root, layout, with_documents=with_documents)
        archive = TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 - the response closes it
        pack(root, archive)
    archive.seek(0)
    return FileResponse(
        archive,
        as_attachment=True,
        filename=f"{file_name(eval_set.name)}.{layout}.zip",
        content_type="application/zip",
    )


def pack(directory: Path, archive: IO[bytes] | Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                target.write(path, path.relative_to(directory).as_posix())


def unpack(archive: Any, directory: Path) -> None:
    """Takes the files of a set out of a ZIP file; they may lie in a folder of it.

    Raises `Rejected` where it is no ZIP file, is damaged or encrypted, names files outside of it, or is too large.
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
        raise Rejected("too_many_entries", message, count=MAX_ENTRIES)
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            message = _("The ZIP file names “%(name)s”, which is outside of it: pack the files once more.")
            raise Rejected("outside", message, name=entry.filename[:_NAME_CHARACTERS])
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
                    _("The files of the evaluation set have more than %(megabytes)d MB: split it into smaller sets."),
                    megabytes=MAX_BYTES // 1024**2,
                )
            unpacked.write(block)
    return left
