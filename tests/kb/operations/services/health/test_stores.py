import pytest

from kb.base.findings import State
from kb.models import StoreState
from kb.operations.services.health.health import other_stores
from tests.factories import make_document, make_kb
from tests.kb.index.copies import NOBODY, use

pytestmark = pytest.mark.django_db


def test_without_another_store_nothing_is_amiss():
    assert other_stores().state is State.OK


def test_a_server_that_answers_is_told_with_its_version(milvus, chroma):
    finding = other_stores()

    assert finding.state is State.OK
    assert "Milvus" in finding.detail
    assert "ChromaDB 1" in finding.detail


def test_a_server_that_is_out_is_told_with_the_remedy(settings):
    settings.CHROMA_URL = NOBODY

    finding = other_stores()

    assert finding.state is State.DEGRADED
    assert NOBODY in finding.detail
    assert "CHROMA_URL" in finding.remedy


def test_changes_that_wait_for_long_are_told(chroma):
    from kb.models import StoreChange

    kb = make_kb()
    use(kb, "chroma")
    make_document(kb, "新的文本")
    assert other_stores().state is State.OK
    StoreChange.objects.update(created_at="2020-01-01T00:00Z")

    finding = other_stores()

    assert finding.state is State.DEGRADED
    assert "2020-01-01" in finding.detail


def test_a_move_that_failed_is_told(chroma):
    kb = make_kb(name="statutes")
    StoreState.objects.create(knowledge_base=kb, store="chroma", status="failed", error="too few")

    finding = other_stores()

    assert finding.state is State.DEGRADED
    assert "statutes (too few)" in finding.detail
