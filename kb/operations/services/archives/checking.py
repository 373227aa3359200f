"""The first pass over an archive: everything that can be wrong with it is found before anything is written."""

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.content.models import Chunk, ChunkParent, Document
from kb.graph.models import Concept
from kb.index.services.tokenizing import read_settings
from kb.operations.services.archives.format import (
    FILE_LIST,
    KNOWLEDGE_BASE_FIELDS,
    TABLE,
    TABLES,
    TOKENIZER_FIELDS,
    Table,
)
from kb.operations.services.archives.reading import Archive, damaged, is_sha256
from kb.operations.services.archives.rows import WrongRow, check_profile_settings, checked_fields, instance_of
from kb.profiles.services import MAX_NAME_CHARACTERS, MAX_VERSION, NOT_IN_NAMES
from kb.providers.models import TokenizerSettings

OnRow = Callable[[], None]
NO_IDS: Mapping[str, Sequence[int]] = {}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a manifest says of a knowledge base.

    Attributes:
        fields: of the knowledge base.
        tokenizer: its options, unsaved, under the id that they have here.
        archived_tokenizer_id: the id that they had there.
        embedding_model: that of the vectors, if there are any.
        dimension: of them; 0: not known.
        profile: name, version, settings and description of the profile, and whether it is among the tables.
        configuration: as retrieval was configured there.
    """

    fields: dict[str, Any]
    tokenizer: TokenizerSettings
    archived_tokenizer_id: str
    embedding_model: str
    dimension: int
    profile: dict[str, Any]
    configuration: dict[str, Any]


@dataclass(slots=True)
class Contents:
    """What the rows of an archive come to, as little of each as the checks and the indexes need.

    Attributes:
        titles: of the documents, by line: what chunks are indexed under.
        keyword_chunks: how many chunks have keywords.
        questions: how many questions all chunks have.
        characters: of what is tokenised: the texts of all chunks, each with its title and headings.
        longest: characters of the longest chunk or parent.
        wider: by line, the wider concept of each; -1: none.
        parents: by line, the document of each parent.
    """

    titles: list[str] = field(default_factory=list)
    keyword_chunks: int = 0
    questions: int = 0
    characters: int = 0
    longest: int = 0
    wider: "array[int]" = field(default_factory=partial(array, "q"))
    parents: "array[int]" = field(default_factory=partial(array, "q"))

    def add(self, row: Any) -> None:
        if isinstance(row, Document):
            self.titles.append(row.title)
        elif isinstance(row, Concept):
            self.wider.append(-1 if row.parent_id is None else row.parent_id)
        elif isinstance(row, ChunkParent):
            self.parents.append(row.document_id)
            self.longest = max(self.longest, len(row.text))
        elif isinstance(row, Chunk):
            if row.parent_id is not None and self.parents[row.parent_id] != row.document_id:
                raise damaged(_("a chunk has a passage of another document"))
            self.keyword_chunks += bool(row.keywords)
            self.questions += len(row.questions)
            self.longest = max(self.longest, len(row.text), len(row.cut_text or ""))
            self.characters += len(self.titles[row.document_id]) + sum(map(len, row.heading_path)) + len(row.text)


def read_settings_of(archive: Archive) -> Settings:
    """The settings in a manifest.

    Raises:
        Rejected: they are not those of a knowledge base, or ask for packages that are not installed.
    """
    try:
        return _settings(archive.manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(_("the manifest lacks a setting")) from error
    except WrongRow as error:
        raise damaged(_("the manifest’s “%(field)s” is wrong") % {"field": error}) from error


def _settings(manifest: Mapping[str, Any]) -> Settings:
    of_kb, of_tokenizer = manifest["knowledge_base"], manifest["tokenizer"]
    embedding, profile = manifest["embedding"], manifest["profile"]
    if of_kb.keys() != set(KNOWLEDGE_BASE_FIELDS) or of_tokenizer.keys() != {"id", *TOKENIZER_FIELDS}:
        raise WrongRow("knowledge_base, tokenizer")
    fields = checked_fields(KnowledgeBase, KNOWLEDGE_BASE_FIELDS, of_kb)
    if not fields["name"].strip() or fields["chunk_overlap"] >= fields["chunk_size"]:
        raise WrongRow("name, chunk_overlap")
    tokenizer = read_settings(**checked_fields(TokenizerSettings, TOKENIZER_FIELDS, of_tokenizer))
    model, dimension = embedding["model"], embedding["dimension"] or 0
    if not isinstance(model, str) or not model or not isinstance(dimension, int):
        raise WrongRow("embedding")
    _check_profile(profile)
    configuration = manifest["configuration"]
    if not isinstance(configuration, dict):
        raise WrongRow("configuration")
    return Settings(fields, tokenizer, str(of_tokenizer["id"]), model, dimension, dict(profile), configuration)


def _check_profile(profile: Mapping[str, Any]) -> None:
    name, number = profile["name"], profile["version"]
    if not (
        isinstance(name, str)
        and 0 < len(name.strip()) <= MAX_NAME_CHARACTERS
        and name.isprintable()
        and not NOT_IN_NAMES & set(name)
        and isinstance(number, int)
        and 0 < number <= MAX_VERSION
        and isinstance(profile["description"], str)
        and isinstance(profile["is_own"], bool)
    ):
        raise WrongRow("profile")
    check_profile_settings(profile["settings"])


def rows_of(
    archive: Archive, table: Table, *, ids: Mapping[str, Sequence[int]] = NO_IDS, kb_id: int = 0
) -> Iterator[tuple[int, Any]]:
    """The size in bytes of each line of a table, and the row that it stands for, unsaved.

    Args:
        archive: the archive.
        table: one of its tables.
        ids: of the rows that were written, by table and line; a row of another table is referred to by its line.
        kb_id: of the knowledge base.

    Raises:
        Rejected: a line is wrong, or refers to a row that is not there.
    """
    for line, (size, row) in enumerate(archive.json_lines(table.part), start=1):
        try:
            keys = {name: _key(archive, into, row.get(name), ids) for name, into in table.refers.items()}
            yield size, instance_of(table, row, keys, kb_id)
        except WrongRow as error:
            words = {"line": line, "name": table.part, "field": error}
            raise damaged(_("line %(line)d of “%(name)s”: %(field)s") % words) from error


def _key(archive: Archive, into: str, line: Any, ids: Mapping[str, Sequence[int]]) -> int | None:
    if line is None:
        return None
    if type(line) is not int or not 0 <= line < archive.rows_in(TABLE[into].part):
        raise WrongRow(into)
    return ids[into][line] if into in ids else line


def check_rows(archive: Archive, on_row: OnRow) -> Contents:
    """Reads every row once.

    Raises:
        Rejected: one is wrong, refers to none, or rows contradict each other.
    """
    contents = Contents()
    for table in TABLES:
        for _size, row in rows_of(archive, table):
            contents.add(row)
            on_row()
    # Every concept leads, by its wider ones, to one that has none
    is_sound = bytearray(len(contents.wider))
    for start in range(len(contents.wider)):
        path: list[int] = []
        each = start
        while each >= 0 and not is_sound[each]:
            if len(path) == len(contents.wider):  # longer than any way without a circle
                raise damaged(_("a concept is wider than itself"))
            path.append(each)
            each = contents.wider[each]
        for met in path:
            is_sound[met] = 1
    return contents


def originals(archive: Archive) -> Iterator[tuple[int, str, int, str]]:
    """The list of files, one a document at most, in the order of the documents.

    Yields:
        The line of the document, the ending of its name, the size in bytes and the SHA-256.

    Raises:
        Rejected: a line is wrong.
    """
    last = -1
    for _size, row in archive.json_lines(FILE_LIST):
        line, suffix, size, sha256 = (row.get(name) for name in ("document", "suffix", "size", "sha256"))
        if not (
            isinstance(line, int)
            and last < line < archive.rows_in("documents.jsonl")
            and isinstance(suffix, str)
            and re.fullmatch("[A-Za-z0-9]{0,12}", suffix)
            and isinstance(size, int)
            and size >= 0
            and is_sha256(sha256)
        ):
            raise damaged(_("the list of files is wrong"))
        last = line
        yield line, suffix, size, str(sha256)
