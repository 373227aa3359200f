"""Evaluation sets that judge passages, in the layouts of BEIR and TREC, read and written without loss.

Both layouts grade documents. Judged passages stand in a file of our own beside theirs, `passages.jsonl`, one a line:

    {"query-id": "q1", "corpus-id": "handbook.pdf", "quote": "the passage's words", "score": 2}

For a query and a document that it names it replaces the line in qrels, which is then there for other readers only, and
holds the best grade; a blank quote stands for the whole document. `corpus-id` is the document's source.

BEIR: queries.jsonl (`metadata.answerable` false: the corpus has no answer), qrels/test.tsv, meta.json with the name.
TREC: topics.tsv (id, tab, query; or a file of <top> topics), qrels.txt, unanswerable.txt with an id a line. Where meta.json
has `"ids": "percent-encoded"`, white space and % within ids are. A query's white space becomes single spaces.

A judged passage is found again after another chunking or another import of its document by its words.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote as percent_encoded, unquote

import ir_measures

from retrieval.eval.qrels import (
    SetFormatError,
    iter_json_lines,
    iter_lines,
    new_id,
    read_meta,
    string_field,
    write_json_lines,
)

MAX_GRADE = 3
ID_CHARACTERS, SOURCE_CHARACTERS, TEXT_CHARACTERS = 200, 1_000, 10_000

_BEIR_QRELS, _BEIR_HEADER = "qrels/test.tsv", ("query-id", "corpus-id", "score")
_PASSAGES, _UNANSWERABLE = "passages.jsonl", "unanswerable.txt"
_ENCODED = {"ids": "percent-encoded"}
_TOPIC = re.compile(r"<top>(.*?)</top>", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"<num>\s*(?:number:)?\s*([^<\s]+)", re.IGNORECASE)
_TITLE = re.compile(r"<(?:title|query)>\s*(?:topic:)?([^<]*)", re.IGNORECASE)


class Layout(StrEnum):
    BEIR = "beir"
    TREC = "trec"


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    id: str
    text: str
    answerable: bool = True


@dataclass(frozen=True, slots=True)
class SourceJudgment:
    """The grade of a document, known by its source, or of a passage of it; a blank quote is the whole document."""

    query_id: str
    source: str
    grade: int
    quote: str = ""


@dataclass(frozen=True, slots=True)
class JudgedSet:
    name: str
    queries: tuple[JudgedQuery, ...]
    judgments: tuple[SourceJudgment, ...]


def layout_of(directory: Path) -> Layout:
    """Which layout a folder has; raises SetFormatError where it has neither."""
    if (directory / "queries.jsonl").is_file():
        return Layout.BEIR
    if any(directory.glob("topics*")):
        return Layout.TREC
    raise SetFormatError("no_set", directory)


def read_judged_set(
    directory: Path, layout: Layout | None = None, *, documents: Collection[str] | None = None
) -> JudgedSet:
    """Reads queries and judgments; of BEIR's queries, those of other splits are left out.

    Without a layout it is as the files are. Only `documents`, known by their sources, may be judged; None: any. Raises
    SetFormatError where a file is missing or a line is wrong.
    """
    layout = layout or layout_of(directory)
    queries, qrels = (_read_beir if layout is Layout.BEIR else _read_trec)(directory, documents)
    passages = _read_passages(directory / _PASSAGES, queries)
    replaced = {(each.query_id, each.source) for each in passages}
    whole = [
        SourceJudgment(query_id, source, max(0, grade))
        for query_id, grades in qrels.items()
        for source, grade in grades.items()
        if (query_id, source) not in replaced
    ]
    for each in whole:
        _check_judgment(each, f"{directory / 'qrels'}, query '{each.query_id}'")
    for number, query in enumerate(queries.values(), start=1):
        place = f"{directory}, query {number}"
        _check_id(query.id, place)
        _check_length("query", query.text, TEXT_CHARACTERS, place)
    name = read_meta(directory).get("name")
    if not isinstance(name, str) or not name:
        name = directory.resolve().name
    return JudgedSet(name, tuple(queries.values()), (*whole, *passages))


def write_judged_set(directory: Path, judged: JudgedSet, layout: Layout, *, documents: Collection[str]) -> None:
    """Writes the set into a folder, which is made, so that `read_judged_set` reads the same one.

    The qrels name no other sources than `documents`, so that they fit a corpus.
    """
    directory.mkdir(parents=True, exist_ok=True)
    meta = {"name": judged.name} | (_ENCODED if layout is Layout.TREC else {})
    (directory / "meta.json").write_text(json.dumps(meta, ensure_ascii=False) + "\n", encoding="utf-8")
    qrels, apart = _split(judged.judgments, documents, layout)
    grades = [(key, source, grade) for key, by_source in qrels.items() for source, grade in by_source.items()]
    if layout is Layout.BEIR:
        records = (
            {"_id": each.id, "text": each.text, "metadata": {"answerable": each.answerable}} for each in judged.queries
        )
        write_json_lines(directory / "queries.jsonl", records)
        (directory / _BEIR_QRELS).parent.mkdir(exist_ok=True)
        _write_lines(directory / _BEIR_QRELS, ("\t".join(map(str, row)) for row in (_BEIR_HEADER, *grades)))
    else:
        _write_lines(
            directory / "topics.tsv", (f"{_encoded(each.id)}\t{' '.join(each.text.split())}" for each in judged.queries)
        )
        _write_lines(
            directory / "qrels.txt", (f"{_encoded(key)} 0 {_encoded(source)} {grade}" for key, source, grade in grades)
        )
        _write_lines(directory / _UNANSWERABLE, (_encoded(each.id) for each in judged.queries if not each.answerable))
    if apart:
        passages = (
            {"query-id": each.query_id, "corpus-id": each.source, "quote": each.quote, "score": each.grade}
            for each in apart
        )
        write_json_lines(directory / _PASSAGES, passages)


_Grades = dict[str, dict[str, int]]


# -- BEIR --------------------------------------------------------------------------------------------------------------
def _read_beir(directory: Path, documents: Collection[str] | None) -> tuple[dict[str, JudgedQuery], _Grades]:
    queries: dict[str, JudgedQuery] = {}
    marked: set[str] = set()
    for place, record in iter_json_lines(directory / "queries.jsonl"):
        query_id = new_id(record, place, queries)
        metadata = record.get("metadata") or {}
        answerable = metadata.get("answerable") if isinstance(metadata, dict) else metadata
        if answerable is not None:
            if not isinstance(answerable, bool):
                raise SetFormatError("bad_answerable", place)
            marked.add(query_id)
        queries[query_id] = JudgedQuery(query_id, string_field(record, "text", place), answerable is not False)
    qrels = _checked(_beir_judgments(directory / _BEIR_QRELS), queries, documents, "queries.jsonl")
    return {key: query for key, query in queries.items() if key in qrels or key in marked}, qrels


def _beir_judgments(path: Path) -> Iterator[tuple[str, str, str, int]]:
    for place, line in iter_lines(path):
        fields = tuple(line.split("\t"))
        if fields == _BEIR_HEADER:
            continue
        if len(fields) != len(_BEIR_HEADER):
            raise SetFormatError("bad_judgment", place, count=len(fields))
        query_id, source, score = fields
        try:
            yield place, query_id, source, int(score)
        except ValueError as error:
            raise SetFormatError("not_a_grade", place, grade=score) from error


def _checked(
    judgments: Iterable[tuple[str, str, str, int]],
    queries: Collection[str],
    documents: Collection[str] | None,
    queries_file: str,
) -> _Grades:
    """Grades by source by query id, of (place, query id, source, grade)."""
    qrels: _Grades = {}
    for place, query_id, source, grade in judgments:
        if query_id not in queries:
            raise SetFormatError("unknown_query", place, id=query_id, queries=queries_file)
        if documents is not None and source not in documents:
            raise SetFormatError("unknown_passage", place, id=source)
        if source in qrels.setdefault(query_id, {}):
            raise SetFormatError("judged_twice", place, query=query_id, id=source)
        qrels[query_id][source] = grade
    return qrels


# -- TREC --------------------------------------------------------------------------------------------------------------
def _read_trec(directory: Path, documents: Collection[str] | None) -> tuple[dict[str, JudgedQuery], _Grades]:
    decode = unquote if read_meta(directory).get("ids") == _ENCODED["ids"] else str
    topics_file, qrels_file = (_only(directory, pattern) for pattern in ("topics*", "qrels*"))
    marked = directory / _UNANSWERABLE
    unanswerable = {line.strip() for _place, line in iter_lines(marked)} if marked.is_file() else set()
    queries: dict[str, JudgedQuery] = {}
    for place, key, text in _topics(topics_file):
        query_id = decode(key)
        if query_id in queries:
            raise SetFormatError("bad_id", place, id=query_id)
        queries[query_id] = JudgedQuery(query_id, text, answerable=key not in unanswerable)
    return queries, _checked(_trec_judgments(qrels_file, decode), queries, documents, topics_file.name)


def _trec_judgments(path: Path, decode: Callable[[str], str]) -> Iterator[tuple[str, str, str, int]]:
    for place, line in iter_lines(path):
        try:
            judged: Any = next(ir_measures.read_trec_qrels(f"{line}\n"))  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise SetFormatError("bad_trec_judgment", place) from error
        yield place, decode(judged.query_id), decode(judged.doc_id), judged.relevance


def _topics(path: Path) -> Iterator[tuple[str, str, str]]:
    """(place, id, text) of each topic, of a file of lines or of <top> blocks."""
    lines = list(iter_lines(path))
    if not any(line.strip().lower().startswith("<top>") for _place, line in lines):
        for place, line in lines:
            key, tab, text = line.partition("\t")
            if not (tab and key.strip()):
                raise SetFormatError("bad_topic", place)
            yield place, key.strip(), text.strip()
        return
    for number, block in enumerate(_TOPIC.findall("\n".join(line for _place, line in lines)), start=1):
        place = f"{path}, topic {number}"
        topic_id, title = _NUMBER.search(block), _TITLE.search(block)
        if topic_id is None or title is None or not title[1].strip():
            raise SetFormatError("bad_topic", place)
        yield place, topic_id[1], " ".join(title[1].split())


def _only(directory: Path, pattern: str) -> Path:
    found = sorted(path for path in directory.glob(pattern) if path.is_file())
    if len(found) > 1:
        raise SetFormatError("several_files", directory, names=", ".join(path.name for path in found))
    if not found:
        layout = "a TREC folder holds topics.tsv and qrels.txt"
        raise SetFormatError("missing_file", directory / pattern.replace("*", ".txt"), layout=layout)
    return found[0]


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def _encoded(key: str) -> str:
    return re.sub(r"[\s%\ufeff]", lambda found: percent_encoded(found[0]), key)


# -- Passages ----------------------------------------------------------------------------------------------------------
def _read_passages(path: Path, queries: Collection[str]) -> list[SourceJudgment]:
    judgments: dict[tuple[str, str, str], SourceJudgment] = {}
    for place, record in iter_json_lines(path) if path.is_file() else ():
        query_id, source = (string_field(record, name, place) for name in ("query-id", "corpus-id"))
        quote, grade = string_field(record, "quote", place, default=""), record.get("score")
        if query_id not in queries:
            raise SetFormatError("unknown_query", place, id=query_id, queries="the queries")
        if isinstance(grade, bool) or not isinstance(grade, int) or grade < 0:
            raise SetFormatError("not_a_grade", place, grade=str(grade))
        judgment = SourceJudgment(query_id, source, grade, quote)
        _check_judgment(judgment, place)
        if (query_id, source, quote) in judgments:
            raise SetFormatError("judged_twice", place, query=query_id, id=source)
        judgments[query_id, source, quote] = judgment
    return list(judgments.values())


def _split(
    judgments: Sequence[SourceJudgment], documents: Collection[str], layout: Layout
) -> tuple[_Grades, list[SourceJudgment]]:
    """What goes into qrels, and what goes into passages.jsonl; ids in BEIR's qrels hold no tabs and no line ends."""
    known = frozenset(documents)
    with_passages = {(each.query_id, each.source) for each in judgments if each.quote}
    qrels: _Grades = {}
    apart: list[SourceJudgment] = []
    for each in judgments:
        fits = layout is Layout.TREC or not any(character in each.query_id + each.source for character in "\t\r\n")
        is_listed = each.source in known and fits
        if is_listed:
            grades = qrels.setdefault(each.query_id, {})
            grades[each.source] = max(each.grade, grades.get(each.source, 0))
        if not is_listed or (each.query_id, each.source) in with_passages:
            apart.append(each)
    return qrels, apart


