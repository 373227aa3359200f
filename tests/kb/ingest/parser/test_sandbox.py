import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from kb.base.findings import Remark, RemarkCode
from kb.ingest.parser import processes, sandbox
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import ParseError, Section
from kb.ingest.parser.sandbox import Limits, parse_file
from tests.kb.ingest.parser.documents import make_docx, make_epub, make_pdf, make_pptx, make_xlsx

pytestmark = pytest.mark.sandbox

MIB = 1024**2
ROOT = Path(sandbox.__file__).parents[3]
# More than a pipe holds, so that a child whose answer nobody reads stays alive.
LONG_TEXT = "很长的一行文字。\n" * 20_000
FILES = {
    "a.txt": "文字内容".encode(),
    "a.md": "# 标题\n\n文字内容".encode(),
    "a.html": "<h1>标题</h1><p>文字内容".encode(),
    "a.pdf": make_pdf(["文字内容"]),
    "a.docx": make_docx("文字内容"),
    "a.pptx": make_pptx(("标题", "文字内容")),
    "a.xlsx": make_xlsx(["编号", "标题"], [1, "文字内容"]),
    "a.csv": "编号,标题\n1,文字内容".encode(),
    "a.epub": make_epub({"标题": "文字内容"}),
    "a.jsonl": '{"question": "标题", "answer": "文字内容"}'.encode(),
}


@pytest.fixture
def stored(tmp_path):
    """Stores bytes under a name without extension, as an upload may lie."""

    def store(data):
        path = tmp_path / "stored"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return store


def order(limits=sandbox.DEFAULT_LIMITS):
    return {"job": "parse", "limits": asdict(limits), "writable": None, "arguments": {"filename": "a.txt"}}


def failure(path, name, **limits):
    with pytest.raises(ParseError) as caught:
        parse_file(path, name, limits=Limits(**limits))
    return caught.value


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_parsed_in_the_child_under_the_default_limits(stored, name):
    document = parse_file(stored(FILES[name]), name)
    assert document.sections[0].text.endswith("文字内容")


def test_the_document_comes_back_as_it_was_parsed(stored):
    data = make_pdf(["第一页"], ["第二页"], title="题目")
    document = parse_file(stored(data), "a.pdf")
    assert (document.title, document.mime) == ("题目", "application/pdf")
    assert [section.text for section in document.sections] == ["第一页", "第二页"]
    assert document == parse(data, "a.pdf")
    assert parse_file(stored("# 甲\n\n文"), "a.md").sections == (Section("甲\n\n文", None, ("甲",)),)


def test_a_refusal_comes_back_with_its_code_and_parameters(stored):
    error = failure(stored(b"\x89PNG\r\n\x1a\n" + bytes(50)), "report.pdf")
    assert error.code == "unsupported_type"
    assert error.params["detected"] == "PNG (image/png)"


def test_a_name_that_is_no_valid_unicode_is_no_obstacle(stored):
    assert parse_file(stored("文"), "\udcff名.txt").title == "名"
    assert parse_file(stored("文"), "a.\udcff").mime == "text/plain"


def test_an_empty_file_is_reported(stored):
    assert failure(stored(""), "a.txt").code == "empty_file"


def test_a_child_that_needs_more_memory_than_allowed_is_reported(stored):
    error = failure(stored("文字" * 5_000_000), "a.txt", memory_bytes=64 * MIB)
    assert error.code == "out_of_memory"
    assert "64 MB" in str(error)


def test_a_child_that_runs_out_of_memory_while_it_loads_a_library_is_reported(stored):
    assert failure(stored(FILES["a.pdf"]), "a.pdf", memory_bytes=26 * MIB).code == "out_of_memory"


def test_a_child_that_takes_too_long_is_stopped(stored):
    error = failure(stored(FILES["a.pdf"]), "a.pdf", seconds=0.001)
    assert error.code == "timeout"
    assert "1 seconds" in str(error)


