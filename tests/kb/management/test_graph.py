import json

import pytest
from django.core.management import CommandError, call_command

from kb.models import Entity, GraphExtraction, GraphFact
from tests.factories import make_document, make_kb
from tests.kb.providers.language_model import language_model, no_language_model
from tests.servers import Reply

pytestmark = pytest.mark.django_db

FOUND = json.dumps(
    {"entities": [], "facts": [{"subject": "温控器", "predicate": "保修", "object": "2 年"}], "concepts": []}
)


@pytest.fixture
def kb():
    return make_kb(name="handbook")


def test_a_file_is_imported_and_exported(kb, tmp_path, capsys):
    path = tmp_path / "entities.csv"
    path.write_text("name,aliases\nIBM,Big Blue\n", encoding="utf-8")

    call_command("graph", "import", "entities", str(path), kb="handbook", dry_run=True)
    assert not Entity.objects.exists()
    call_command("graph", "import", "entities", str(path), kb="handbook", json=True)
    told = capsys.readouterr().out
    call_command("graph", "export", "entities", kb="handbook", out=tmp_path / "out.csv")
    call_command("graph", "export", "entities", kb="handbook")

    assert "1 new" in told
    assert (tmp_path / "out.csv").read_text(encoding="utf-8-sig") == "name,kind,description,aliases\nIBM,,,Big Blue\n"
    assert "IBM,,,Big Blue" in capsys.readouterr().out


def test_a_file_with_errors_or_none_ends_the_command(kb, tmp_path, capsys):
    path = tmp_path / "entities.csv"
    path.write_text("name\nIBM\n\u200b\n", encoding="utf-8")

    with pytest.raises(CommandError, match="Line 3"):
        call_command("graph", "import", "entities", str(path), kb="handbook")
    call_command("graph", "import", "entities", str(path), kb="handbook", skip_errors=True)
    assert "line 3: " in capsys.readouterr().err
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("graph", "import", "entities", str(tmp_path / "missing.csv"), kb="handbook")


def test_documents_are_read_here_or_handed_to_the_workers(kb, settings, capsys):
    make_document(kb, "温控器保修 2 年。")

    call_command("graph", "extract", kb="handbook")
    assert GraphExtraction.objects.get().status == "waiting"
    with language_model(settings) as server:
        server.always("chat", Reply(FOUND))
        call_command("graph", "extract", kb="handbook", wait=True)

    assert "1 documents were read; they state 1 facts" in capsys.readouterr().out
    assert GraphFact.objects.get().object == "2 年"


def test_a_document_that_cannot_be_read_ends_the_command(kb, settings):
    no_language_model(settings)
    make_document(kb, "温控器保修 2 年。")

    with pytest.raises(CommandError, match="add a chat model"):
        call_command("graph", "extract", kb="handbook", wait=True)
