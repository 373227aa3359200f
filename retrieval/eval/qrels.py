"""Evaluation sets in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv in one folder.

The format is that of Thakur et al., "BEIR" (2021), with one addition: `metadata.answerable` of a query, false for one
that the corpus deliberately cannot answer.

What can be wrong with the files of an evaluation set: each with the place and the remedy.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from retrieval.errors import RetrievalError


class SetProblem(StrEnum):
    MISSING_FILE = "missing_file"
    MISSING_SPLIT = "missing_split"
    NO_SET = "no_set"
    SEVERAL_FILES = "several_files"
    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    BAD_META = "bad_meta"
    NOT_OBJECT = "not_object"
    NO_FIELD = "no_field"
    BAD_ID = "bad_id"
    TOO_LONG = "too_long"
    BAD_ANSWERABLE = "bad_answerable"
    BAD_TOPIC = "bad_topic"
    BAD_JUDGMENT = "bad_judgment"
    BAD_TREC_JUDGMENT = "bad_trec_judgment"
    UNKNOWN_QUERY = "unknown_query"
    UNKNOWN_PASSAGE = "unknown_passage"
    NOT_A_GRADE = "not_a_grade"
    GRADE_TOO_HIGH = "grade_too_high"
    JUDGED_TWICE = "judged_twice"


MESSAGES: Final[dict[SetProblem, str]] = {
    SetProblem.MISSING_FILE: "{place} does not exist: {layout}",
    SetProblem.MISSING_SPLIT: "{place} does not exist: choose one of the splits {splits}",
    SetProblem.NO_SET: "{place}: there is neither queries.jsonl (BEIR) nor a topics file (TREC): add one",
    SetProblem.SEVERAL_FILES: "{place}: these files could all be the one: {names}: keep one of them",
    SetProblem.NOT_UTF8: "{place}: not UTF-8 ({reason}): save the file as UTF-8",
    SetProblem.NOT_JSON: "{place}: not valid JSON ({reason}): correct the line",
    SetProblem.BAD_META: "{place}: not valid JSON ({reason}): correct it, or delete it to use the folder's name",
    SetProblem.NOT_OBJECT: "{place}: not a JSON object: each line must be one",
    SetProblem.NO_FIELD: "{place}: field '{field}' is missing or no string: add it",
    SetProblem.BAD_ID: "{place}: _id '{id}' is empty or was used before: give each line an id of its own",
    SetProblem.TOO_LONG: "{place}: the {field} is longer than {length} characters: shorten it",
    SetProblem.BAD_ANSWERABLE: "{place}: metadata.answerable must be true, false or absent",
    SetProblem.BAD_TOPIC: "{place}: not a topic: write the query's id, a tab and the query",
    SetProblem.BAD_JUDGMENT: "{place}: {count} fields: a line is query-id, corpus-id and score with tabs between",
    SetProblem.BAD_TREC_JUDGMENT: "{place}: not a judgment: a line is a query's id, 0, a document's id and a whole number",
    SetProblem.UNKNOWN_QUERY: "{place}: unknown query '{id}': add it to {queries} or delete the line",
    SetProblem.UNKNOWN_PASSAGE: "{place}: unknown passage '{id}': add it to corpus.jsonl or delete the line",
    SetProblem.NOT_A_GRADE: "{place}: score '{grade}' is no whole number: correct the line",
    SetProblem.GRADE_TOO_HIGH: "{place}: grade {grade} is above {most}: scale the grades down to 0 to {most}",
    SetProblem.JUDGED_TWICE: "{place}: query '{query}' judges passage '{id}' twice: keep one line",
}


class SetFormatError(RetrievalError):
    """A file of an evaluation set is missing or malformed.

    Attributes:
        problem: the key of MESSAGES.
        place: the file and, where there is one, the line's number, as in "queries.jsonl:3".
        params: the values of the template's other fields, for a translated template.
    """

    def __init__(self, problem: SetProblem, place: object, **params: str | int) -> None:
        super().__init__(MESSAGES[problem].format(place=place, **params))
        self.problem = problem
        self.place = str(place)
        self.params = params


DEFAULT_SPLIT = "test"

_HEADER = ("query-id", "corpus-id", "score")


LAYOUT = f"a BEIR folder holds corpus.jsonl, queries.jsonl and qrels/{DEFAULT_SPLIT}.tsv"


class BeirFormatError(SetFormatError):
    """A file in BEIR's layout is missing or malformed."""