def test_a_file_larger_than_allowed_is_not_even_read(stored):
    assert failure(stored(b"x" * (MIB + 1)), "a.txt", input_bytes=MIB, seconds=0).code == "too_large"


def test_more_text_than_allowed_is_refused(stored):
    assert failure(stored(LONG_TEXT), "a.txt", output_bytes=1000).code == "too_much_text"


def test_a_missing_file_is_the_callers_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        parse_file(tmp_path / "none", "a.txt")


def test_secrets_of_the_environment_do_not_reach_the_child(stored, monkeypatch):
    for name in ("SECRET_KEY", "DATABASE_URL", "LLM_API_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "a-secret")
    with sandbox._child_process(stored(LONG_TEXT), order()) as process:
        process.stdout.read(1)  # from now on the child is surely what was executed, and no copy of the tests
        environment = Path(f"/proc/{process.pid}/environ").read_text()
    names = {entry.partition("=")[0] for entry in environment.split("\0") if entry}
    assert "LANG" in names
    assert names <= {*processes.ENVIRONMENT, *processes.PASSED_ON}


def test_the_child_runs_under_its_limits_in_a_session_of_its_own(stored):
    limits = Limits(memory_bytes=512 * MIB, seconds=30)
    with sandbox._child_process(stored(LONG_TEXT), order(limits)) as process:
        process.stdout.read(1)
        lines = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        assert os.getsid(process.pid) == process.pid
    table = {line[:26].strip(): line[26:].split()[:2] for line in lines[1:]}
    assert table["Max address space"] == [str(512 * MIB)] * 2
    assert table["Max cpu time"] == ["31", "31"]
    assert table["Max file size"] == ["0", "0"]
    assert table["Max core file size"] == ["0", "0"]
    assert table["Max processes"] == ["0", "0"]


def test_a_child_that_is_abandoned_is_killed(stored):
    with (
        pytest.raises(RuntimeError),
        sandbox._child_process(stored(LONG_TEXT), order()) as process,
    ):
        raise RuntimeError
    assert process.returncode == -signal.SIGKILL


def test_a_child_that_crashes_is_told_apart_from_one_that_answers(stored):
    with sandbox._child_process(stored(LONG_TEXT), order()) as process:
        os.kill(process.pid, signal.SIGSEGV)
        _, errors, status = sandbox._communicate(process, Limits())
    assert sandbox._failure(status, errors, Limits()).code == "parser_crashed"


def test_a_child_that_closes_its_pipes_and_lingers_is_stopped():
    command = [sys.executable, "-c", "import os, time; os.close(1); os.close(2); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with pytest.raises(ParseError) as caught:
            sandbox._communicate(process, Limits(seconds=1))
        process.kill()
    assert caught.value.code == "timeout"


@pytest.mark.parametrize(
    ("status", "errors", "code"),
    [
        (-signal.SIGXCPU, b"", "timeout"),
        (-signal.SIGKILL, b"", "out_of_memory"),
        (1, b"Traceback\nMemoryError", "out_of_memory"),
        (1, b"libx.so: failed to map segment from shared object", "out_of_memory"),
        (1, b"ZeroDivisionError", "parser_crashed"),
        (-signal.SIGABRT, b"", "parser_crashed"),
    ],
)
def test_the_way_a_child_ends_names_the_error(status, errors, code):
    assert sandbox._failure(status, errors, Limits()).code == code


def test_only_the_end_of_what_a_child_complains_is_kept_for_the_log():
    script = "import sys; sys.stderr.write('x' * 100_000 + 'the end'); sys.exit(3)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output, errors, status = sandbox._communicate(process, Limits())
    assert (output, status, len(errors)) == (b"", 3, 4096)
    assert errors.endswith(b"the end")


def test_a_failed_child_is_logged_with_the_end_of_its_errors(stored, caplog):
    failure(stored("文字" * 5_000_000), "大.txt", memory_bytes=64 * MIB)
    assert "大.txt" in caplog.text
    assert "MemoryError" in caplog.text


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"1",
        b"[]",
        b'"error"',
        b"\xff",
        b"[" * 200_000,
        b"{}",
        b'{"error": "no_such_code", "params": {}}',
        b'{"error": "too_large", "params": {}}',
        b'{"error": "too_large", "params": 5}',
    ],
)
def test_an_answer_of_another_shape_is_not_believed(output):
    with pytest.raises(ParseError) as caught:
        sandbox.decode_answer(output)
    assert caught.value.code == "parser_crashed"


