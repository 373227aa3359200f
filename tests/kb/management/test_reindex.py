from io import StringIO

import pytest
from django.core.files.base import ContentFile
from django.core.management import CommandError, call_command

from kb.index.services.tokenizing import read_settings, tokenizer_change
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, KnowledgeBase, Reembedding
from tests.factories import make_document, make_kb
from tests.kb.providers.letters_model import letters_models

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    kb = make_kb(name="faq")
    make_document(kb, "智能温控器的保修期是两年", "安装前请先关闭电源")
    return kb


def reindex(*arguments):
    output = StringIO()
    call_command("reindex", "--kb", "faq", "--bm25", *arguments, stdout=output)
    return output.getvalue()


def test_makes_postings_again_in_place(kb):
    ChunkPostings.objects.filter(knowledge_base=kb).update(length=999)
    assert "postings are current" in reindex()
    lengths = ChunkPostings.objects.filter(knowledge_base=kb).values_list("length", flat=True)
    assert len(lengths) == 2
    assert 999 not in lengths


def test_goes_on_to_the_target_where_there_is_one(kb):
    settings = read_settings(engine="jieba", dictionary="智能温控器", stop_words="", simplify=False)
    tokenizer_change(kb, settings)
    reindex()
    kb = KnowledgeBase.objects.get(pk=kb.pk)
    assert (kb.tokenizer_id, kb.target_tokenizer_id) == (settings.tokenizer_id, "")


def test_makes_the_lexemes_of_chunks_from_before_full_text(kb):
    ChunkPostings.objects.filter(knowledge_base=kb).update(lexemes=[])

    reindex("--resume")

    assert all("~两年" in row.lexemes or "~电源" in row.lexemes for row in ChunkPostings.objects.all())


def test_resuming_keeps_the_keywords_and_fills_in_those_that_are_missing(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(keyword_vectors=True)
    before = set(ChunkEmbedding.objects.values_list("pk", flat=True))

    call_command("reindex", "--kb", "faq", "--embeddings", "--resume", stdout=StringIO())

    keywords = ChunkEmbedding.objects.filter(kind=ChunkEmbedding.Kind.KEYWORDS)
    assert keywords.count() == 2
    assert before < set(ChunkEmbedding.objects.values_list("pk", flat=True))
    assert all(chunk.keywords for chunk in Chunk.objects.all())


def test_keyword_vectors_go_when_the_knowledge_base_keeps_none_any_longer(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(keyword_vectors=True)
    call_command("reindex", "--kb", "faq", "--embeddings", stdout=StringIO())
    KnowledgeBase.objects.filter(pk=kb.pk).update(keyword_vectors=False)

    call_command("reindex", "--kb", "faq", "--embeddings", stdout=StringIO())

    assert set(ChunkEmbedding.objects.values_list("kind", flat=True)) == {"content"}
    assert all(chunk.keywords == [] for chunk in Chunk.objects.all())


def test_documents_are_queued_to_be_cut_again(kb):
    added = document_add(knowledge_base=kb, file=ContentFile("新的内容".encode()), name="a.txt", user=kb.owner)
    index_document(added.pk)
    output = StringIO()
    call_command("reindex", "--kb", "faq", "--chunks", stdout=output)
    assert "faq: 1 documents wait" in output.getvalue()
    added.refresh_from_db()
    assert (added.status, added.keep_chunks) == ("pending", False)


@pytest.mark.parametrize("arguments", [["--chunks"], ["--chunks", "--kb", "faq", "--bm25"]])
def test_cutting_again_is_for_one_knowledge_base_and_nothing_else(kb, arguments):
    with pytest.raises(CommandError, match="add --kb NAME"):
        call_command("reindex", *arguments)


class TestChangingTheModel:
    MODEL = "test/letters"

    @pytest.fixture(autouse=True)
    def _model(self, monkeypatch):
        letters_models(monkeypatch, self.MODEL)

    def run(self, *arguments):
        output = StringIO()
        call_command("reindex", "--kb", "faq", "--embeddings", *arguments, stdout=output)
        return output.getvalue()

    def model(self):
        return KnowledgeBase.objects.get(name="faq").embedding_model

    def test_it_builds_swaps_and_says_how_to_go_back(self, kb):
        output = self.run("--model", self.MODEL)

        assert self.model() == self.MODEL
        assert "--rollback" in output
        assert "--drop-old" in output

    def test_it_builds_without_a_swap_and_swaps_later(self, kb):
        assert "--swap" in self.run("--model", self.MODEL, "--no-swap")
        assert self.model() == "hashing"
        make_document(kb, "新的一段", source="new.txt")

        assert f"searches use {self.MODEL!r}" in self.run("--swap")

        assert ChunkEmbedding.objects.filter(model=self.MODEL).count() == 3

    def test_it_goes_back_and_drops(self, kb):
        self.run("--model", self.MODEL)
        assert "searches use 'hashing'" in self.run("--rollback")
        Reembedding.objects.update(swapped_at=None)

        assert "2 former vectors are gone" in self.run("--drop-old")

    @pytest.mark.parametrize("arguments", [("--swap",), ("--rollback",), ("--drop-old",)])
    def test_there_has_to_be_something_to_change(self, kb, arguments):
        with pytest.raises(CommandError):
            self.run(*arguments)

    @pytest.mark.parametrize(
        "arguments", [("--no-swap",), ("--swap", "--model", MODEL), ("--swap", "--bm25"), ("--swap", "--rollback")]
    )
    def test_options_that_do_not_go_together_are_refused(self, kb, arguments):
        with pytest.raises(CommandError, match=r"--model|--embeddings|not allowed with"):
            self.run(*arguments)
