"""Lines of an archive as rows of the database: everything that can be wrong is found before anything is written.

Every field is checked as a form would, and what follows from it is computed again.
"""

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

import msgspec
import regex
from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _, gettext_noop

from kb.access.models import KnowledgeBase
from kb.base.findings import Remark, RemarkCode
from kb.base.net.addresses import FetchError, parse_url
from kb.base.shapes import as_values
from kb.base.text import hash_content, normalized_key
from kb.content.folders.services import MOST_DEPTH, MOST_FOLDERS
from kb.content.models import Chunk, ChunkParent, Document, Folder, Picture
from kb.graph.models import Concept, ConceptTerm, EntityName, GraphFact
from kb.index.services.tokenizing import read_settings
from kb.ingest.services.pictures import MOST_PICTURES
from kb.ingest.services.rechunk import MOST_REGIONS
from kb.operations.services.archives.format import (
    FILE_LIST,
    KNOWLEDGE_BASE_FIELDS,
    LATER_FIELDS,
    TABLE,
    TABLES,
    TOKENIZER_FIELDS,
    Archive,
    Table,
    damaged,
    is_sha256,
)
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, MAX_VERSION, NOT_IN_NAMES, configuration_of
from kb.providers.models import TokenizerSettings
from kb.quality.models import Judgment
from kb.sources.connectors.listing import MOST_PATTERNS, compiled
from kb.sources.models import SearchProvider, Source, SourceItem
from kb.sources.services.items import hash_of
from retrieval.errors import InvalidConfiguration
from retrieval.eval.judged_sets import anchor_hash
from retrieval.types import PageRegion

FAILED_BEFORE: Final = gettext_noop(
    "This document had failed in the knowledge base that the archive was made from: process it again."
)
NO_IDS: Mapping[str, Sequence[int]] = {}
MOST_PAGES: Final = 2**31
MOST_SPANS: Final = 1_000  # of a chunk; one for each of those that it was merged of
# The types that JSON gives for the fields of the tables.
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "ArrayField": (list,),
    "BooleanField": (bool,),
    "CharField": (str,),
    "DateTimeField": (str,),
    "FloatField": (float, int),
    "JSONField": (dict, list),
    "PositiveBigIntegerField": (int,),
    "PositiveIntegerField": (int,),
    "PositiveSmallIntegerField": (int,),
    "TextField": (str,),
}


class WrongRow(ValueError):
    """A line that no row can be made of; the message says which field is at fault."""


def _require(condition: object, field_name: str) -> None:
    if not condition:
        raise WrongRow(field_name)


