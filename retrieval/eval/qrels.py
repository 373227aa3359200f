"""The files of an evaluation set line by line, and what can be wrong with them: each with the place and the remedy.

The format is that of Thakur et al., "BEIR" (2021), with one addition: `metadata.answerable` of a query, false for one
that the corpus deliberately cannot answer.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from retrieval.errors import RetrievalError

SetProblem = Literal[
    "missing_file",
    "missing_split",
    "no_set",
    "several_files",
    "not_utf8",
    "not_json",
    "bad_meta",
    "not_object",
    "no_field",
    "bad_id",
    "too_long",
    "bad_answerable",
    "bad_topic",
    "bad_judgment",
    "bad_trec_judgment",
    "unknown_query",
    "unknown_passage",
    "not_a_grade",
    "grade_too_high",
    "judged_twice",
]

MESSAGES: Final[dict[SetProblem, str]] = {
    "missing_file": "{place} does not exist: {layout}",
    "missing_split": "{place} does not exist: choose one of the splits {splits}",
    "no_set": "{place}: there is neither queries.jsonl (BEIR) nor a topics file (TREC): add one",
    "several_files": "{place}: these files could all be the one: {names}: keep one of them",
    "not_utf8": "{place}: not UTF-8 ({reason}): save the file as UTF-8",
    "not_json": "{place}: not valid JSON ({reason}): correct the line",
    "bad_meta": "{place}: not valid JSON ({reason}): correct it, or delete it to use the folder's name",
    "not_object": "{place}: not a JSON object: each line must be one",
    "no_field": "{place}: field '{field}' is missing or no string: add it",
    "bad_id": "{place}: _id '{id}' is empty or was used before: give each line an id of its own",
    "too_long": "{place}: the {field} is longer than {length} characters: shorten it",
    "bad_answerable": "{place}: metadata.answerable must be true, false or absent",
    "bad_topic": "{place}: not a topic: write the query's id, a tab and the query",
    "bad_judgment": "{place}: {count} fields: a line is query-id, corpus-id and score with tabs between",
    "bad_trec_judgment": "{place}: not a judgment: a line is a query's id, 0, a document's id and a whole number",
    "unknown_query": "{place}: unknown query '{id}': add it to {queries} or delete the line",
    "unknown_passage": "{place}: unknown passage '{id}': add it to corpus.jsonl or delete the line",
    "not_a_grade": "{place}: score '{grade}' is no whole number: correct the line",
    "grade_too_high": "{place}: grade {grade} is above {most}: scale the grades down to 0 to {most}",
    "judged_twice": "{place}: query '{query}' judges passage '{id}' twice: keep one line",
}


class SetFormatError(RetrievalError):
    """A file of an evaluation set is missing or malformed.

    The problem is a key of MESSAGES, the place the file and, where there is one, the line's number, as in
    "queries.jsonl:3"; `params` are the values of the template's other fields, for a translated template.
    """

    def __init__(self, problem: SetProblem, place: object, **params: str | int) -> None:
        super().__init__(MESSAGES[problem].format(place=place, **params))
        self.problem = problem
        self.place = str(place)
        self.params = params


LAYOUT = "a BEIR folder holds corpus.jsonl, queries.jsonl and qrels/test.tsv"


@dataclass(frozen=True, slots=True)
class BeirPassage:
    """One line of corpus.jsonl; the title may be empty."""

    id: str
    title: str
    text: str


def iter_corpus(directory: Path) -> Iterator[BeirPassage]:
    """Yields the passages of corpus.jsonl one at a time.

    Raises SetFormatError where the file is missing, a line is malformed or an id is given twice.
    """
    seen: set[str] = set()
    for place, record in iter_json_lines(directory / "corpus.jsonl"):
        passage_id = new_id(record, place, seen)
        seen.add(passage_id)
        yield BeirPassage(
            passage_id, string_field(record, "title", place, default=""), string_field(record, "text", place)
        )


def write_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object a line, each as it comes."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def read_meta(directory: Path) -> Mapping[str, Any]:
    """The object in meta.json, empty where there is none; raises SetFormatError where it is no JSON."""
    path = directory / "meta.json"
    if not path.is_file():
        return {}
    try:
        meta = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SetFormatError("bad_meta", path, reason=str(error)) from error
    return meta if isinstance(meta, dict) else {}


def iter_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yields (place, line) for each line that is not blank; the place is the file's name and the line's number.

    Raises SetFormatError where the file is missing or not UTF-8.
    """
    if not path.is_file():
        splits = sorted(found.stem for found in path.parent.glob("*.tsv")) if path.parent.name == "qrels" else []
        if splits:
            raise SetFormatError("missing_split", path, splits=", ".join(splits))
        raise SetFormatError("missing_file", path, layout=LAYOUT)
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            place = f"{path}:{number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise SetFormatError("not_utf8", place, reason=error.reason) from error
            if line.strip():
                yield place, line


def iter_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """As `iter_lines`, for a file of one JSON object a line; raises SetFormatError where a line is none, too."""
    for place, line in iter_lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SetFormatError("not_json", place, reason=str(error)) from error
        if not isinstance(record, dict):
            raise SetFormatError("not_object", place)
        yield place, record


def string_field(record: Mapping[str, Any], key: str, place: str, *, default: str | None = None) -> str:
    """A field that is a string; raises SetFormatError where it is missing or something else."""
    value = record.get(key, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise SetFormatError("no_field", place, field=key)
    return value


def new_id(record: Mapping[str, Any], place: str, seen: Collection[str]) -> str:
    """The field `_id`; raises SetFormatError where it is missing, empty or among those seen."""
    value = string_field(record, "_id", place)
    if not value or value in seen:
        raise SetFormatError("bad_id", place, id=value)
    return value
