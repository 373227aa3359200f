import pytest
from django.core.management import CommandError, call_command

from kb.index.mirrors.registry import mirror
from kb.models import KnowledgeBase, StoreChange
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb(milvus):
    kb = make_kb(name="statutes")
    make_document(kb, "温控器的保修期是两年", "安装前请先关闭电源")
    return kb


def run(capsys, *options):
    call_command("migrate_store", "--kb", "statutes", *options)
    return capsys.readouterr().out


def test_it_moves_a_base_and_tells_what_was_measured(kb, capsys):
    told = run(capsys, "--to", "milvus")

    assert KnowledgeBase.objects.get(pk=kb.pk).store == "milvus"
    assert "searches use Milvus (4 vectors and texts, recall@25 1.000 of 2 searches)" in told
    assert "already" in run(capsys, "--to", "milvus")


def test_it_verifies_and_rebuilds_a_copy(kb, capsys):
    run(capsys, "--to", "milvus")
    assert "is complete" in run(capsys, "--verify")
    mirror("milvus").drop(kb.pk)

    with pytest.raises(CommandError, match="--rebuild"):
        run(capsys, "--verify")
    assert "is complete" in run(capsys, "--rebuild")


def test_it_leaves_the_work_to_a_worker_or_cancels_it(kb, capsys):
    assert "a worker" in run(capsys, "--to", "milvus", "--no-wait")
    assert KnowledgeBase.objects.get(pk=kb.pk).target_store == "milvus"

    assert "nothing is on its way" in run(capsys, "--cancel")
    assert not StoreChange.objects.filter(chunk_id__isnull=False).exists()


def test_a_store_without_an_address_is_refused_with_the_remedy(kb, settings):
    settings.CHROMA_URL = ""

    with pytest.raises(CommandError, match="CHROMA_URL"):
        call_command("migrate_store", "--kb", "statutes", "--to", "chroma")


def test_postgresql_has_no_copy_to_verify(kb, capsys):
    assert "holds everything itself" in run(capsys, "--verify")
