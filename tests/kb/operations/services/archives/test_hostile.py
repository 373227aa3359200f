"""Archives that were made to harm, or were harmed on the way: refused with a sentence, and nothing is left."""

import hashlib
import json
import struct
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from django.core.files.base import ContentFile

from kb.base.errors import Rejected
from kb.content.folders.services import MOST_DEPTH
from kb.models import Chunk, Document, KnowledgeBase, RetrievalProfile
from kb.operations.services.archives import restore
from kb.operations.services.archives.format import Limits
from kb.operations.services.archives.restore import restore_kb
from tests.factories import make_document, make_kb
from tests.kb.operations.services.archives.bases import lines_of, part_of, rewritten

pytestmark = pytest.mark.django_db

MIB = 1024**2


@pytest.fixture
def small():
    """A knowledge base of two documents, one with a file."""
    kb = make_kb(name="small")
    document = make_document(kb, "智能温控器的保修期是两年", "购买后三十天内可以退货", title="手册")
    document.file.save("a.txt", ContentFile(b"text"))
    make_document(kb, "安装前请先关闭电源", source="other.txt")
    return kb


@pytest.fixture
def refusal(small, settings):
    """Imports a file and returns the code of what it is refused with, having made sure that nothing was left."""

    def refuse(path):
        before = state()
        with pytest.raises(Rejected) as refused:
            restore_kb(path, owner=small.owner, name="copy")
        assert state() == before
        assert str(refused.value).strip()
        return refused.value.code

    def state():
        files = sorted(str(each) for each in Path(settings.MEDIA_ROOT).rglob("*") if each.is_file())
        counts = [model.objects.count() for model in (KnowledgeBase, Document, Chunk, RetrievalProfile)]
        folders = sorted(each.name for each in (Path(settings.MEDIA_ROOT) / "documents").iterdir())
        return files, counts, folders

    return refuse


def signed(entries, **parts):
    """Replaces parts, and has the manifest say that they are right."""
    manifest = json.loads(entries["manifest.json"])
    for name, data in parts.items():
        part = name if "." in name else f"{name}.jsonl"
        entries[part] = data
        stated = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "rows": data.count(b"\n")}
        manifest["parts"][part] = stated
    entries["manifest.json"] = json.dumps(manifest).encode()


def with_rows(name, change):
    """Changes the rows of a table and signs them."""

    def apply(entries):
        rows = lines_of(entries[f"{name}.jsonl"])
        changed = change(rows)
        signed(entries, **{name: part_of(changed if isinstance(changed, list) else rows)})

    return apply


def with_manifest(change):
    def apply(entries):
        manifest = json.loads(entries["manifest.json"])
        change(manifest)
        entries["manifest.json"] = json.dumps(manifest).encode()

    return apply


def test_an_archive_of_a_version_without_a_setting_gets_its_default(archive, small):
    path = rewritten(archive(small), with_manifest(lambda manifest: manifest["knowledge_base"].pop("word_parts")))
    assert restore_kb(path, owner=small.owner, name="copy").knowledge_base.word_parts == ["notes"]


def test_a_choice_that_there_is_not_is_refused(refusal, archive, small):
    change = with_manifest(lambda manifest: manifest["knowledge_base"].update(word_parts=["pictures"]))
    assert refusal(rewritten(archive(small), change)) == "bad_archive"


def test_what_is_no_zip_is_refused(refusal, tmp_path):
    path = tmp_path / "kb.zip"
    path.write_bytes(b"PK\x03\x04 and then nothing")
    assert refusal(path) == "not_a_zip"


def test_any_other_zip_is_refused(refusal, tmp_path):
    path = tmp_path / "kb.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert refusal(path) == "foreign_entry"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("chunks.jsonl", "")
    assert refusal(path) == "not_an_archive"


@pytest.mark.parametrize("share", [0.2, 0.6, 0.98])
def test_a_truncated_archive_is_refused(small, archive, refusal, share):
    path = archive(small)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert refusal(path) == "not_a_zip"


