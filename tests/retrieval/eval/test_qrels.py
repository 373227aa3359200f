import json

import pytest
from hypothesis import given, strategies as st

from retrieval.errors import RetrievalError
from retrieval.eval.judged_sets import (
    JudgedQuery,
    JudgedSet,
    Layout,
    SourceJudgment,
    read_judged_set,
    write_judged_set,
)
from retrieval.eval.qrels import BeirPassage, SetFormatError, iter_corpus

CORPUS = ['{"_id": "d1", "title": "标题", "text": "正文"}', '{"_id": "d2", "text": "no title"}']
QUERIES = [
    '{"_id": "q1", "text": "judged"}',
    '{"_id": "q2", "text": "never", "metadata": {"answerable": false}}',
    '{"_id": "q3", "text": "other split", "metadata": {"answerable": true}}',
    '{"_id": "q4", "text": "both", "metadata": {"answerable": true, "answers": ["x"]}}',
]
QRELS = ["query-id\tcorpus-id\tscore", "q1\td1\t1", "q4\td1\t2", "q4\td2\t0"]


@pytest.fixture
def folder(tmp_path):
    """A small valid set; a test then replaces the file that it is about."""
    directory = tmp_path / "tiny"
    (directory / "qrels").mkdir(parents=True)
    _write(directory / "corpus.jsonl", CORPUS)
    _write(directory / "queries.jsonl", QUERIES)
    _write(directory / "qrels" / "test.tsv", QRELS)
    return directory


def _write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(folder):
    """A set whose judgments may only name passages of its corpus."""
    return read_judged_set(folder, Layout.BEIR, documents=[passage.id for passage in iter_corpus(folder)])


def test_a_set_is_read_whole(folder):
    _write(folder / "queries.jsonl", [*QUERIES, '{"_id": "q5", "text": "of another split"}'])

    assert list(iter_corpus(folder)) == [BeirPassage("d1", "标题", "正文"), BeirPassage("d2", "", "no title")]
    assert read(folder) == JudgedSet(
        name="tiny",
        queries=(
            JudgedQuery("q1", "judged"),
            JudgedQuery("q2", "never", answerable=False),
            JudgedQuery("q3", "other split", answerable=True),
            JudgedQuery("q4", "both", answerable=True),
        ),
        judgments=(SourceJudgment("q1", "d1", 1), SourceJudgment("q4", "d1", 2), SourceJudgment("q4", "d2", 0)),
    )


def test_meta_json_names_the_set(folder):
    _write(folder / "meta.json", ['{"name": "given"}'])

    assert read(folder).name == "given"


@pytest.mark.parametrize("meta", ['{"name": ""}', "{}", "[]"])
def test_the_folder_names_a_set_whose_meta_json_does_not(folder, meta):
    _write(folder / "meta.json", [meta])

    assert read(folder).name == "tiny"


def test_a_broken_meta_json_is_reported(folder):
    _write(folder / "meta.json", ["{"])

    with pytest.raises(SetFormatError, match=r"meta\.json: not valid JSON"):
        read(folder)


def test_a_missing_split_names_those_that_exist(folder):
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "dev.tsv")

    with pytest.raises(SetFormatError, match=r"test\.tsv does not exist: choose one of the splits dev"):
        read(folder)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_missing_file_says_what_a_set_holds(folder, name):
    (folder / name).unlink()

    with pytest.raises(SetFormatError, match=r"does not exist: a BEIR folder holds corpus\.jsonl"):
        read(folder)


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_are_accepted(folder):
    (folder / "corpus.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(CORPUS).encode())

    assert [passage.id for passage in iter_corpus(folder)] == ["d1", "d2"]


def test_qrels_without_a_header_are_accepted(folder):
    _write(folder / "qrels" / "test.tsv", QRELS[1:])

    assert SourceJudgment("q1", "d1", 1) in read(folder).judgments


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"title": "t", "text": "x"}', "field '_id' is missing or no string"),
        ('{"_id": "", "text": "x"}', "_id '' is empty or was used before"),
        ('{"_id": "d1", "text": "x"}', "_id 'd1' is empty or was used before"),
        ('{"_id": 7, "text": "x"}', "field '_id' is missing or no string"),
        ('{"_id": "d3"}', "field 'text' is missing or no string"),
        ('{"_id": "d3", "text": null}', "field 'text' is missing or no string"),
        ('{"_id": "d3", "title": 1, "text": "x"}', "field 'title' is missing or no string"),
    ],
)
def test_a_bad_passage_is_reported_with_its_line(folder, line, message):
    _write(folder / "corpus.jsonl", [*CORPUS, line])

    with pytest.raises(SetFormatError) as caught:
        list(iter_corpus(folder))
    assert f"corpus.jsonl:3: {message}" in str(caught.value)


