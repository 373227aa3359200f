"""ZIP files of evaluation sets: what comes from outside is bounded."""

import io
import zipfile

import pytest
from django.core.files.base import ContentFile
from django.utils.translation import override

from kb.base.errors import Rejected
from kb.models import EvalSet
from kb.quality.eval_sets.services import files as eval_set_archives
from kb.quality.eval_sets.services.files import (
    eval_set_import_archive,
    eval_set_response,
    format_problem_text,
    judged_set,
    unpack,
)
from kb.quality.eval_sets.services.sets import eval_set_named, judge, queries_add
from retrieval.eval.judged_sets import Layout
from retrieval.eval.qrels import MESSAGES, SetFormatError
from tests.factories import make_document, make_kb, principal

QUERIES, QRELS = '{"_id": "q1", "text": "x"}\n', "q1\td1\t1\n"


def zipped(files, **options):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", **options) as target:
        for name, text in files.items():
            target.writestr(name, text)
    archive.seek(0)
    return archive


def rejected(code):
    return pytest.raises(Rejected, check=lambda error: error.code == code)


def names(directory):
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("folder", ["", "scifact/", "a/b/"])
def test_the_files_of_a_set_are_taken_out_wherever_they_lie(tmp_path, folder):
    files = {
        "queries.jsonl": QUERIES,
        "qrels/test.tsv": QRELS,
        "corpus.jsonl": "large",
        "README.md": "read",
        ".x/y": "",
    }
    unpack(zipped({f"{folder}{name}": text for name, text in files.items()}), tmp_path)
    assert names(tmp_path) == ["qrels/test.tsv", "queries.jsonl"]
    assert (tmp_path / "queries.jsonl").read_text() == QUERIES


def test_the_files_of_trec_are_taken_out(tmp_path):
    unpack(
        zipped({"topics.301-350.txt": "", "qrels.trec": "", "unanswerable.txt": "", "__MACOSX/topics.x": ""}), tmp_path
    )
    assert names(tmp_path) == ["qrels.trec", "topics.301-350.txt", "unanswerable.txt"]


@pytest.mark.parametrize(
    "name", ["../queries.jsonl", "/etc/queries.jsonl", "a/../../queries.jsonl", "..\\queries.jsonl"]
)
def test_paths_that_lead_outside_are_refused(tmp_path, name):
    directory = tmp_path / "inside"
    directory.mkdir()
    with rejected("outside"):
        unpack(zipped({name: QUERIES}), directory)
    assert names(tmp_path) == []


def test_too_many_entries_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(eval_set_archives, "MAX_ENTRIES", 2)
    with rejected("too_many_entries"):
        unpack(zipped({"queries.jsonl": "", "a": "", "b": ""}), tmp_path)


def test_what_unpacks_to_too_much_is_refused_whatever_the_archive_says_of_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(eval_set_archives, "MAX_BYTES", 10_000)
    bomb = zipped({"queries.jsonl": "x" * 1_000_000}, compression=zipfile.ZIP_DEFLATED)
    with rejected("too_large"):
        unpack(bomb, tmp_path)


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\x03\x04 cut off"])
def test_what_is_no_archive_is_refused(tmp_path, data):
    with rejected("not_a_zip"):
        unpack(io.BytesIO(data), tmp_path)


def test_a_damaged_archive_is_refused(tmp_path):
    data = zipped({"queries.jsonl": QUERIES}).getvalue()
    with rejected("not_a_zip"):
        unpack(io.BytesIO(data.replace(QUERIES.encode(), QUERIES.encode().upper())), tmp_path)


def test_an_encrypted_archive_is_refused(tmp_path):
    data = bytearray(zipped({"queries.jsonl": QUERIES}).getvalue())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with rejected("encrypted"):
        unpack(io.BytesIO(bytes(data)), tmp_path)


@pytest.mark.django_db
class TestUpload:
    def upload(self, kb, files, name="规章.zip", **options):
        file = ContentFile(zipped(files).getvalue(), name=name)
        return eval_set_import_archive(principal(kb.owner), kb, file, **options)

    def test_a_set_without_a_name_has_that_of_the_file(self):
        done = self.upload(make_kb(), {"queries.jsonl": QUERIES, "qrels/test.tsv": QRELS})
        assert (done.eval_set.name, done.queries, done.judgments, done.missing) == ("规章", 1, 1, 1)

    def test_a_bad_line_is_named_without_the_server_s_folders(self):
        with rejected("bad_set_file") as caught:
            self.upload(make_kb(), {"queries.jsonl": QUERIES + "{", "qrels/test.tsv": QRELS})
        assert str(caught.value).startswith("queries.jsonl:2")
        assert not EvalSet.objects.exists()

    def test_a_large_file_is_refused_unread(self, settings):
        settings.MAX_UPLOAD_BYTES = 10
        with rejected("too_large"):
            self.upload(make_kb(), {"queries.jsonl": QUERIES})

    @pytest.mark.parametrize("layout", Layout)
    def test_a_download_is_taken_in_again(self, layout):
        kb = make_kb()
        me = principal(kb.owner)
        eval_set = eval_set_named(me, kb, "a/b: 规章")
        judge(me, eval_set, "年假", make_document(kb, "五天带薪年假").chunks.select_related("document").get(), 2)
        queries_add(me, eval_set, ["病假"])
        before = judged_set(eval_set)
        response = eval_set_response(me, eval_set, layout)
        with response.file_to_stream as archive:
            file = ContentFile(archive.read(), name=response.filename)
        assert "corpus.jsonl" in zipfile.ZipFile(file).namelist()
        file.seek(0)
        done = eval_set_import_archive(me, kb, file, replace=True)
        assert judged_set(done.eval_set) == before

    def test_a_file_name_holds_no_separators(self):
        kb = make_kb()
        eval_set = eval_set_named(principal(kb.owner), kb, 'a/b: "规章"')
        response = eval_set_response(principal(kb.owner), eval_set, Layout.TREC)
        response.file_to_stream.close()
        assert response.filename == "a-b- -规章-.trec.zip"


@pytest.mark.parametrize("language", ["en", "zh-hans"])
@pytest.mark.parametrize("problem", MESSAGES)
def test_every_problem_is_said_to_people_with_its_place(problem, language):
    fields = (
        "layout",
        "splits",
        "names",
        "reason",
        "field",
        "id",
        "length",
        "count",
        "queries",
        "grade",
        "most",
        "query",
    )
    error = SetFormatError(problem, "/tmp/root/queries.jsonl:3", **dict.fromkeys(fields, "7"))
    with override(language):
        words = format_problem_text(error, "/tmp/root")
    assert "/tmp/root" not in words
    assert "%(" not in words


@pytest.mark.django_db
@pytest.mark.parametrize(
    "files",
    [
        {"queries.jsonl": r'{"_id": "\ud800", "text": "x"}' * 2, "qrels/test.tsv": ""},
        {"queries.jsonl": rf'{QUERIES}{{"_id": "\ud800", "text": "x"}}\n' * 2, "qrels/test.tsv": ""},
        {"queries.jsonl": QUERIES, "qrels/test.tsv": QRELS, "meta.json": "[" * 100_000},
    ],
)
def test_what_is_wrong_can_be_written_down_whatever_the_files_hold(files):
    kb = make_kb()
    with rejected("bad_set_file") as refused:
        eval_set_import_archive(principal(kb.owner), kb, ContentFile(zipped(files).getvalue(), "set.zip"))
    assert str(refused.value).encode()