def test_bytes_that_were_changed_are_refused(small, archive, refusal):
    path = archive(small)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as source:
        start = source.getinfo("chunks.jsonl").header_offset
    data[start + 80] ^= 0xFF
    path.write_bytes(data)
    assert refusal(path) == "bad_archive"


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "files/../../x",
        "files/1.tar.gz/x",
        "C:\\x",
        "files/1\u0661",
        "x/manifest.json",
    ],
)
def test_names_that_lead_elsewhere_are_refused(small, archive, refusal, name):
    path = rewritten(archive(small), lambda entries: entries.update({name: b"x"}))
    assert refusal(path) == "foreign_entry"


def test_a_bomb_is_refused_by_what_its_list_says(small, archive, refusal):
    path = rewritten(archive(small), lambda entries: entries.update({"files/7.txt": bytes(80 * MIB)}))
    assert refusal(path) == "bad_archive"


def test_a_bomb_that_lies_of_its_size_is_cut_off(small, archive, refusal):
    zeros = bytes(30 * MIB)
    path = rewritten(archive(small), lambda entries: entries.update({"concepts.jsonl": zeros}))
    data = path.read_bytes().replace(struct.pack("<I", len(zeros)), struct.pack("<I", 100))
    path.write_bytes(data)
    assert refusal(path) == "bad_archive"


def test_more_than_the_installation_allows_is_refused(small, archive, refusal, monkeypatch):
    path = archive(small)
    monkeypatch.setattr(restore, "limits", lambda: Limits(archive_bytes=100, total_bytes=10 * MIB))
    assert refusal(path) == "too_large"
    monkeypatch.setattr(restore, "limits", lambda: Limits(archive_bytes=10 * MIB, total_bytes=100))
    assert refusal(path) == "too_large"
    monkeypatch.setattr(restore, "limits", lambda: Limits(10 * MIB, 10 * MIB, directory_bytes=500))
    assert refusal(path) == "not_a_zip"
    monkeypatch.setattr(restore, "limits", lambda: Limits(10 * MIB, 10 * MIB, line_bytes=100))
    assert refusal(path) == "bad_archive"


def test_an_entry_twice_is_refused(small, archive, refusal):
    path = archive(small)
    with zipfile.ZipFile(path, "a") as target, pytest.warns(UserWarning, match="Duplicate"):
        target.writestr("chunks.jsonl", "")
    assert refusal(path) == "bad_archive"


@pytest.mark.parametrize("found", [2, "1", None, [1]])
def test_another_version_is_refused(small, archive, refusal, found):
    path = rewritten(archive(small), with_manifest(lambda manifest: manifest.update(version=found)))
    assert refusal(path) == "foreign_version"


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["parts"].pop("chunks.jsonl"),
        lambda manifest: manifest["parts"]["chunks.jsonl"].update(sha256="0" * 64),
        lambda manifest: manifest["parts"]["chunks.jsonl"].update(rows=2**40),
        lambda manifest: manifest["parts"]["chunks.jsonl"].update(rows=1),
        lambda manifest: manifest["parts"].update({"../x": {"bytes": 0, "rows": 0, "sha256": "0" * 64}}),
        lambda manifest: manifest.pop("tokenizer"),
        lambda manifest: manifest["tokenizer"].update(engine="os.system"),
        lambda manifest: manifest["knowledge_base"].update(chunk_size=10**9),
        lambda manifest: manifest["knowledge_base"].update(chunk_size=True),
        lambda manifest: manifest["knowledge_base"].update(owner=1),
        lambda manifest: manifest["knowledge_base"].update(name="n\u0000"),
        lambda manifest: manifest["embedding"].update(model=["hashing"]),
        lambda manifest: manifest["profile"].update(settings={"rrf_k": "many"}),
        lambda manifest: manifest["profile"].update(is_own=True),
        lambda manifest: manifest.update(parts=[]),
    ],
)
def test_a_wrong_manifest_is_refused(small, archive, refusal, change):
    path = rewritten(archive(small), with_manifest(change))
    assert refusal(path) in ("bad_archive", "not_an_archive")