def test_a_title_of_null_is_no_title(folder):
    _write(folder / "corpus.jsonl", ['{"_id": "d1", "title": null, "text": "x"}'])

    assert next(iter_corpus(folder)).title == ""


def test_bytes_that_are_not_utf8_are_reported_with_their_line(folder):
    (folder / "corpus.jsonl").write_bytes(CORPUS[0].encode() + b"\n" + "中".encode("gbk"))

    with pytest.raises(SetFormatError, match=r"corpus\.jsonl:2: not UTF-8"):
        list(iter_corpus(folder))


def test_the_corpus_is_streamed(folder):
    _write(folder / "corpus.jsonl", [CORPUS[0], "broken"])

    assert next(iter_corpus(folder)).id == "d1"


@pytest.mark.parametrize("metadata", ['{"answerable": "yes"}', '"yes"', "[1]"])
def test_answerable_must_be_a_boolean(folder, metadata):
    _write(folder / "queries.jsonl", [f'{{"_id": "q1", "text": "x", "metadata": {metadata}}}'])

    with pytest.raises(SetFormatError, match=r"queries\.jsonl:1: metadata\.answerable must be true, false or absent"):
        read(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1\td1", "2 fields"),
        ("q1 d1 1", "1 fields"),
        ("q9\td1\t1", "unknown query 'q9'"),
        ("q1\td9\t1", "unknown passage 'd9'"),
        ("q1\td2\thigh", "score 'high' is no whole number"),
        ("q1\td1\t1", "query 'q1' judges passage 'd1' twice"),
    ],
)
def test_a_bad_judgment_is_reported_with_its_line(folder, line, message):
    _write(folder / "qrels" / "test.tsv", [*QRELS, line])

    with pytest.raises(SetFormatError) as caught:
        read(folder)
    assert f"test.tsv:5: {message}" in str(caught.value)


def test_a_format_error_is_a_retrieval_error():
    assert issubclass(SetFormatError, RetrievalError)


def test_written_files_follow_the_layout(tmp_path):
    judged = JudgedSet("s", (JudgedQuery("q", "问"),), (SourceJudgment("q", "d", 1),))

    write_judged_set(tmp_path, judged, Layout.BEIR, documents=["d"])

    assert json.loads((tmp_path / "queries.jsonl").read_text("utf-8")) == {
        "_id": "q",
        "text": "问",
        "metadata": {"answerable": True},
    }
    assert (tmp_path / "qrels" / "test.tsv").read_text("utf-8") == "query-id\tcorpus-id\tscore\nq\td\t1\n"


@given(
    st.sampled_from(["d1", "d2", "d3"]),
    st.text(max_size=20),
    st.booleans(),
    st.integers(min_value=0, max_value=3),
)
def test_what_is_written_is_read_back(tmp_path_factory, source, query, answerable, grade):
    directory = tmp_path_factory.mktemp("beir")
    queries = (JudgedQuery("q", query, answerable), JudgedQuery("unjudged", query, answerable))
    judged = JudgedSet("roundtrip", queries, (SourceJudgment("q", source, grade),))

    write_judged_set(directory, judged, Layout.BEIR, documents=[source])

    assert read_judged_set(directory, documents=["d1", "d2", "d3"]) == judged
