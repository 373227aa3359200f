import pytest
from django.core.management import CommandError, call_command

from kb.models import Document
from kb.sources.services.sources import source_cancel, source_create, source_request
from tests.factories import make_kb
from tests.web_server import Page, WebServer, article

pytestmark = pytest.mark.django_db


@pytest.fixture
def web(settings):
    settings.WEB_ALLOWED_HOSTS, settings.WEB_DELAY_SECONDS = ["127.0.0.1"], 0.0
    with WebServer() as server:
        server.pages["/"] = Page(article("Hours"))
        yield server


@pytest.fixture
def source(web):
    kb = make_kb(name="legal")
    source = source_create(knowledge_base=kb, user=kb.owner, name="archive", kind="page", url=web.url("/"))
    source_cancel(source)
    return source


def test_a_source_is_read_here_and_made_searchable(source, capsys):
    call_command("read_sources", kb="legal", wait=True)
    assert "archive: 1 new" in capsys.readouterr().out
    assert Document.objects.get().status == "ready"


def test_without_waiting_a_worker_is_asked(source, capsys):
    call_command("read_sources", kb="legal", source="archive")
    source.refresh_from_db()
    assert source.status == "waiting"
    assert "a worker reads it" in capsys.readouterr().out


def test_one_that_is_being_read_is_left_to_its_worker(source, capsys):
    source_request(source)

    call_command("read_sources", kb="legal", wait=True)

    assert "archive: is being read already" in capsys.readouterr().out
    source.refresh_from_db()
    assert source.status == "waiting"


def test_what_a_run_has_held_back_is_accepted_and_done(source, capsys):
    call_command("read_sources", kb="legal", accept=True, wait=True)

    assert "archive: 1 new" in capsys.readouterr().out
    source.refresh_from_db()
    assert (source.status, source.accepted_at is not None) == ("done", True)


def test_a_source_that_fails_ends_the_command_with_its_reason(source):
    source.kind = "feed"
    source.save()
    with pytest.raises(CommandError, match="holds no RSS or Atom feed"):
        call_command("read_sources", kb="legal", wait=True)


def test_a_name_that_is_none_tells_those_there_are(source):
    with pytest.raises(CommandError, match="there are: archive"):
        call_command("read_sources", kb="legal", source="archives")
