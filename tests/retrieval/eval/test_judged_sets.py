import json
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from retrieval.eval.judged_sets import (
    JudgedQuery,
    JudgedSet,
    Layout,
    SourceJudgment,
    layout_of,
    read_judged_set,
    write_judged_set,
)
from retrieval.eval.qrels import MESSAGES, SetFormatError, SetProblem, iter_json_lines

SET = JudgedSet(
    name="年假 set",
    queries=(
        JudgedQuery("q1", "年假有几天"),
        JudgedQuery("q 2", "How long is the warranty?"),
        JudgedQuery("q3", "公司的股价", answerable=False),
        JudgedQuery("q4", "not judged yet"),
    ),
    judgments=(
        SourceJudgment("q1", "员工 手册.pdf", 2, "工作满一年\n的员工享有五天年假"),
        SourceJudgment("q1", "员工 手册.pdf", 0, "病假需要告知上级"),
        SourceJudgment("q1", "员工 手册.pdf", 1),
        SourceJudgment("q 2", "warranty.docx", 1),
        SourceJudgment("q 2", "deleted.txt", 2),
        SourceJudgment("q 2", "https://x.example/a%20b", 0),
    ),
)
DOCUMENTS = ("员工 手册.pdf", "warranty.docx", "https://x.example/a%20b")


def in_order(judged):
    return judged.name, judged.queries, sorted(judged.judgments, key=str)


@pytest.fixture
def beir(tmp_path):
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "x"}\n{"_id": "q2", "text": "other split"}\n')
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    return tmp_path


@pytest.fixture
def trec(tmp_path):
    (tmp_path / "topics.tsv").write_text("301\tinternational organized crime\n302\tpoliomyelitis\n")
    (tmp_path / "qrels.txt").write_text("301 0 FBIS3-10082 1\n301 0 FBIS3-10169 0\n302 0 FBIS4-67701 -1\n")
    return tmp_path


@pytest.mark.parametrize("layout", Layout)
def test_what_is_written_is_read_back(tmp_path, layout):
    write_judged_set(tmp_path, SET, layout, documents=DOCUMENTS)
    assert layout_of(tmp_path) is layout
    assert in_order(read_judged_set(tmp_path)) == in_order(SET)


ids = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8).filter(
    str.strip
)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20).filter(
    str.strip
)


