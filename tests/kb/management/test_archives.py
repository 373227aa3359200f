import pytest
from django.core.management import CommandError, call_command

from kb.models import Chunk, KnowledgeBase
from tests.factories import make_document, make_kb, make_user

pytestmark = pytest.mark.django_db


def test_a_knowledge_base_goes_out_and_comes_in_for_another_owner(tmp_path, capsys):
    kb = make_kb(name="handbook")
    make_document(kb, "智能温控器的保修期是两年")
    other = make_user("other")
    path = tmp_path / "handbook.zip"
    call_command("export_kb", str(path), kb="handbook", vectors=True)
    call_command("import_kb", str(path), owner="other")
    out = capsys.readouterr().out
    assert "1 documents, 1 chunks, 0 judgments, 0 files, 1 vectors" in out
    made = KnowledgeBase.objects.get(name="handbook", owner=other)
    assert Chunk.objects.filter(knowledge_base=made).count() == 1


def test_a_file_that_is_there_is_not_replaced(tmp_path):
    make_kb(name="handbook")
    path = tmp_path / "handbook.zip"
    path.write_text("mine")
    with pytest.raises(CommandError, match="there already"):
        call_command("export_kb", str(path), kb="handbook")
    assert path.read_text() == "mine"


def test_a_refused_archive_ends_with_the_sentence(tmp_path):
    make_user(superuser=True)
    path = tmp_path / "x.zip"
    path.write_bytes(b"no zip")
    with pytest.raises(CommandError, match="no ZIP file"):
        call_command("import_kb", str(path))
