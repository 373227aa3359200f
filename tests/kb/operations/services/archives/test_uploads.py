"""Archives that come over the network cost seconds, whatever they unpack to."""

import json

import pytest
from django.core.files import File

from kb.base.errors import Rejected
from kb.models import KnowledgeBase
from kb.operations.services.archives import format as reading, vectors
from kb.operations.services.archives.restore import import_upload, restore_kb
from tests.factories import make_document, make_kb, principal
from tests.kb.operations.services.archives.bases import part_of, rewritten
from tests.kb.operations.services.archives.test_hostile import signed, with_rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def small():
    kb = make_kb(name="small")
    make_document(kb, "智能温控器的保修期是两年", "购买后三十天内可以退货", title="手册")
    return kb


@pytest.fixture
def refusal(small, monkeypatch):
    """Uploads an archive, and returns the code of what it is refused with before anything was tokenised."""
    tokenized = []
    monkeypatch.setattr(vectors, "tokenize", lambda texts, _: tokenized.append(texts))

    def refuse(path):
        with path.open("rb") as file, pytest.raises(Rejected) as refused:
            import_upload(principal(small.owner), small.owner, File(file), "copy")
        assert tokenized == []
        assert KnowledgeBase.objects.count() == 1
        return refused.value

    return refuse


def with_texts(*texts, **fields):
    """As many chunks of these texts, in place of those that are there."""

    def change(rows):
        first = rows[0] | fields
        return [first | {"text": text, "position": place} for place, text in enumerate(texts)]

    return with_rows("chunks", change)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            with_texts("知识 " + "a " * 7_000_000, "a " * 7_000_000), id="two chunks of 14 million characters"
        ),
        pytest.param(with_texts("a" * 4_000_000), id="a chunk of 4 MB"),
        pytest.param(with_texts(*["a " * 49_000] * 50), id="chunks of more characters than are tokenised"),
        pytest.param(with_texts(*["a"] * 14, heading_path=["b" * 300] * 1_000), id="headings that each chunk has"),
        pytest.param(with_texts("a", questions=[f"q{n}" for n in range(2_500)]), id="questions to embed"),
        pytest.param(
            with_rows(
                "parents",
                lambda _: [{"document": 0, "position": 0, "text": "a" * 200_000, "page": None, "heading_path": []}],
            ),
            id="a long parent",
        ),
        pytest.param(with_rows("entities", lambda _: [{"padding": "a" * 15_000_000}] * 2), id="lines of any table"),
    ],
)
def test_little_that_unpacks_to_much_is_refused(small, archive, refusal, change):
    path = rewritten(archive(small), change)
    assert path.stat().st_size < 500_000
    error = refusal(path)
    assert error.code == "too_large"
    assert "import_kb" in str(error)


def test_files_that_unpack_to_more_than_an_upload_may_are_refused(small, archive, refusal, settings):
    settings.MAX_ZIP_BYTES = 1024**2
    path = rewritten(archive(small), lambda entries: entries.update({"files/0.txt": bytes(2 * 1024**2)}))
    assert refusal(path).code == "too_large"


def test_more_rows_than_stated_are_not_read(small, archive, refusal, monkeypatch):
    read = []
    parsed = reading._parsed
    monkeypatch.setattr(reading, "_parsed", lambda data: read.append(1) or parsed(data))

    def change(entries):
        signed(entries, concepts=part_of([{"name": f"c{n}", "description": "", "parent": None} for n in range(5_000)]))
        manifest = json.loads(entries["manifest.json"])
        manifest["parts"]["concepts.jsonl"]["rows"] = 3
        entries["manifest.json"] = json.dumps(manifest).encode()

    assert refusal(rewritten(archive(small), change)).code == "bad_archive"
    assert len(read) < 50


def test_what_an_upload_may_not_hold_the_command_imports(small, archive):
    path = rewritten(archive(small), with_texts("智能温控器 " * 20_000))
    restored = restore_kb(path, owner=small.owner, name="copy")
    assert len(restored.knowledge_base.chunks.get().text) == 120_000


def test_an_archive_of_the_usual_size_is_taken(small, archive):
    with archive(small).open("rb") as file:
        done = import_upload(principal(small.owner), small.owner, File(file), "copy")
    assert done.rows["chunks"] == 2
