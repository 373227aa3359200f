"""Small files in one parser's child: each is read as by a child of its own, whatever the others are."""

import os
import signal
import time
from contextlib import closing
from dataclasses import replace

import psutil
import pytest

from kb.ingest.parser import sandbox
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits, TooSlow, WarmParser, parse_file, run_job

pytestmark = pytest.mark.sandbox


@pytest.fixture
def stored(tmp_path):
    def store(content, name="file"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return store


def children():
    return {each.pid for each in psutil.Process().children()}


def test_files_share_a_child_and_are_read_as_by_a_child_of_their_own(stored):
    paths = [stored(f"# 标题{number}\n\n正文", f"{number}.md") for number in range(3)]
    before = children()
    with closing(WarmParser()) as parser:
        documents = [parser.parse(path, path.name) for path in paths]
        [shared] = children() - before
        assert parser.parse(paths[0], "0.md") == documents[0]
        assert children() - before == {shared}

    assert documents == [parse_file(path, path.name) for path in paths]
    assert children() == before


def test_a_file_that_cannot_be_read_ends_with_the_sandboxs_sentence_and_the_next_is_read(stored):
    with closing(WarmParser()) as parser:
        good = parser.parse(stored("文", "a.txt"), "a.txt")
        with pytest.raises(ParseError) as refused:
            parser.parse(stored(b"%PDF-1.7\n" + b"\0" * 5_000, "bad.pdf"), "bad.pdf")
        assert refused.value.code == "damaged_file"
        assert parser.parse(stored("文", "b.txt"), "a.txt") == good


def test_the_first_file_of_a_child_is_refused_without_another_child(stored, monkeypatch):
    monkeypatch.setattr(sandbox, "run_job", pytest.fail)
    with closing(WarmParser()) as parser, pytest.raises(ParseError) as refused:
        parser.parse(stored("", "empty.txt"), "empty.txt")
    assert refused.value.code == "empty_file"


def test_jobs_of_several_kinds_share_a_child_and_are_done_as_by_a_child_of_their_own(stored):
    page = stored("<html><body><a href='/b'>B</a><p>Text</p></body></html>", "a.html")
    jobs = [
        ("page", {"filename": "a.html", "url": "http://example.org/"}),
        ("links", {"url": "http://example.org/c/"}),
        ("parse", {"filename": "a.html"}),
        ("feed", {"media_type": "text/xml", "charset": "", "url": "http://example.org/", "texts": 0}),
    ]
    before = children()
    with closing(WarmParser()) as parser:
        answers = [parser.run(job, page, lambda answer: answer, **arguments) for job, arguments in jobs]
        assert len(children() - before) == 1
    assert answers == [run_job(job, page, limits=Limits(), **arguments) for job, arguments in jobs]


def test_an_answer_of_another_shape_is_asked_for_once_more_of_a_child_of_its_own(stored):
    path, seen = stored("文", "a.txt"), []

    def decode(answer):
        seen.append(answer)
        if len(seen) == 2:
            raise ParseError("parser_crashed")
        return "read"

    with closing(WarmParser()) as parser:
        assert [parser.run("parse", path, decode, filename="a.txt") for _ in range(3)] == ["read"] * 3
    assert len(seen) == 4


def test_a_child_that_was_killed_is_begun_again(stored):
    path = stored("文", "a.txt")
    before = children()
    with closing(WarmParser()) as parser:
        first = parser.parse(path, "a.txt")
        [shared] = children() - before
        os.kill(shared, signal.SIGKILL)
        assert parser.parse(path, "a.txt") == first
        assert parser.parse(path, "a.txt") == first


def test_a_child_that_hangs_is_given_up_and_the_next_file_is_read(stored, monkeypatch):
    path = stored("文", "a.txt")
    before = children()
    with closing(WarmParser()) as parser:
        parser.parse(path, "a.txt")
        [shared] = children() - before
        monkeypatch.setattr(parser, "_warm", replace(parser._warm, seconds=0.5))
        os.kill(shared, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(TooSlow):
            parser.parse(path, "a.txt")
        assert time.monotonic() - started >= 0.5
        assert shared not in children()
        monkeypatch.undo()
        assert parser.parse(path, "a.txt").sections[0].text == "文"


def test_a_file_that_the_common_child_fails_at_gets_no_more_time_alone(stored, monkeypatch):
    """As where earlier files have used up the common child's processor time: the full limit is for the file's own task."""
    path = stored("文", "a.txt")
    with closing(WarmParser()) as parser:
        parser.parse(path, "a.txt")
        parser._child.kill()
        monkeypatch.setattr(parser, "_warm", replace(parser._warm, seconds=0.001))
        with pytest.raises(TooSlow):
            parser.parse(path, "a.txt")


def test_where_the_full_limit_is_no_longer_a_slow_file_has_failed(stored):
    with closing(WarmParser(Limits(seconds=0.001))) as parser, pytest.raises(ParseError) as refused:
        parser._by_itself("parse", stored("文", "a.txt"), {"filename": "a.txt"})
    assert refused.value.code == "timeout"


def test_what_earlier_files_have_left_of_the_memory_is_not_blamed_on_a_later_one(stored, monkeypatch):
    monkeypatch.setattr(sandbox, "FILES_A_CHILD", 2)
    path = stored("文", "a.txt")
    before = children()
    with closing(WarmParser()) as parser:
        seen = []
        for _ in range(4):
            parser.parse(path, "a.txt")
            seen.append((children() - before).pop())
    assert seen[0] == seen[1] != seen[2] == seen[3]


def test_a_missing_file_is_the_callers_fault(tmp_path):
    with closing(WarmParser()) as parser, pytest.raises(OSError, match="none"):
        parser.parse(tmp_path / "none", "a.txt")


def test_a_file_that_is_too_large_is_not_read_at_all(stored):
    before = children()
    with closing(WarmParser(Limits(input_bytes=10))) as parser:
        with pytest.raises(ParseError) as refused:
            parser.parse(stored("0123456789a", "a.txt"), "a.txt")
        assert children() == before
    assert refused.value.code == "too_large"


def test_a_child_that_says_more_than_is_allowed_is_ended_and_the_file_is_read_alone_under_the_same_limit(stored):
    text = stored("文" * 5_000, "a.txt")
    before = children()
    with closing(WarmParser(Limits(output_bytes=1_000))) as parser:
        with pytest.raises(ParseError) as refused:
            parser.parse(text, "a.txt")
        assert children() == before
        assert parser.parse(stored("文", "b.txt"), "b.txt").sections[0].text == "文"
    assert refused.value.code == "too_much_text"
