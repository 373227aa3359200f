from io import StringIO

import pytest
from django.core.management import call_command

from kb.models import Chunk, ChunkEmbedding, ChunkPostings, KnowledgeBase
from kb.services.tokenizing import read_settings, tokenizer_change
from tests.factories import make_document, make_kb

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


def test_makes_postings_anew_in_place(kb):
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
