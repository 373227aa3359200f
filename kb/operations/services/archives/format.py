"""What an archive of a knowledge base holds, and how one that anybody may have made is read.

An archive holds tables of JSON lines, which refer to one another by line number, and files. Everything that is read is
bounded and checked; what is wrong is refused with a sentence.
"""

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, NoReturn

from django.conf import settings
from django.db.models import Model
from django.utils.translation import gettext as _

from kb.base.errors import Rejected
from kb.base.text import is_storable
from kb.content.models import Chunk, ChunkParent, Document, Folder, Picture
from kb.graph.models import Concept, ConceptTerm, Entity, EntityName, FactSource, GraphFact
from kb.index.models import ChunkEmbedding
from kb.profiles.models import RetrievalProfile
from kb.quality.models import EvalQuery, EvalSet, Judgment
from kb.sources.models import SearchProvider, Source, SourceItem

FORMAT: Final = "zhiku-knowledge-base"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
FILES: Final = "files/"
PICTURES: Final = "pictures/"
FILE_LIST: Final = "files.jsonl"
"""Of every original: the line of its document, the ending of its name, its size and its SHA-256."""
VECTOR_KINDS: Final = tuple(ChunkEmbedding.Kind.values)
MAX_DEPTH = 20
_MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Limits:
    """What is read of an archive.

    Attributes:
        total_bytes: of all that it unpacks to.
        ratio: unpacked to packed, of an entry of more than `ratio_from` bytes.
        directory_bytes: of the list of its entries, which is held in memory.
        line_bytes: of a row, in JSON.
        manifest_bytes: of the manifest, which holds the tokenizer's dictionary.
    """

    archive_bytes: int
    total_bytes: int
    ratio: int = 200
    ratio_from: int = 64 * _MIB
    directory_bytes: int = 16 * _MIB
    line_bytes: int = 16 * _MIB
    manifest_bytes: int = 32 * _MIB


def limits() -> Limits:
    """Those of the installation."""
    return Limits(archive_bytes=settings.MAX_ARCHIVE_BYTES, total_bytes=8 * settings.MAX_ARCHIVE_BYTES)


@dataclass(frozen=True, slots=True)
class Table:
    """A part of an archive: one row of the database a line, in the order of their ids.

    Attributes:
        fields: that are written as they are.
        refers: foreign keys, with the table that they lead into; a row is known by its line there, counted from 0.
        added: of the fields and foreign keys, those that archives of earlier releases lack; they have their defaults then.
        is_new: archives of earlier releases lack the table.
        only: lookups of the rows that it holds; those left out are made by hand again, such as sources with secrets.
        kb_path: the lookup that leads to the knowledge base; as it is, where the rows have a foreign key of this name.
    """

    name: str
    model: type[Model]
    fields: tuple[str, ...] = ()
    refers: dict[str, str] = field(default_factory=dict)
    kb_path: str = "knowledge_base"
    added: frozenset[str] = frozenset()
    is_new: bool = False
    only: dict[str, Any] = field(default_factory=dict)

    @property
    def part(self) -> str:
        return f"{self.name}.jsonl"

    @property
    def keys(self) -> frozenset[str]:
        """Those of a line."""
        return frozenset((*self.fields, *self.refers))