@dataclass(frozen=True, slots=True)
class BeirPassage:
    """One line of corpus.jsonl; the title may be empty."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class BeirQuery:
    """One line of queries.jsonl; answerable is None where the set does not say."""

    text: str
    answerable: bool | None = None


@dataclass(frozen=True, slots=True)
class BeirSet:
    """One split of an evaluation set.

    Attributes:
        queries: by id: those judged in this split, and those marked as not answerable.
        qrels: grade by passage id by query id.
    """

    name: str
    passages: tuple[BeirPassage, ...]
    queries: Mapping[str, BeirQuery]
    qrels: Mapping[str, Mapping[str, int]]


def read_beir(directory: Path, *, split: str = DEFAULT_SPLIT) -> BeirSet:
    """Reads a set whole and checks that every judgment names a known query and passage.

    Raises:
        BeirFormatError: a file is missing, a line is malformed, an id is unknown or given twice.
    """
    passages = tuple(iter_corpus(directory))
    queries = read_queries(directory)
    qrels = read_qrels(directory, queries=queries, passage_ids={passage.id for passage in passages}, split=split)
    in_split = {key: query for key, query in queries.items() if key in qrels or query.answerable is False}
    return BeirSet(name=named(directory), passages=passages, queries=in_split, qrels=qrels)


def iter_corpus(directory: Path) -> Iterator[BeirPassage]:
    """Yields the passages of corpus.jsonl one at a time.

    Raises:
        BeirFormatError: the file is missing, a line is malformed, an id is given twice.
    """
    path = directory / "corpus.jsonl"
    seen: set[str] = set()
    for place, record in iter_json_lines(path):
        yield BeirPassage(
            id=_new_id(record, place, seen),
            title=string_field(record, "title", place, default=""),
            text=string_field(record, "text", place),
        )


def read_queries(directory: Path) -> dict[str, BeirQuery]:
    """All queries of queries.jsonl by id, of whatever split; raises as `iter_corpus`."""
    queries: dict[str, BeirQuery] = {}
    seen: set[str] = set()
    for place, record in iter_json_lines(directory / "queries.jsonl"):
        query_id = _new_id(record, place, seen)
        queries[query_id] = BeirQuery(text=string_field(record, "text", place), answerable=_answerable(record, place))
    return queries


def read_qrels(
    directory: Path, *, queries: Iterable[str], passage_ids: Iterable[str] | None, split: str = DEFAULT_SPLIT
) -> dict[str, dict[str, int]]:
    """Grades by passage id by query id, from qrels/SPLIT.tsv.

    Args:
        directory: the set's.
        queries: their known ids.
        passage_ids: the known ones; None: any.
        split: the file's name.

    Raises:
        BeirFormatError: the file is missing, a line is malformed, an id is unknown, a pair is judged twice.
    """
    path = directory / "qrels" / f"{split}.tsv"
    known = (frozenset(queries), None if passage_ids is None else frozenset(passage_ids))
    qrels: dict[str, dict[str, int]] = {}
    for place, line in iter_lines(path):
        fields = tuple(line.split("\t"))
        if fields == _HEADER:
            continue
        query_id, passage_id, grade = _judgment(fields, place, known)
        grades = qrels.setdefault(query_id, {})
        if passage_id in grades:
            raise BeirFormatError(SetProblem.JUDGED_TWICE, place, query=query_id, id=passage_id)
        grades[passage_id] = grade
    return qrels


def write_beir(directory: Path, beir: BeirSet, *, split: str = DEFAULT_SPLIT) -> None:
    """Writes the set so that `read_beir` reads the same one; overwrites files of the same names."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "meta.json").write_text(json.dumps({"name": beir.name}, ensure_ascii=False) + "\n", encoding="utf-8")
    write_json_lines(
        directory / "corpus.jsonl", ({"_id": each.id, "title": each.title, "text": each.text} for each in beir.passages)
    )
    write_json_lines(directory / "queries.jsonl", (query_record(key, query) for key, query in beir.queries.items()))
    write_qrels(directory, beir.qrels, split=split)


