from io import StringIO

import pytest
from django.core.management import call_command

from kb.models import ChunkPostings, KnowledgeBase
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
