"""That the benchmark runs and prints its rows; what they say is not asserted."""

import json
import sys

import pytest

from tests.benchmarks import keyword

SMALL = ["--set", "generated", "--chunks", "300", "--queries", "5", "--slow-queries", "2"]
MEASURED = [
    "query, k = 60, p50 of 2, against rank_bm25",
    "query, k = 10, p50 of 5, against bm25s",
    "add 50 chunks and search, against a full build",
    "bytes a posting",
    "peak resident memory",
    "ten best scores as rank_bm25's to 1e-4 | 2 of 2 queries",
    "rebuild from stored postings, against",
    "load a signed payload, against",
]


def write_set(folder):
    folder.mkdir()
    passages = [{"_id": str(n), "title": f"第{n}条", "text": "知识库检索的速度" * (n % 5 + 1)} for n in range(100)]
    questions = [{"_id": str(n), "text": f"第{n}条检索"} for n in range(5)]
    for name, entries in (("corpus", passages), ("queries", questions)):
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def test_a_generated_corpus_gives_every_row(capsys):
    keyword.main(SMALL)

    printed = capsys.readouterr().out
    assert [measure for measure in MEASURED if measure not in printed] == []


def test_an_evaluation_set_is_compared_with_cutting_it_again(tmp_path, monkeypatch, capsys):
    write_set(tmp_path / "stard-law")
    monkeypatch.setenv("ZHIKU_EVAL_DATA", str(tmp_path))
    arguments = ["--set", "stard-law", "--queries", "5", "--slow-queries", "2", "--cache", str(tmp_path / "cache")]

    keyword.main(arguments)

    assert "rebuild from stored postings, against jieba + BM25Okapi" in capsys.readouterr().out


def test_tokens_are_made_once(tmp_path, monkeypatch):
    write_set(tmp_path / "stard-law")
    first = keyword.read_beir(tmp_path / "stard-law", tmp_path / "cache")
    monkeypatch.setattr("retrieval.tokenize.JiebaTokenizer.__call__", None)

    assert keyword.read_beir(tmp_path / "stard-law", tmp_path / "cache") == first


def test_a_missing_evaluation_set_is_said_and_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ZHIKU_EVAL_DATA", str(tmp_path))

    keyword.main(["--set", "stard-law"])

    assert "There is no stard-law under ZHIKU_EVAL_DATA" in capsys.readouterr().err


def test_a_missing_rival_is_said_and_left_out(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "bm25s", None)

    keyword.main(SMALL)

    printed = capsys.readouterr()
    assert "run `pip install bm25s`" in printed.err
    assert "against rank_bm25" in printed.out
    assert "against bm25s" not in printed.out


def test_without_the_keyword_channels_packages_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rank_bm25", None)

    with pytest.raises(SystemExit):
        keyword.main(SMALL)

    assert "run `pip install rank-bm25`" in capsys.readouterr().err