def read_settings_of(archive: Archive) -> tuple[dict[str, Any], TokenizerSettings]:
    """The fields of an archive's knowledge base, and its tokenizer, unsaved; all else in the manifest is checked.

    Raises:
        Rejected: they are not those of a knowledge base, or ask for packages that are not installed.
    """
    try:
        return _checked_settings(archive.manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(_("the manifest lacks a setting")) from error
    except WrongRow as error:
        raise damaged(_("the manifest’s “%(field)s” is wrong") % {"field": error}) from error


def _checked_settings(manifest: Mapping[str, Any]) -> tuple[dict[str, Any], TokenizerSettings]:
    of_kb, of_tokenizer = {**LATER_FIELDS, **manifest["knowledge_base"]}, manifest["tokenizer"]
    embedding, profile = manifest["embedding"], manifest["profile"]
    has_all = of_kb.keys() == set(KNOWLEDGE_BASE_FIELDS) and of_tokenizer.keys() == {"id", *TOKENIZER_FIELDS}
    _require(has_all, "knowledge_base, tokenizer")
    fields = _checked_fields(KnowledgeBase, KNOWLEDGE_BASE_FIELDS, of_kb)
    _require(fields["name"].strip() and fields["chunk_overlap"] < fields["chunk_size"], "name, chunk_overlap")
    tokenizer = read_settings(**_checked_fields(TokenizerSettings, TOKENIZER_FIELDS, of_tokenizer))
    model = embedding["model"]
    _require(isinstance(model, str) and model and isinstance(embedding["dimension"] or 0, int), "embedding")
    name, number = profile["name"], profile["version"]
    _require(
        isinstance(name, str)
        and 0 < len(name.strip()) <= MAX_NAME_CHARACTERS
        and name.isprintable()
        and not NOT_IN_NAMES & set(name)
        and isinstance(number, int)
        and 0 < number <= MAX_VERSION
        and isinstance(profile["description"], str)
        and isinstance(profile["is_own"], bool),
        "profile",
    )
    _check_profile_settings(profile["settings"])
    _require(isinstance(manifest["configuration"], dict), "configuration")
    return fields, tokenizer


@dataclass(slots=True)
class Contents:
    """What the rows of an archive come to, as little of each as the checks and the indexes need.

    Attributes:
        titles: of the documents, by line: what chunks are indexed under.
        questions: of all chunks.
        characters: of what is tokenised: the texts of all chunks, each with its title and headings.
        longest: characters of the longest chunk or parent.
        wider: by line, the wider concept of each; -1: none.
        around: by line, the folder that each folder is in; -1: none.
        places: of the folders, each with its name.
        parents: by line, the document of each parent.
    """

    titles: list[str] = field(default_factory=list)
    keyword_chunks: int = 0
    questions: int = 0
    characters: int = 0
    longest: int = 0
    wider: "array[int]" = field(default_factory=partial(array, "q"))
    around: "array[int]" = field(default_factory=partial(array, "q"))
    places: set[tuple[int, str]] = field(default_factory=set)
    parents: "array[int]" = field(default_factory=partial(array, "q"))

    def add(self, row: Any) -> None:
        match row:
            case Document():
                self.titles.append(row.title)
            case Concept():
                self.wider.append(-1 if row.parent_id is None else row.parent_id)
            case Folder():
                self.around.append(-1 if row.parent_id is None else row.parent_id)
                self.places.add((self.around[-1], row.name))
            case ChunkParent():
                self.parents.append(row.document_id)
                self.longest = max(self.longest, len(row.text))
            case Chunk():
                if row.parent_id is not None and self.parents[row.parent_id] != row.document_id:
                    raise damaged(_("a chunk has a passage of another document"))
                self.keyword_chunks += bool(row.keywords)
                self.questions += len(row.questions)
                self.longest = max(self.longest, len(row.text), len(row.cut_text or ""))
                self.characters += len(self.titles[row.document_id]) + sum(map(len, row.heading_path)) + len(row.text)


def check_rows(archive: Archive, on_row: Callable[[], None]) -> Contents:
    """Reads every row once; Rejected where one is wrong, refers to none, or rows contradict each other."""
    contents = Contents()
    for table in TABLES:
        for _size, row in rows_of(archive, table):
            contents.add(row)
            on_row()
    if not _is_tree(contents.wider):
        raise damaged(_("a concept is wider than itself"))
    around = contents.around
    is_small = len(around) <= MOST_FOLDERS and _is_tree(around) and _levels(around) <= MOST_DEPTH
    if not is_small or len(contents.places) < len(around):
        raise damaged(_("its folders are no tree, or too many"))
    return contents


def _levels(above: Sequence[int]) -> int:
    """How deep a tree is, counted no further than one level more than there may be."""
    levels, left = 0, list(range(len(above)))
    while left and levels <= MOST_DEPTH:
        levels += 1
        left = [above[each] for each in left if above[each] >= 0]
    return levels


def _is_tree(above: Sequence[int]) -> bool:
    """Whether no row, by line, is above itself; -1: none is above it."""
    try:
        TopologicalSorter({line: [each] for line, each in enumerate(above) if each >= 0}).prepare()
    except CycleError:
        return False
    return True


def rows_of(
    archive: Archive, table: Table, *, ids: Mapping[str, Sequence[int]] = NO_IDS, kb_id: int = 0
) -> Iterator[tuple[int, Any]]:
    """The size in bytes of each line of a table, and the row that it stands for, unsaved.

    `ids` are those of the rows that were written, by table and line; a row of another table is referred to by its line.

    Raises:
        Rejected: a line is wrong, or refers to a row that is not there.
    """
    for line, (size, row) in enumerate(archive.json_lines(table.part), start=1):
        try:
            keys = {name: _key(archive, into, row.get(name), ids) for name, into in table.refers.items()}
            yield size, _row_of(table, row, keys, kb_id)
        except WrongRow as error:
            words = {"line": line, "name": table.part, "field": error}
            raise damaged(_("line %(line)d of “%(name)s”: %(field)s") % words) from error


def originals(archive: Archive) -> Iterator[tuple[int, str, int, str]]:
    """The list of files, one a document at most, in the order of the documents; Rejected where a line is wrong.

    Yields the line of the document, the ending of its name, the size in bytes and the SHA-256.
    """
    last = -1
    for _size, row in archive.json_lines(FILE_LIST):
        line, suffix, size, sha256 = (row.get(name) for name in ("document", "suffix", "size", "sha256"))
        if not (
            isinstance(line, int)
            and last < line < archive.rows_in(TABLE["documents"].part)
            and isinstance(suffix, str)
            and re.fullmatch("[A-Za-z0-9]{0,12}", suffix)
            and isinstance(size, int)
            and size >= 0
            and is_sha256(sha256)
        ):
            raise damaged(_("the list of files is wrong"))
        last = line
        yield line, suffix, size, str(sha256)


def _key(archive: Archive, into: str, line: Any, ids: Mapping[str, Sequence[int]]) -> int | None:
    if line is None:
        return None
    if type(line) is not int or not 0 <= line < archive.rows_in(TABLE[into].part):
        raise WrongRow(into)
    return ids[into][line] if into in ids else line


def _row_of(table: Table, row: Mapping[str, Any], keys: Mapping[str, int | None], kb_id: int) -> Any:
    """A row of the database, unsaved, with the ids of those that it refers to."""
    wrong = row.keys() ^ table.keys
    _require(wrong <= table.added - row.keys(), ", ".join(sorted(wrong))[:200])
    values = _checked_fields(table.model, [name for name in table.fields if name in row], row)
    for name, key in keys.items():
        reference = table.model._meta.get_field(name)
        _require(key is not None or reference.null, name)
        values[reference.attname] = key  # type: ignore[union-attr]
    if table.kb_path == "knowledge_base":
        values["knowledge_base_id"] = kb_id
    made = table.model(**values)
    _complete(made)
    return made


def _checked_fields(model: type[models.Model], names: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of fields, as the model wants them: of its types, not too long, in range, among its choices."""
    return {name: _checked(model._meta.get_field(name), row[name]) for name in names}


def _checked(field: Any, value: Any) -> Any:
    if value is None and field.null:
        return None
    kind = field.get_internal_type()
    _require(type(value) in _TYPES[kind], field.name)
    if kind == "ArrayField":
        of_each = _TYPES[field.base_field.get_internal_type()]
        _require(all(type(each) in of_each for each in value), field.name)
    _require(not field.choices or value in dict(field.flatchoices), field.name)
    among = dict(field.base_field.flatchoices) if kind == "ArrayField" else {}
    _require(not among or among.keys() >= set(value), field.name)
    try:
        if kind != "DateTimeField":
            field.run_validators(value)
            return value
        moment = parse_datetime(value)
        if moment is None or timezone.is_naive(moment):
            raise WrongRow(field.name)
        return moment.astimezone(UTC)  # PostgreSQL knows no zone as far from Greenwich as may be written
    except (ValidationError, ValueError, OverflowError) as error:
        raise WrongRow(field.name) from error


def _complete(row: Any) -> None:
    """Sets what follows from other fields, and checks what no validator of a field does."""
    match row:
        case Chunk() | ChunkParent():
            _complete_passage(row)
        case ConceptTerm() | EntityName():
            row.key = normalized_key(row.text)
        case Document():
            _complete_document(row)
        case GraphFact():
            row.subject_key, row.object_key = normalized_key(row.subject), normalized_key(row.object)
        case Judgment():
            row.quote_hash = anchor_hash(row.quote) if row.quote else ""
        case Picture():
            _require(is_sha256(row.sha256), "sha256")
            _require(len(row.box) in (0, 4) and all(0 <= each <= 1 for each in row.box), "box")
        case RetrievalProfile():
            _check_profile_settings(row.settings)
        case SearchProvider() | Source():
            _complete_source(row)
        case SourceItem():
            _check_url(row.url)
            row.key_hash = hash_of(row.url)


def _complete_passage(row: Chunk | ChunkParent) -> None:
    _require(_are_regions(row.regions), "regions")
    if isinstance(row, Chunk):
        _require(row.text.strip(), "text")
        row.content_hash = hash_content(row.text)
        _require(len(row.pictures) <= MOST_PICTURES and all(map(is_sha256, row.pictures)), "pictures")
        _require(row.parent_spans is None or _are_spans(row.parent_spans), "parent_spans")


def _are_spans(spans: Sequence[int]) -> bool:
    """As `kb.content.parents.Child` has them; every search that finds the passage goes through them."""
    pairs = [*zip(spans[::2], spans[1::2], strict=False)]
    return 0 < len(pairs) <= MOST_SPANS and 2 * len(pairs) == len(spans) and all(first <= last for first, last in pairs)


def _complete_document(document: Document) -> None:
    """A document that waited waits on; one that failed says so, in words of this installation."""
    status = Document.Status
    if document.status == status.PROCESSING:
        document.status = status.PENDING
    elif document.status == status.READY:
        document.progress = 100
    elif document.status == status.FAILED:
        document.error_code, document.error = "failed_before", FAILED_BEFORE
    _require(isinstance(document.metadata, dict), "metadata")
    _require(isinstance(document.remarks, list) and all(map(_is_remark, document.remarks)), "remarks")


def _is_remark(value: Any) -> bool:
    try:
        params = value["params"]
        is_plain = value.keys() == {"code", "params"} and all(isinstance(each, str | int) for each in params.values())
        return is_plain and bool(Remark(RemarkCode(value["code"]), params).message)
    except (TypeError, AttributeError, KeyError, IndexError, ValueError):
        return False


def _are_regions(value: Any) -> bool:
    try:
        regions = msgspec.convert(value, list[PageRegion])
    except msgspec.ValidationError:
        return False
    is_exact = as_values(regions) == value  # nothing besides is stored
    return is_exact and len(regions) <= MOST_REGIONS and all(map(_is_on_page, regions))


def _is_on_page(region: PageRegion) -> bool:
    if not 0 < region.page < MOST_PAGES:
        return False
    left, top, right, bottom = region.box or (0, 0, 1, 1)
    return 0 <= left <= right <= 1 and 0 <= top <= bottom <= 1


def _check_profile_settings(settings: Any) -> None:
    _require(isinstance(settings, dict), "settings")
    try:
        configuration_of(settings)
    except (InvalidConfiguration, TypeError) as error:
        raise WrongRow("settings") from error


def _complete_source(source: SearchProvider | Source) -> None:
    """Switched off: what strangers wrote must not be read, nor asked, before somebody has looked at it."""
    source.enabled = False
    if isinstance(source, SearchProvider):
        _require(isinstance(source.settings, dict), "settings")
        return
    _require(source.kind in Source.WEB, "kind")
    _check_url(source.url)
    _require(max(len(source.include), len(source.exclude)) <= MOST_PATTERNS, "include, exclude")
    try:
        for pattern in (*source.include, *source.exclude):
            compiled(pattern)
    except regex.error as error:
        raise WrongRow("include, exclude") from error


def _check_url(url: str) -> None:
    """Refuses what is no web address: others, such as those that are scripts, would become links all the same."""
    try:
        parse_url(url)
    except FetchError as error:
        raise WrongRow("url") from error
