"""Places that an operator has opened to the knowledge bases of one user alone."""

import pytest

from kb.base.errors import Rejected
from kb.models import Document
from kb.sources.connectors.web.preview import page_read
from kb.sources.services.sources import source_create, source_request
from kb.sources.services.working import run_source
from tests.factories import make_kb, make_user
from tests.web_server import Page, WebServer, article

pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.md").write_text("The lamp.")
    return str(tmp_path)


def create(owner, **fields):
    kb = make_kb(owner=owner, language="en")
    return source_create(knowledge_base=kb, user=owner, name="source", **fields)


def test_a_folder_is_open_to_its_owner_alone(folder, settings):
    settings.SOURCE_FOLDERS = [f"{folder}@alice@example.org"]
    source = create(make_user("alice@example.org"), kind="folder", settings={"path": folder})
    run_source(source.pk)
    assert Document.objects.count() == 1
    with pytest.raises(Rejected) as refusal:
        create(make_user("bob"), kind="folder", settings={"path": folder})
    assert refusal.value.code == "path_invalid"


def test_a_folder_that_is_not_open_any_more_is_not_read(folder, settings):
    settings.SOURCE_FOLDERS = [f"{folder}@alice"]
    source = create(make_user("alice"), kind="folder", settings={"path": folder})
    settings.SOURCE_FOLDERS = [f"{folder}@bob"]
    source_request(source)
    run_source(source.pk)
    source.refresh_from_db()
    assert (source.status, source.error_code) == ("failed", "path_invalid")


def test_a_host_is_open_to_its_owner_alone(settings):
    settings.WEB_DELAY_SECONDS = 0.0
    alice, bob = make_user("alice"), make_user("bob")
    with WebServer() as web:
        web.pages["/"] = Page(article("Hours"))
        settings.WEB_ALLOWED_HOSTS = [f"127.0.0.1:{web.port}@alice"]
        sources = [create(user, kind="page", url=web.url("/")) for user in (alice, bob)]
        for source in sources:
            run_source(source.pk)
            source.refresh_from_db()
        assert page_read(url=web.url("/"), owner=lambda: "alice")["title"] == "Hours"
        with pytest.raises(Rejected):
            page_read(url=web.url("/"), owner=lambda: "bob")
    assert [each.counts for each in sources] == [{"added": 1}, {"failed": 1}]
    assert sources[1].items.get().error_code == "forbidden_address"
