import pytest
from django.core.files.base import ContentFile
from django.utils import translation

from kb.base.errors import Rejected
from kb.ingest.services.chunk_preview import MOST_SHOWN, preview_document, preview_text
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document, KnowledgeBase
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db

PARAGRAPHS = [f"第{number}段说的是另外一件事情，与别的都不同。" for number in range(6)]
TEXT = "\n\n".join(PARAGRAPHS)


@pytest.fixture(autouse=True)
def _english():
    with translation.override("en"):
        yield


@pytest.fixture
def kb():
    kb = make_kb()
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_size=30, chunk_overlap=0)
    kb.refresh_from_db()
    return kb


@pytest.fixture
def document(kb):
    added = document_add(knowledge_base=kb, file=ContentFile(TEXT.encode()), name="a.txt", user=kb.owner)
    index_document(added.pk)
    added.refresh_from_db()
    return added


def texts(preview):
    return [chunk.text for chunk in preview.chunks]


def test_the_settings_in_use_make_the_chunks_that_are_there(kb, document):
    preview = preview_document(kb, document, {})
    assert texts(preview) == list(document.chunks.values_list("text", flat=True)) == PARAGRAPHS
    assert (preview.total, preview.present, preview.survival.kept) == (6, 6, 6)
    assert all(chunk.survives for chunk in preview.chunks)


def test_other_settings_are_tried_and_nothing_is_written(kb, document):
    before = list(Chunk.objects.order_by("pk").values())
    row = Document.objects.values().get(pk=document.pk)
    preview = preview_document(kb, document, {"chunk_size": 60})
    assert preview.total == 3
    assert (preview.survival.kept, preview.survival.new, preview.survival.gone) == (0, 3, 6)
    assert list(Chunk.objects.order_by("pk").values()) == before
    assert Document.objects.values().get(pk=document.pk) == row
    assert KnowledgeBase.objects.get(pk=kb.pk).chunk_size == 30


def test_edits_that_would_be_lost_are_told(kb, document):
    Chunk.objects.filter(document=document, position=0).update(text="改。", cut_text=PARAGRAPHS[0])
    Chunk.objects.filter(document=document, position=3).update(enabled=False)
    survival = preview_document(kb, document, {"chunk_size": 60}).survival
    assert (survival.edits, survival.edits_kept, survival.disabled, survival.disabled_kept) == (1, 1, 1, 0)


def test_what_chunks_repeat_is_marked(kb):
    preview = preview_text(
        kb, "甲甲甲甲甲甲甲甲。乙乙乙乙乙乙乙乙。丙丙丙丙丙丙丙丙。", {"chunk_size": 20, "chunk_overlap": 10}
    )
    assert [(chunk.repeated, chunk.rest) for chunk in preview.chunks] == [
        ("", "甲甲甲甲甲甲甲甲。乙乙乙乙乙乙乙乙。"),
        ("乙乙乙乙乙乙乙乙。", "丙丙丙丙丙丙丙丙。"),
    ]


def test_longer_passages_are_numbered(kb):
    preview = preview_text(kb, TEXT, {"chunk_strategy": "parent_child", "parent_size": 100})
    assert [chunk.parent for chunk in preview.chunks] == [1, 1, 1, 1, 2, 2]
    assert preview.parents == 2


def test_questions_are_shown(kb):
    [chunk] = preview_text(kb, "问：多久？\n答：七天。", {"chunk_strategy": "questions"}).chunks
    assert chunk.questions == ("多久？",)


def test_only_the_first_chunks_are_shown(kb):
    preview = preview_text(
        kb, "\n\n".join(f"第{number}段文字在这里说了一句话。" for number in range(300)), {"chunk_size": 20}
    )
    assert len(preview.chunks) == MOST_SHOWN
    assert preview.unshown == preview.total - MOST_SHOWN > 0


def test_of_a_long_document_only_the_beginning_is_cut(kb, document, monkeypatch):
    monkeypatch.setattr("kb.ingest.services.chunk_preview.MOST_CHARACTERS", 50)
    preview = preview_document(kb, document, {})
    assert (preview.is_partial, preview.survival, preview.present) == (True, None, 6)
    assert "".join(texts(preview)).replace("\n", "") in TEXT.replace("\n", "")


@pytest.mark.parametrize(
    ("chunking", "code"),
    [
        ({"chunk_size": 50, "chunk_overlap": 50}, "invalid_chunking"),
        ({"chunk_strategy": "parent_child", "chunk_size": 300, "parent_size": 200}, "invalid_parent_size"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(kb, chunking, code):
    with pytest.raises(Rejected) as caught:
        preview_text(kb, TEXT, chunking)
    assert caught.value.code == code


def test_a_blank_text_is_refused(kb):
    with pytest.raises(Rejected) as caught:
        preview_text(kb, " \n", {})
    assert caught.value.code == "blank_text"


def test_a_document_without_a_file_is_refused(kb):
    with pytest.raises(Rejected, match="paste its text") as caught:
        preview_document(kb, make_document(kb, "内容"), {})
    assert caught.value.code == "no_file"


def test_a_document_that_cannot_be_read_is_refused_with_the_parsers_sentence(kb):
    bad = document_add(knowledge_base=kb, file=ContentFile(b"%PDF-1.7 broken"), name="a.pdf", user=kb.owner)
    with pytest.raises(Rejected, match="damaged"):
        preview_document(kb, bad, {})


def test_a_model_out_of_reach_is_refused_where_its_tokens_are_counted(kb):
    kb.embedding_model = "BAAI/not-here"
    with pytest.raises(Rejected) as caught:
        preview_text(kb, TEXT, {"chunk_strategy": "tokens"})
    assert caught.value.code == "model_unavailable"