def _check_judgment(judgment: SourceJudgment, place: str) -> None:
    if judgment.grade > MAX_GRADE:
        raise SetFormatError("grade_too_high", place, grade=judgment.grade, most=MAX_GRADE)
    _check_id(judgment.query_id, place)
    _check_length("corpus-id", judgment.source, SOURCE_CHARACTERS, place)


def _check_id(query_id: str, place: str) -> None:
    if not query_id.strip():
        raise SetFormatError("bad_id", place, id=query_id)
    _check_length("id", query_id, ID_CHARACTERS, place)


def _check_length(name: str, text: str, most: int, place: str) -> None:
    """A text may be empty: sets that are in use have such queries."""
    if len(text) > most:
        raise SetFormatError("too_long", place, field=name, length=most)


# Characters: shorter runs are common to texts that have nothing else in common.
MIN_RUN = 16


def anchor_hash(quote: str) -> str:
    """SHA-256 of a judged passage's words without white space, in hexadecimal."""
    return hashlib.sha256(squeezed(quote).encode()).hexdigest()


def squeezed(text: str) -> str:
    """The text without white space, which parsers and chunkers set as they please."""
    return "".join(text.split())


def same_passage(first: str, second: str) -> bool:
    """Whether two passages of one document, already squeezed, are the same.

    They are where one holds the other whole, or where they have a run of characters in common that is at least half of
    the shorter one and not shorter than `MIN_RUN`.
    """
    shorter, longer = sorted((first, second), key=len)
    if not shorter:
        return False
    if shorter in longer:
        return True
    run = max(MIN_RUN, -(-len(shorter) // 2))
    # Wherever such a run begins, it holds one of the blocks that the shorter text falls into: most texts have none of them.
    block = (run + 1) // 2
    if not any(shorter[start : start + block] in longer for start in range(0, len(shorter) - block + 1, block)):
        return False
    return any(shorter[start : start + run] in longer for start in range(len(shorter) - run + 1))