def test_a_model_of_a_path_is_refused(small, archive, refusal):
    path = rewritten(archive(small), with_manifest(lambda manifest: manifest["embedding"].update(model="/etc/passwd")))
    assert refusal(path) == "unknown_model"


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("chunks", lambda rows: rows[0].update(text=7)),
        ("chunks", lambda rows: rows[0].update(text="  ")),
        ("chunks", lambda rows: rows[0].update(text="\ud800")),
        ("chunks", lambda rows: rows[0].update(document=99)),
        ("chunks", lambda rows: rows[0].update(document=-1)),
        ("chunks", lambda rows: rows[0].update(document=None)),
        ("chunks", lambda rows: rows[0].update(document=True)),
        ("chunks", lambda rows: rows[0].update(position=-1)),
        ("chunks", lambda rows: rows[0].update(position=2**40)),
        ("chunks", lambda rows: rows[0].update(position=10**400)),
        ("chunks", lambda rows: rows[0].update(page=1.5)),
        ("chunks", lambda rows: rows[0].update(keywords=["x" * 301])),
        ("chunks", lambda rows: rows[0].update(questions=[["nested"]])),
        ("chunks", lambda rows: rows[0].update(knowledge_base=1)),
        ("chunks", lambda rows: rows[0].pop("enabled")),
        ("chunks", lambda rows: rows[0].update(parent_spans=[])),
        ("chunks", lambda rows: rows[0].update(parent_spans=[0, 0, 4])),
        ("chunks", lambda rows: rows[0].update(parent_spans=[-1, 0])),
        ("chunks", lambda rows: rows[0].update(parent_spans=[0, None])),
        ("chunks", lambda rows: rows[0].update(parent_spans=[0, True])),
        ("chunks", lambda rows: rows[0].update(parent_spans=[0, 2**40])),
        ("chunks", lambda rows: rows[0].update(parent_spans=[0, 0, 9, 4])),
        ("chunks", lambda rows: rows[0].update(parent_spans=[0, 0] * 10_000)),
        ("chunks", lambda rows: [rows[0], rows[0], rows[2]]),
        ("documents", lambda rows: rows[0].update(title="x" * 501)),
        ("documents", lambda rows: rows[0].update(status="done")),
        ("documents", lambda rows: rows[0].update(metadata=["list"])),
        ("documents", lambda rows: rows[0].update(metadata={"deep": json.loads("[" * 15 + "]" * 15)})),
        ("documents", lambda rows: rows[0].update(created_at="yesterday")),
        ("documents", lambda rows: rows[0].update(created_at="2024-01-01T00:00:00")),
        ("documents", lambda rows: rows[0].update(created_at="0001-01-01T00:00:00+21:54")),
        ("documents", lambda rows: rows[0].update(remarks=[{"code": "hidden_left_out", "params": {}}])),
        ("documents", lambda rows: rows[0].update(remarks=[{"code": "no_such", "params": {}}])),
        ("documents", lambda rows: rows[1].update(sha256=rows[0]["sha256"])),
    ],
)
def test_a_wrong_row_is_refused_although_its_part_is_signed(small, archive, refusal, table, change):
    assert refusal(rewritten(archive(small), with_rows(table, change))) == "bad_archive"


def added(table, *rows):
    return lambda entries: signed(entries, **{table: part_of(rows)})


def concept(name, parent):
    return {"name": name, "description": "", "parent": parent}


@pytest.mark.parametrize(
    "concepts",
    [
        [concept("a", 0)],
        [concept("a", 1), concept("b", 2), concept("c", 0)],
        [concept("a", None), concept("b", 2), concept("c", 1)],
        [concept("a", 7)],
        [concept("a", None), concept("a", None)],
    ],
)
def test_concepts_that_go_in_circles_are_refused(small, archive, refusal, concepts):
    assert refusal(rewritten(archive(small), added("concepts", *concepts))) == "bad_archive"