KNOWLEDGE_BASE_FIELDS: Final = (
    "name", "description", "language", "chunk_size", "chunk_overlap", "chunk_unit", "chunk_strategy", "parent_size",
    "keyword_vectors", "keyword_method", "ask_questions", "extract_graph", "no_answer", "word_parts",
)  # fmt: skip
# What a knowledge base has that archives of earlier versions lack, with its default.
LATER_FIELDS: Final = {"word_parts": ["notes"]}
TOKENIZER_FIELDS: Final = ("engine", "dictionary", "stop_words", "simplify")
# A table comes after those that it refers to, so that its rows can be written as they are read.
TABLES: Final = (
    Table("profiles", RetrievalProfile, ("name", "version", "description", "settings", "published", "published_at")),
    Table("concepts", Concept, ("name", "description"), {"parent": "concepts"}),
    Table("concept_terms", ConceptTerm, ("text", "kind"), {"concept": "concepts"}),
    Table("folders", Folder, ("name",), {"parent": "folders"}, is_new=True),
    Table("documents", Document, (
        "title", "source", "source_type", "mime", "size", "sha256", "metadata", "tags", "status", "keep_chunks",
        "chunking", "indexed_title", "remarks", "created_at",
    ), {"folder": "folders"}, added=frozenset({"folder"})),
    Table("document_concepts", Document.concepts.through, (),
          {"document": "documents", "concept": "concepts"}, "document__knowledge_base"),
    Table("parents", ChunkParent, ("position", "text", "page", "regions", "heading_path"), {"document": "documents"},
          added=frozenset({"regions"})),
    Table("chunks", Chunk, (
        "position", "text", "cut_text", "page", "regions", "seconds", "pictures", "heading_path", "keywords", "questions",
        "own_keywords", "own_questions", "own_cut", "enabled", "is_hidden", "token_count", "parent_spans",
    ), {"document": "documents", "parent": "parents"},
          added=frozenset({"regions", "seconds", "pictures", "is_hidden", "parent_spans"})),
    Table("pictures", Picture, (
        "number", "sha256", "mime", "size", "width", "height", "page", "box", "caption", "alternative", "recognised",
        "description", "described_by",
    ), {"document": "documents"}, is_new=True),
    Table("entities", Entity, ("name", "kind", "description", "origin")),
    Table("entity_names", EntityName, ("text",), {"entity": "entities"}),
    Table("facts", GraphFact, ("subject", "predicate", "object", "origin"), {"source_chunk": "chunks"}),
    Table("fact_sources", FactSource, (),
          {"fact": "facts", "document": "documents", "chunk": "chunks"}, "fact__knowledge_base"),
    Table("eval_sets", EvalSet, ("name",)),
    Table("eval_queries", EvalQuery, ("external_id", "text", "answerable"),
          {"eval_set": "eval_sets"}, "eval_set__knowledge_base"),
    Table("judgments", Judgment, ("source", "quote", "grade", "created_at"),
          {"query": "eval_queries", "document": "documents"}, "query__eval_set__knowledge_base"),
    Table("web_sources", Source, (
        "name", "kind", "url", "enabled", "live", "every_minutes", "max_pages", "max_depth", "include", "exclude",
        "tags", "hides_gone",
    ), only={"kind__in": Source.WEB}, added=frozenset({"hides_gone"})),
    Table("web_pages", SourceItem, (
        "url", "title", "state", "etag", "last_modified", "content_hash", "version", "fetched_at", "gone_at",
    ), {"source": "web_sources", "document": "documents"}, "source__knowledge_base",
          only={"source__kind__in": Source.WEB}),
    Table("search_providers", SearchProvider, ("name", "kind", "settings", "enabled", "timeout_ms", "weight")),
)  # fmt: skip
TABLE: Final = {table.name: table for table in TABLES}


def vector_parts(kind: str) -> tuple[str, str]:
    """The part of a kind's vectors, float16 of shape (n, dimension), and that of their rows, int64 of shape (n, 2).

    A row is the chunk's line and the ordinal of the vector among those of its kind; rows ascend.
    """
    return f"vectors/{kind}.npy", f"vectors/{kind}.rows.npy"


def file_part(line: int, suffix: str) -> str:
    """Where a document's original lies in the archive."""
    return f"{FILES}{line}{'.' + suffix if suffix else ''}"


def picture_part(line: int) -> str:
    """Where the file of a picture lies in the archive."""
    return f"{PICTURES}{line}"


_ENCRYPTED = 0x1
_REQUIRED = frozenset((*(table.part for table in TABLES if not table.is_new), FILE_LIST))
_PARTS = frozenset((*(table.part for table in TABLES), FILE_LIST)).union(*map(vector_parts, VECTOR_KINDS))
# What zipfile raises for an archive that is damaged, or made in a way that it does not know.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)
_MOST_ROWS = 2**31
_FILE = re.compile(rf"{FILES}[0-9]+(\.[A-Za-z0-9]*)?|{PICTURES}[0-9]+")


def damaged(reason: str) -> Rejected:
    """What a caller reads about an archive that does not hold what it should; the reason is for who made it."""
    message = _("The archive is damaged or was changed (%(reason)s): export the knowledge base again and import that.")
    return Rejected("bad_archive", message, reason=reason)


