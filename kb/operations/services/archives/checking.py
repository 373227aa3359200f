"""The first pass over an archive: everything that can be wrong with it is found before anything is written."""

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.content.models import Chunk, ChunkParent, Document
from kb.graph.models import Concept
from kb.index.services.tokenizing import read_settings
from kb.operations.services.archives.format import FILE_LIST, KNOWLEDGE_BASE_FIELDS, TABLES, TOKENIZER_FIELDS, Table
from kb.operations.services.archives.reading import Archive, damaged, is_sha256
from kb.operations.services.archives.rows import WrongRow, check_profile_settings, checked_fields, instance_of
from kb.profiles.services import MAX_NAME_CHARACTERS, MAX_VERSION, NOT_IN_NAMES
from kb.providers.models import TokenizerSettings

OnRow = Callable[[], None]
Resolve = Callable[[str, int], int]
"""The id of a row by its table and line."""


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


@dataclass(frozen=True, slots=True)
class Contents:
    """What the rows of an archive come to.

    Attributes:
        titles: of the documents, by line: what chunks are indexed under.
        keyword_chunks: how many chunks have keywords.
        questions: how many questions all chunks have.
        characters: of what is tokenised: the texts of all chunks, each with its title and headings.
        longest: characters of the longest chunk or parent.
    """

    titles: list[str]
    keyword_chunks: int
    questions: int
    characters: int
    longest: int


def read_settings_of(archive: Archive) -> Settings:
    """The settings in a manifest.

    Raises:
        Rejected: they are not those of a knowledge base, or ask for packages that are not installed.
    """
    manifest = archive.manifest
    try:
        return _settings(manifest)
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
    name = profile["name"]
    if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME_CHARACTERS:
        raise WrongRow("profile")
    if not name.isprintable() or NOT_IN_NAMES & set(name):
        raise WrongRow("profile")
    is_number = isinstance(profile["version"], int) and 0 < profile["version"] <= MAX_VERSION
    if not is_number or not isinstance(profile["description"], str) or not isinstance(profile["is_own"], bool):
        raise WrongRow("profile")
    check_profile_settings(profile["settings"])


def rows_of(archive: Archive, table: Table, resolve: Resolve, kb_id: int) -> Iterator[tuple[int, Any]]:
    """The size in bytes of each line of a table, and the row that it stands for, unsaved.

    Raises:
        Rejected: a line is wrong, or refers to a row that is not there.
    """
    for line, (size, row) in enumerate(archive.json_lines(table.part), start=1):
        try:
            keys = {name: _key(row.get(name), into, resolve) for name, into in table.refers.items()}
            yield size, instance_of(table, row, keys, kb_id)
        except WrongRow as error:
            words = {"line": line, "name": table.part, "field": error}
            raise damaged(_("line %(line)d of “%(name)s”: %(field)s") % words) from error


def _key(line: Any, into: str, resolve: Resolve) -> int | None:
    if line is None:
        return None
    if not isinstance(line, int) or isinstance(line, bool):
        raise WrongRow(into)
    return resolve(into, line)


def check_rows(archive: Archive, on_row: OnRow) -> Contents:
    """Reads every row once.

    Raises:
        Rejected: one is wrong, refers to none, or rows contradict each other.
    """

    def resolve(into: str, line: int) -> int:
        if not 0 <= line < archive.rows_in(f"{into}.jsonl"):
            raise WrongRow(into)
        return line

    contents = _Contents()
    for table in TABLES:
        for _size, row in rows_of(archive, table, resolve, 0):
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
    return Contents(contents.titles, contents.keyword_chunks, contents.questions, contents.characters, contents.longest)


class _Contents:
    """What is gathered of rows, as little of each as the checks and the indexes need."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.keyword_chunks = self.questions = self.characters = self.longest = 0
        self.wider = array("q")
        self._parents = array("q")

    def add(self, row: Any) -> None:
        if isinstance(row, Document):
            self.titles.append(row.title)
        elif isinstance(row, Concept):
            self.wider.append(-1 if row.parent_id is None else row.parent_id)
        elif isinstance(row, ChunkParent):
            self._parents.append(row.document_id)
            self.longest = max(self.longest, len(row.text))
        elif isinstance(row, Chunk):
            if row.parent_id is not None and self._parents[row.parent_id] != row.document_id:
                raise damaged(_("a chunk has a passage of another document"))
            self.keyword_chunks += bool(row.keywords)
            self.questions += len(row.questions)
            self.longest = max(self.longest, len(row.text), len(row.cut_text or ""))
            self.characters += len(self.titles[row.document_id]) + sum(map(len, row.heading_path)) + len(row.text)


@dataclass(frozen=True, slots=True)
class Original:
    """An entry of the list of files."""

    document: int
    suffix: str
    size: int
    sha256: str


def originals(archive: Archive) -> Iterator[Original]:
    """The list of files, one a document at most, in the order of the documents.

    Raises:
        Rejected: a line is wrong.
    """
    last = -1
    for _size, row in archive.json_lines(FILE_LIST):
        line, suffix, size = row.get("document"), row.get("suffix"), row.get("size")
        is_suffix = isinstance(suffix, str) and suffix.isascii() and (not suffix or suffix.isalnum())
        if not (
            isinstance(line, int)
            and last < line < archive.rows_in("documents.jsonl")
            and is_suffix
            and len(str(suffix)) <= 12
            and isinstance(size, int)
            and size >= 0
            and is_sha256(row.get("sha256"))
        ):
            raise damaged(_("the list of files is wrong"))
        last = line
        yield Original(line, str(suffix), size, row["sha256"])