@pytest.mark.parametrize("weight", ["1", True, [], -1, 1e9, float("inf"), float("nan")])
def test_a_weight_that_no_external_source_can_have_is_refused(small, archive, refusal, weight):
    given = {"name": "vertex", "kind": "vertex_ai_search", "settings": {}, "enabled": True, "timeout_ms": 2000}
    assert refusal(rewritten(archive(small), added("search_providers", given | {"weight": weight}))) == "bad_archive"


@pytest.mark.parametrize(
    "regions",
    [
        {},
        [1],
        [{"page": 1}],
        [{"page": 0, "box": None}],
        [{"page": 2**31, "box": None}],
        [{"page": 1, "box": [0, 0, 1]}],
        [{"page": 1, "box": [0.5, 0, 0.4, 1]}],
        [{"page": 1, "box": [0, 0, 1, 1.5]}],
        [{"page": 1, "box": [0, 0, 1, float("nan")]}],
        [{"page": 1, "box": None, "more": "<script>"}],
        [{"page": 1, "box": None}] * 101,
    ],
)
def test_a_place_that_no_page_has_is_refused(small, archive, refusal, regions):
    def change(rows):
        return [row | {"regions": regions} for row in rows]

    assert refusal(rewritten(archive(small), with_rows("chunks", change))) == "bad_archive"


def test_a_passage_of_another_document_is_refused(small, archive, refusal):
    def change(entries):
        parent = {"position": 0, "text": "long", "page": None, "heading_path": [], "document": 1}
        chunks = lines_of(entries["chunks.jsonl"])
        chunks[0]["parent"] = 0
        signed(entries, parents=part_of([parent]), chunks=part_of(chunks))

    assert refusal(rewritten(archive(small), change)) == "bad_archive"


@pytest.mark.parametrize(
    "profile",
    [
        {"name": "a/b", "settings": {}},
        {"name": "a", "settings": {"no_such_setting": 1}},
        {"name": "a", "settings": {"rrf_k": -1}},
        {"name": "a", "settings": [1]},
    ],
)
def test_a_profile_that_none_can_have_is_refused(small, archive, refusal, profile):
    row = {"version": 1, "description": "", "published": True, "published_at": None, **profile}
    assert refusal(rewritten(archive(small), added("profiles", row))) == "bad_archive"


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[0].update(suffix="../x"),
        lambda rows: rows[0].update(suffix="pdf"),
        lambda rows: rows[0].update(document=9),
        lambda rows: rows[0].update(sha256="0" * 64),
        lambda rows: rows[0].update(size=3),
        lambda rows: [rows[0], rows[0]],
    ],
)
def test_a_wrong_list_of_files_is_refused(small, archive, refusal, change):
    def apply(entries):
        rows = lines_of(entries["files.jsonl"])
        signed(entries, **{"files.jsonl": part_of(change(rows) or rows)})

    assert refusal(rewritten(archive(small), apply)) == "bad_archive"


def array(values):
    stream = BytesIO()
    np.save(stream, values, allow_pickle=True)
    return stream.getvalue()


def rows(*chunks):
    return np.array([[chunk, 0] for chunk in chunks], dtype="<i8")


def of_ones(dimension, count=3):
    return np.ones((count, dimension), dtype="<f2")