def write_qrels(directory: Path, qrels: Mapping[str, Mapping[str, int]], *, split: str = DEFAULT_SPLIT) -> None:
    """Writes qrels/SPLIT.tsv; ids hold neither tabs nor line ends."""
    (directory / "qrels").mkdir(parents=True, exist_ok=True)
    with (directory / "qrels" / f"{split}.tsv").open("w", encoding="utf-8", newline="\n") as file:
        file.write("\t".join(_HEADER) + "\n")
        for query_id, grades in qrels.items():
            file.writelines(f"{query_id}\t{passage_id}\t{grade}\n" for passage_id, grade in grades.items())


def query_record(query_id: str, query: BeirQuery) -> dict[str, Any]:
    """One line of queries.jsonl."""
    metadata = {} if query.answerable is None else {"answerable": query.answerable}
    return {"_id": query_id, "text": query.text, "metadata": metadata}


def write_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object a line, each as it comes."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def named(directory: Path) -> str:
    """The name in meta.json, or the folder's.

    Raises:
        BeirFormatError: meta.json is no JSON.
    """
    path = directory / "meta.json"
    if not path.is_file():
        return directory.resolve().name
    try:
        meta = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BeirFormatError(SetProblem.BAD_META, path, reason=str(error)) from error
    name = meta.get("name") if isinstance(meta, dict) else None
    return name if isinstance(name, str) and name else directory.resolve().name


def iter_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yields (place, line) for each line that is not blank; the place is the file's name and the line's number.

    Raises:
        BeirFormatError: the file is missing or not UTF-8.
    """
    if not path.is_file():
        raise _missing(path)
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            place = f"{path}:{number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise BeirFormatError(SetProblem.NOT_UTF8, place, reason=error.reason) from error
            if line.strip():
                yield place, line


def _missing(path: Path) -> BeirFormatError:
    splits = sorted(found.stem for found in path.parent.glob("*.tsv")) if path.parent.name == "qrels" else []
    if splits:
        return BeirFormatError(SetProblem.MISSING_SPLIT, path, splits=", ".join(splits))
    return BeirFormatError(SetProblem.MISSING_FILE, path, layout=LAYOUT)


def iter_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """As `iter_lines`, for a file of one JSON object a line.

    Raises:
        BeirFormatError: a line is none, too.
    """
    for place, line in iter_lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BeirFormatError(SetProblem.NOT_JSON, place, reason=str(error)) from error
        if not isinstance(record, dict):
            raise BeirFormatError(SetProblem.NOT_OBJECT, place)
        yield place, record


def string_field(record: Mapping[str, Any], key: str, place: str, *, default: str | None = None) -> str:
    """A field that is a string.

    Raises:
        BeirFormatError: it is missing or something else.
    """
    value = record.get(key, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise BeirFormatError(SetProblem.NO_FIELD, place, field=key)
    return value


def _new_id(record: Mapping[str, Any], place: str, seen: set[str]) -> str:
    value = string_field(record, "_id", place)
    if not value or value in seen:
        raise BeirFormatError(SetProblem.BAD_ID, place, id=value)
    seen.add(value)
    return value


def _answerable(record: Mapping[str, Any], place: str) -> bool | None:
    metadata = record.get("metadata") or {}
    value = metadata.get("answerable") if isinstance(metadata, dict) else metadata
    if value is not None and not isinstance(value, bool):
        raise BeirFormatError(SetProblem.BAD_ANSWERABLE, place)
    return value


def _judgment(
    fields: tuple[str, ...], place: str, known: tuple[frozenset[str], frozenset[str] | None]
) -> tuple[str, str, int]:
    if len(fields) != len(_HEADER):
        raise BeirFormatError(SetProblem.BAD_JUDGMENT, place, count=len(fields))
    query_id, passage_id, score = fields
    queries, passages = known
    if query_id not in queries:
        raise BeirFormatError(SetProblem.UNKNOWN_QUERY, place, id=query_id, queries="queries.jsonl")
    if passages is not None and passage_id not in passages:
        raise BeirFormatError(SetProblem.UNKNOWN_PASSAGE, place, id=passage_id)
    try:
        return query_id, passage_id, int(score)
    except ValueError as error:
        raise BeirFormatError(SetProblem.NOT_A_GRADE, place, grade=score) from error