@given(
    st.lists(
        st.tuples(ids, st.one_of(st.just(""), words), st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=lambda query: query[0],
    ),
    st.lists(
        st.tuples(st.integers(0, 3), ids, st.integers(0, 3), st.one_of(st.just(""), words)),
        max_size=6,
        unique_by=lambda judged: (judged[0], judged[1], judged[3]),
    ),
    st.booleans(),
    st.sampled_from(Layout),
)
def test_any_set_is_read_back(tmp_path_factory, queries, judgments, are_there, layout):
    queries = tuple(
        JudgedQuery(key, " ".join(text.split()) if layout is Layout.TREC else text, answerable)
        for key, text, answerable in queries
    )
    rows = {(queries[n % len(queries)].id, source, quote): grade for n, source, grade, quote in judgments}
    judgments = tuple(SourceJudgment(key, source, grade, quote) for (key, source, quote), grade in rows.items())
    judged = JudgedSet("any", queries, judgments)
    directory = tmp_path_factory.mktemp("set")

    write_judged_set(directory, judged, layout, documents=[each.source for each in judgments] if are_there else [])

    assert in_order(read_judged_set(directory)) == in_order(judged)


@pytest.mark.parametrize(("layout", "qrels"), [(Layout.BEIR, "qrels/test.tsv"), (Layout.TREC, "qrels.txt")])
def test_other_readers_find_the_best_grade_of_each_document_that_is_there(tmp_path, layout, qrels):
    write_judged_set(tmp_path, SET, layout, documents=DOCUMENTS)
    lines = (tmp_path / qrels).read_text("utf-8")
    assert "deleted" not in lines
    graded = {"beir": "q1\t员工 手册.pdf\t2\n", "trec": "q1 0 员工%20手册.pdf 2\n"}[layout]
    assert graded in lines
    assert len(lines.splitlines()) == (4 if layout is Layout.BEIR else 3)


def test_a_set_of_documents_needs_no_file_of_passages(tmp_path):
    judged = JudgedSet("s", (JudgedQuery("q", "x"),), (SourceJudgment("q", "d", 1),))
    write_judged_set(tmp_path, judged, Layout.BEIR, documents=["d"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.json", "qrels", "queries.jsonl"]


def test_queries_of_other_splits_are_left_out(beir):
    assert [query.id for query in read_judged_set(beir).queries] == ["q1"]
    assert [record["_id"] for _place, record in iter_json_lines(beir / "queries.jsonl")] == ["q1", "q2"]


def test_topics_and_qrels_of_trec_are_read(trec):
    judged = read_judged_set(trec)
    assert judged.queries == (JudgedQuery("301", "international organized crime"), JudgedQuery("302", "poliomyelitis"))
    assert judged.judgments == (
        SourceJudgment("301", "FBIS3-10082", 1),
        SourceJudgment("301", "FBIS3-10169", 0),
        SourceJudgment("302", "FBIS4-67701", 0),
    )


def test_topics_in_blocks_are_read(trec):
    (trec / "topics.tsv").rename(trec / "topics.txt")
    (trec / "topics.txt").write_text(
        "<top>\n<num> Number: 301\n<title> International\nOrganized Crime\n\n<desc> Description:\nx\n</top>\n\n"
        "<top>\n<num>302</num>\n<title>Poliomyelitis</title>\n</top>\n"
    )
    assert read_judged_set(trec).queries == (
        JudgedQuery("301", "International Organized Crime"),
        JudgedQuery("302", "Poliomyelitis"),
    )


def test_ids_of_other_writers_are_taken_as_they_are(trec):
    (trec / "qrels.txt").write_text("301 0 https://x.example/a%20b 1\n")
    assert read_judged_set(trec).judgments[0].source == "https://x.example/a%20b"


def test_only_known_documents_may_be_judged_where_they_are_named(beir, trec):
    assert read_judged_set(beir, Layout.BEIR, documents=["d1"]).judgments
    for layout in Layout:
        with pytest.raises(SetFormatError) as caught:
            read_judged_set(beir, layout, documents=["other"])
        assert caught.value.problem == "unknown_passage"


@pytest.mark.parametrize(
    ("name", "line", "problem"),
    [
        ("queries.jsonl", "[" * 100_000, "not_json"),
        ("queries.jsonl", '{"_id": " ", "text": "x", "metadata": {"answerable": true}}', "bad_id"),
        (
            "queries.jsonl",
            f'{{"_id": "q3", "text": "{"x" * 10_001}", "metadata": {{"answerable": true}}}}',
            "too_long",
        ),
        ("qrels/test.tsv", "q1\td9\t4", "grade_too_high"),
        ("passages.jsonl", "{", "not_json"),
        ("passages.jsonl", '{"query-id": "q1", "quote": "x", "score": 1}', "no_field"),
        ("passages.jsonl", '{"query-id": "q9", "corpus-id": "d", "quote": "x", "score": 1}', "unknown_query"),
        ("passages.jsonl", '{"query-id": "q1", "corpus-id": "d", "quote": "x", "score": "1"}', "not_a_grade"),
        ("passages.jsonl", '{"query-id": "q1", "corpus-id": "d", "quote": "x", "score": true}', "not_a_grade"),
        ("passages.jsonl", '{"query-id": "q1", "corpus-id": "d", "quote": "x", "score": 4}', "grade_too_high"),
    ],
)
def test_a_bad_line_of_beir_is_reported(beir, name, line, problem):
    with (beir / name).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(SetFormatError) as caught:
        read_judged_set(beir, Layout.BEIR)
    assert caught.value.problem == problem


def test_a_passage_judged_twice_is_reported_with_its_line(beir):
    line = json.dumps({"query-id": "q1", "corpus-id": "d", "quote": "x", "score": 1})
    (beir / "passages.jsonl").write_text(f"{line}\n{line}\n")
    with pytest.raises(SetFormatError, match=r"passages\.jsonl:2: query 'q1' judges passage 'd' twice"):
        read_judged_set(beir)


@pytest.mark.parametrize(
    ("name", "line", "problem"),
    [
        ("topics.tsv", "303 no tab", "bad_topic"),
        ("topics.tsv", " \tx", "bad_topic"),
        ("topics.tsv", "301\tagain", "bad_id"),
        ("qrels.txt", "301 0 d", "bad_trec_judgment"),
        ("qrels.txt", "301 0 d high", "bad_trec_judgment"),
        ("qrels.txt", "309 0 d 1", "unknown_query"),
        ("qrels.txt", "301 0 FBIS3-10082 0", "judged_twice"),
        ("qrels.txt", "301 0 d 9", "grade_too_high"),
    ],
)
def test_a_bad_line_of_trec_is_reported(trec, name, line, problem):
    with (trec / name).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(SetFormatError) as caught:
        read_judged_set(trec)
    assert caught.value.problem == problem
    assert problem == "grade_too_high" or f"{name}:" in caught.value.place


def test_a_block_without_a_title_is_reported(trec):
    (trec / "topics.tsv").write_text("<top>\n<num> 301\n</top>\n")
    with pytest.raises(SetFormatError, match="topic 1"):
        read_judged_set(trec)


def test_what_is_missing_or_there_twice_is_reported(trec, tmp_path_factory):
    (trec / "topics.txt").write_text("301\tx\n")
    with pytest.raises(SetFormatError, match=r"topics\.tsv, topics\.txt"):
        read_judged_set(trec)
    (trec / "topics.txt").unlink()
    (trec / "qrels.txt").unlink()
    with pytest.raises(SetFormatError, match=r"qrels\.txt does not exist"):
        read_judged_set(trec)
    with pytest.raises(SetFormatError, match="neither"):
        read_judged_set(tmp_path_factory.mktemp("empty"))


def test_long_ids_and_sources_are_reported(trec):
    for line in (f"301 0 {'x' * 1_001} 1", f"{'y' * 201} 0 d 1"):
        (trec / "topics.tsv").write_text(f"301\tx\n{'y' * 201}\tx\n")
        (trec / "qrels.txt").write_text(f"{line}\n")
        with pytest.raises(SetFormatError) as caught:
            read_judged_set(trec)
        assert caught.value.problem == "too_long"


def test_every_problem_has_a_sentence():
    assert set(MESSAGES) == set(get_args(SetProblem))