@pytest.mark.parametrize(
    ("vectors", "lines"),
    [
        (lambda d: array(np.array([[object()] * 3] * 3, dtype=object)), array(rows(0, 1, 2))),
        (lambda d: array(of_ones(d).astype("<f4")), array(rows(0, 1, 2))),
        (lambda d: array(of_ones(d - 1)), array(rows(0, 1, 2))),
        (lambda d: array(of_ones(d) * np.nan), array(rows(0, 1, 2))),
        (lambda d: array(of_ones(d))[:-2], array(rows(0, 1, 2))),
        (lambda d: array(of_ones(d)) + b"x", array(rows(0, 1, 2))),
        (lambda d: array(of_ones(d)), array(rows(0, 2, 1))),
        (lambda d: array(of_ones(d)), array(rows(0, 1, 3))),
        (lambda d: array(of_ones(d)), array(rows(0, 1, 1))),
        (lambda d: b"\x93NUMPY\x01\x00\x20\x00" + b"(" * 32, array(rows(0, 1, 2))),
        (lambda d: b"", array(rows(0, 1, 2))),
    ],
)
def test_wrong_vectors_are_refused_and_nothing_is_unpickled(small, archive, refusal, vectors, lines):
    def apply(entries):
        manifest = json.loads(entries["manifest.json"])
        data = vectors(manifest["embedding"]["dimension"])
        for name, part in (("vectors/content.npy", data), ("vectors/content.rows.npy", lines)):
            entries[name] = part
            digest = hashlib.sha256(part).hexdigest()
            manifest["parts"][name] = {"bytes": len(part), "rows": 3, "sha256": digest}
        entries["manifest.json"] = json.dumps(manifest).encode()

    assert refusal(rewritten(archive(small, vectors=True), apply)) == "bad_archive"


def test_json_that_exhausts_the_stack_is_refused(small, archive, refusal):
    deep = b'{"name": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    assert refusal(rewritten(archive(small), lambda entries: signed(entries, eval_sets=deep))) == "bad_archive"


SOURCE = {
    "name": "site",
    "kind": "page",
    "url": "https://example.org/",
    "enabled": True,
    "live": False,
    "every_minutes": None,
    "max_pages": 1,
    "max_depth": 0,
    "include": [],
    "exclude": [],
    "tags": [],
}
PAGE = {
    "url": "https://example.org/",
    "title": "Hello",
    "state": "kept",
    "etag": "",
    "last_modified": "",
    "content_hash": "",
    "version": "",
    "fetched_at": None,
    "gone_at": None,
    "source": 0,
    "document": None,
}


@pytest.mark.parametrize(
    ("source", "page"),
    [
        ({}, {"url": "javascript:alert(document.domain)"}),
        ({"url": "file:///etc/passwd"}, {}),
        ({"include": [f"/{number}/" for number in range(51)]}, {}),
        ({"exclude": ["("]}, {}),
    ],
    ids=["a script for a link", "a file for a source", "too many expressions", "no expression"],
)
def test_sources_of_strangers_are_held_to_what_a_form_allows(small, archive, refusal, source, page):
    def add(entries):
        signed(entries, web_sources=part_of([SOURCE | source]), web_pages=part_of([PAGE | page]))

    assert refusal(rewritten(archive(small), add)) == "bad_archive"


def test_a_proper_source_is_taken_and_switched_off(small, archive):
    path = rewritten(
        archive(small), lambda entries: signed(entries, web_sources=part_of([SOURCE]), web_pages=part_of([PAGE]))
    )
    made = restore_kb(path, owner=small.owner, name="copy").knowledge_base
    assert list(made.sources.values_list("enabled", "items__url")) == [(False, PAGE["url"])]


@pytest.mark.parametrize(
    "folders",
    [
        [("a", 1), ("b", 0)],
        [("a", None), ("a", None)],
        [(str(level), level - 1 if level else None) for level in range(MOST_DEPTH + 1)],
    ],
    ids=["in themselves", "one name twice", "too deep"],
)
def test_folders_that_no_page_could_list_are_refused(refusal, archive, small, folders):
    rows = [{"name": name, "parent": around} for name, around in folders]
    assert refusal(rewritten(archive(small), with_rows("folders", lambda _rows: rows))) == "bad_archive"
    deepest = [{"name": str(level), "parent": level - 1 if level else None} for level in range(MOST_DEPTH)]
    path = rewritten(archive(small), with_rows("folders", lambda _rows: deepest))
    assert restore_kb(path, owner=small.owner, name="deep").knowledge_base.folders.count() == MOST_DEPTH