@pytest.mark.parametrize(
    "changed",
    [
        {"title": None, "sections": [["text"]]},
        {"sections": [["text", "one", [], "text", "", "", []]]},
        {"sections": [["text", 1, None, "text", "", "", []]]},
        {"sections": [["text", 1, [], "poem", "", "", []]]},
        {"remarks": [["no_such_code", {}]]},
        {"remarks": [["hidden_left_out", 5]]},
        {"remarks": 5},
        {"sections": [{"text": "text", "page": 2**31}]},
        {"sections": [{"text": "text", "regions": [{"page": -1}]}]},
        {"sections": [{"text": "text", "regions": [{"page": 1, "box": [0, 0, 1, float("nan")]}]}]},
        {"sections": [{"text": "text", "regions": [{"seconds": 2**31}]}]},
        {"pictures": [{"data": "", "mime": "image/png", "width": 1, "height": 1, "page": 2**31}]},
    ],
)
def test_a_document_of_another_shape_is_not_believed(changed):
    with pytest.raises(ParseError) as caught:
        sandbox.decode_document({"title": "t", "mime": "m", "sections": [], "remarks": []} | changed)
    assert caught.value.code == "parser_crashed"


def test_pairs_and_remarks_come_back_as_they_were_parsed(stored):
    pair = {"question": "问", "answer": "答", "alternatives": ["另一问"]}
    document = parse_file(stored(json.dumps(pair)), "a.jsonl")
    assert document.sections == (Section.pair("问", "答", alternatives=("另一问",)),)
    document = parse_file(stored(make_pdf(["第一页"], None)), "a.pdf")
    assert document.remarks == (Remark(RemarkCode.PAGES_WITHOUT_TEXT, {"pages": "2"}),)


def test_the_child_starts_wherever_the_parent_stands_and_without_its_import_path(stored, monkeypatch, tmp_path):
    path = stored("文")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry and Path(entry) != ROOT] + [""])
    assert parse_file(path, "a.txt").sections[0].text == "文"


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        ("a.txt", ""),
        ("a.csv", ""),
        ("a.jsonl", ""),
        ("a.md", "markdown_it"),
        ("a.html", "trafilatura"),
        ("a.pdf", "pypdfium2"),
        ("a.docx", "docx"),
        ("a.pptx", "pptx"),
        ("a.xlsx", "openpyxl"),
        ("a.epub", "trafilatura"),
    ],
)
def test_a_child_loads_the_parser_of_its_format_only_and_no_framework(stored, name, parser):
    script = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from pathlib import Path; from kb.ingest.parser import sandbox;"
        "answer = sandbox.answer('parse', Path(sys.argv[2]).open('rb'), {'filename': sys.argv[3]});"
        "assert b'sections' in answer; print(*sys.modules)"
    )
    command = [sys.executable, "-I", "-c", script, json.dumps(processes.import_path()), str(stored(FILES[name])), name]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    heavy = {"django", "celery", "numpy", "langchain_core", "retrieval", "rapidocr"}
    parsers = {"markdown_it", "trafilatura", "pypdfium2", "docx", "pptx", "openpyxl"}
    assert loaded & (heavy | parsers) - ({"numpy"} if parser == "openpyxl" else set()) == ({parser} - {""})