def too_large(bytes_allowed: int) -> Rejected:
    """What a caller reads about an archive that is larger than the installation allows."""
    message = _("The archive has more than %(megabytes)d MB: set MAX_ARCHIVE_MB higher on the server, and restart it.")
    return Rejected("too_large", message, megabytes=bytes_allowed // 1024**2)


@contextmanager
def open_archive(path: Path, allowed: Limits) -> Iterator["Archive"]:
    """An archive whose list of entries and whose manifest have been checked.

    Raises:
        Rejected: it is no archive of a knowledge base, is damaged, too large, or of a newer version.
    """
    with path.open("rb") as file:
        if path.stat().st_size > allowed.archive_bytes:
            raise too_large(allowed.archive_bytes)
        try:
            archive = zipfile.ZipFile(_BoundedReads(file, allowed.directory_bytes))
        except _DAMAGED as error:
            message = _("This is no ZIP file that can be read, or it is damaged: export the knowledge base again.")
            raise Rejected("not_a_zip", message) from error
        with archive:
            yield Archive(archive, allowed)


class Archive:
    """An open archive.

    Attributes:
        manifest: its JSON, of which the parts have been checked, and nothing else.
        parts: of the manifest; by name, the `rows`, `bytes` and `sha256` of each. No more than that is read of one.
    """

    def __init__(self, archive: zipfile.ZipFile, allowed: Limits) -> None:
        self._archive, self._allowed = archive, allowed
        self._entries = _checked_entries(archive.infolist(), allowed)
        self.manifest = self._read_manifest()
        self.parts = self._checked_parts()

    def rows_in(self, part: str) -> int:
        """How many rows the manifest says that a part has; a table that it does not name has none."""
        return int(self.parts[part]["rows"]) if part in self.parts else 0

    def has(self, name: str) -> bool:
        """Whether an entry is there, whatever it holds."""
        return name in self._entries

    @contextmanager
    def part(self, name: str) -> Iterator[IO[bytes]]:
        """A part as a stream; the end of the block refuses one that differs from the manifest in any byte.

        Raises:
            Rejected: it is damaged, or not of the size and hash that the manifest names.
        """
        stated = self.parts[name]
        with self.entry(name, size=stated["bytes"], sha256=stated["sha256"]) as stream:
            yield stream

    @contextmanager
    def entry(self, name: str, *, size: int, sha256: str) -> Iterator[IO[bytes]]:
        """As `part`, for an entry whose size and hash are stated elsewhere."""
        if name not in self._entries:
            raise damaged(_("“%(name)s” is missing") % {"name": name})
        try:
            with self._archive.open(self._entries[name]) as packed:
                checked = _CheckedStream(packed, size)
                with BufferedReader(checked, _MIB) as stream:
                    yield stream
                    while stream.read(_MIB):  # what a reader has left counts too
                        pass
        except _DAMAGED as error:
            raise damaged(_("“%(name)s” cannot be read") % {"name": name}) from error
        if checked.size != size or checked.digest.hexdigest() != sha256:
            raise damaged(_("“%(name)s” is not what the manifest says") % {"name": name})

    @property
    def unpacked_bytes(self) -> int:
        """What all entries unpack to."""
        return sum(entry.file_size for entry in self._entries.values())

    def json_lines(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The size in bytes and the object of each line of a part.

        Raises:
            Rejected: a line is too long or no JSON object, or the part is not what the manifest says.
        """
        if name not in self.parts:
            return
        count = 0
        with self.part(name) as stream:
            while line := stream.readline(self._allowed.line_bytes + 1):
                count += 1
                if count > self.rows_in(name):
                    break
                if len(line) > self._allowed.line_bytes:
                    raise damaged(_("line %(line)d of “%(name)s” is too long") % {"line": count, "name": name})
                row = _parsed(line)
                if not isinstance(row, dict):
                    raise damaged(_("line %(line)d of “%(name)s” is no JSON object") % {"line": count, "name": name})
                yield len(line), row
        if count != self.rows_in(name):
            raise damaged(_("“%(name)s” has another number of rows than the manifest says") % {"name": name})

    def _read_manifest(self) -> dict[str, Any]:
        manifest = None
        if entry := self._entries.get(MANIFEST):
            try:
                with self._archive.open(entry) as stream:
                    data = stream.read(self._allowed.manifest_bytes + 1)
            except _DAMAGED as error:
                raise damaged(_("“%(name)s” cannot be read") % {"name": MANIFEST}) from error
            manifest = _parsed(data) if len(data) <= self._allowed.manifest_bytes else None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            message = _("This ZIP file is no archive of a knowledge base: choose one that Zhiku has exported.")
            raise Rejected("not_an_archive", message)
        if (found := manifest.get("version")) != VERSION:
            message = _(
                "The archive has the format %(found)s, and this installation reads %(known)s: bring the two installations "
                "to the same version and export again."
            )
            raise Rejected("foreign_version", message, found=str(found)[:20], known=VERSION)
        return manifest

    def _checked_parts(self) -> dict[str, dict[str, Any]]:
        parts = self.manifest.get("parts")
        if not isinstance(parts, dict) or not set(parts) >= _REQUIRED or not set(parts) <= _PARTS:
            raise damaged(_("the manifest names other parts than a knowledge base has"))
        for name, stated in parts.items():
            if not (
                isinstance(stated, dict)
                and _is_count(stated.get("bytes"))
                and _is_count(stated.get("rows"))
                and stated["rows"] < _MOST_ROWS
                and is_sha256(stated.get("sha256"))
            ):
                raise damaged(_("the manifest does not say what “%(name)s” is") % {"name": name})
        for kind in VECTOR_KINDS:
            first, second = (parts.get(part, {}).get("rows") for part in vector_parts(kind))
            if first != second:
                raise damaged(_("the vectors and their rows do not belong together"))
        return parts


def is_sha256(value: Any) -> bool:
    """Whether it is 64 hexadecimal digits, as they are written here."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


class _BoundedReads:
    """A file that refuses to be read in pieces that are too large to hold: zipfile reads its list of entries in one."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file, self._most = file, most
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._most + 1 if size < 0 else min(size, self._most + 1))
        if len(data) > self._most:
            raise zipfile.BadZipFile("the list of entries is too long")
        return data

    def seekable(self) -> bool:
        return True


class _CheckedStream(RawIOBase):
    """Hashes and counts what goes through, and ends with an error where there is more than there should be."""

    def __init__(self, packed: IO[bytes], most: int) -> None:
        self.digest, self.size = hashlib.sha256(), 0
        self._packed, self._most = packed, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._packed.read(min(len(buffer), _MIB))
        self.size += len(data)
        if self.size > self._most:
            raise zipfile.BadZipFile("more comes out than was stated")
        self.digest.update(data)
        buffer[: len(data)] = data
        return len(data)


def _checked_entries(entries: list[zipfile.ZipInfo], allowed: Limits) -> dict[str, zipfile.ZipInfo]:
    """The entries by name; all their names are those that an export writes, so none leads anywhere else."""
    by_name = {entry.filename: entry for entry in entries}
    if len(by_name) != len(entries):
        raise damaged(_("it names an entry twice"))
    for name, entry in by_name.items():
        if not (name == MANIFEST or name in _PARTS or _FILE.fullmatch(name)):
            message = _("The archive holds “%(name)s”, which no export writes: export the knowledge base again.")
            raise Rejected("foreign_entry", message, name=name[:100])
        if entry.flag_bits & _ENCRYPTED:
            raise Rejected("encrypted", _("The archive is protected by a password: import one without."))
        if entry.file_size > max(allowed.ratio_from, allowed.ratio * entry.compress_size):
            raise damaged(_("“%(name)s” unpacks to far more than an export packs") % {"name": name})
    if sum(entry.file_size for entry in entries) > allowed.total_bytes:
        raise too_large(allowed.archive_bytes)
    return by_name


def _parsed(data: bytes) -> Any:
    """JSON of what PostgreSQL can store, not nested deeply; None where it is not."""
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
        return value if _is_sound(value, MAX_DEPTH) else None
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _is_sound(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return is_storable(value)
    if isinstance(value, dict):
        return depth > 0 and all(is_storable(name) and _is_sound(each, depth - 1) for name, each in value.items())
    if isinstance(value, list):
        return depth > 0 and all(_is_sound(each, depth - 1) for each in value)
    return not isinstance(value, int) or abs(value) < 2**63


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
