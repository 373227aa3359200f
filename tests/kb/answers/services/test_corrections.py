import pytest

from kb.answers.services.answers import AskRequest, answer
from kb.answers.services.corrections import ANSWER_CHARACTERS, pair_add
from kb.base.errors import NotAllowed, Rejected
from kb.models import AuditEntry, Document
from tests.factories import make_document, make_kb, make_member, principal
from tests.kb.providers.language_model import no_language_model

pytestmark = pytest.mark.django_db

QUESTION, ANSWER = "狗可以带进办公室吗？", "周五可以，其他日子不行。"


@pytest.fixture(autouse=True)
def _no_model(settings):
    no_language_model(settings)


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, "诉讼时效期间为三年。", "宠物政策由行政部制定。")
    return kb


@pytest.fixture
def caller(kb):
    return principal(kb.owner)


def asked(caller, kb, query=QUESTION):
    return answer(caller, AskRequest(query=query, knowledge_base_ids=[kb.pk]))


def test_a_written_answer_is_found_by_its_question_at_once(caller, kb):
    assert not asked(caller, kb).hit

    chunk = pair_add(caller, knowledge_base=kb, question=QUESTION, answer=ANSWER)

    found = asked(caller, kb)
    assert found.hit
    assert (found.sources[0].chunk_id, found.sources[0].label) == (chunk.pk, QUESTION)
    assert ANSWER in found.sources[0].text


def test_it_is_a_ready_document_of_the_kind_qa_with_its_question(caller, kb):
    chunk = pair_add(caller, knowledge_base=kb, question=f"  {QUESTION}\n", answer=ANSWER)
    document = chunk.document
    assert (document.title, document.source_type, document.status) == (QUESTION, "qa", "ready")
    assert (chunk.text, chunk.questions, chunk.own_questions) == (f"{QUESTION}\n{ANSWER}", [QUESTION], True)
    assert document.created_by == caller.user
    assert AuditEntry.objects.filter(object_type="document", object_id=document.pk).exists()


def test_the_same_pair_again_is_one_document(caller, kb):
    first = pair_add(caller, knowledge_base=kb, question=QUESTION, answer=ANSWER)
    again = pair_add(caller, knowledge_base=kb, question=QUESTION, answer=ANSWER)
    assert Document.objects.filter(source_type="qa").count() == 1
    assert first.text == again.text


@pytest.mark.parametrize(
    ("question", "said"),
    [("", ANSWER), (QUESTION, "  \n"), ("？" * 2_001, ANSWER), (QUESTION, "x" * 100_001)],
    ids=["no question", "no answer", "long question", "long answer"],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_written(caller, kb, question, said):
    with pytest.raises(Rejected):
        pair_add(caller, knowledge_base=kb, question=question, answer=said)
    assert not Document.objects.filter(source_type="qa").exists()


def test_who_may_only_read_writes_nothing(kb):
    reader = principal(make_member(kb))
    with pytest.raises(NotAllowed):
        pair_add(reader, knowledge_base=kb, question=QUESTION, answer=ANSWER)


def test_a_model_out_of_reach_is_said_and_nothing_is_written(caller, kb):
    type(kb).objects.filter(pk=kb.pk).update(embedding_model="no/such-model")
    kb.refresh_from_db()
    with pytest.raises(Rejected, match="no/such-model"):
        pair_add(caller, knowledge_base=kb, question=QUESTION, answer=ANSWER)
    assert not Document.objects.filter(source_type="qa").exists()


def test_the_form_s_limit_is_within_a_chunk_s(caller, kb):
    assert pair_add(caller, knowledge_base=kb, question=QUESTION, answer="字" * ANSWER_CHARACTERS).pk
