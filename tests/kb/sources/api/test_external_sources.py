import pytest

from kb.models import Membership, SearchProvider
from kb.sources.external.providers import vertex
from tests import factories
from tests.vertex_server import VertexServer, page

pytestmark = pytest.mark.django_db


@pytest.fixture
def service(settings):
    with VertexServer() as running:
        settings.EXTERNAL_PROVIDERS = [vertex.KIND]
        settings.VERTEX_PROJECTS = ["library"]
        settings.VERTEX_ENDPOINTS = [running.endpoint]
        vertex._client.cache_clear()
        yield running


def body(service, **fields):
    values = {"project": "library", "data_store": "site", "endpoint": service.endpoint}
    return {"name": "site search", "kind": vertex.KIND, "settings": values, **fields}


def url(kb, *rest):
    return "/".join(["/api/v1/knowledge-bases", str(kb.pk), "external-sources", *map(str, rest), ""])


def test_a_source_is_created_read_changed_tested_and_deleted(client, kb, service):
    created = client.post(url(kb), body(service, weight=0.5), format="json")
    assert created.status_code == 201
    row = created.json()
    assert (row["weight"], row["settings"]["location"], row["problem"]) == (0.5, "global", "")
    assert client.get(url(kb)).json()["results"] == [row]
    assert client.get(url(kb, row["id"])).json() == row

    changed = client.patch(url(kb, row["id"]), {"enabled": False}, format="json")
    assert changed.json()["enabled"] is False

    service.results = [page("Hours", "https://example.org/hours", "Open at nine.")]
    tested = client.post(url(kb, row["id"], "test"), {"query": "when"}, format="json").json()
    assert (tested["results"][0]["url"], tested["error"], tested["code"]) == ("https://example.org/hours", None, "")

    assert client.delete(url(kb, row["id"])).status_code == 204
    assert not SearchProvider.objects.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "astrology"},
        {"settings": {"project": "p"}},
        {"settings": {"project": "p", "data_store": "d", "endpoint": "http://169.254.169.254"}},
        {"settings": {"project": "p", "data_store": "d", "api_key": "s3cret"}},
        {"timeout_ms": 1},
        {"name": ""},
    ],
)
def test_what_cannot_be_asked_is_refused(client, kb, service, fields):
    answer = client.post(url(kb), body(service, **fields), format="json")
    assert answer.status_code in {400, 422}
    assert not SearchProvider.objects.exists()


def test_a_viewer_neither_reads_nor_writes_it(client_of, kb, service):
    source = SearchProvider.objects.create(knowledge_base=kb, name="s", settings={})
    viewer = client_of(factories.make_member(kb))
    assert viewer.get(url(kb)).status_code == 403
    assert viewer.get(url(kb, source.pk)).status_code == 403
    assert viewer.post(url(kb, source.pk, "test"), {"query": "x"}, format="json").status_code == 403
    assert service.asked == []


def test_an_editor_may(client_of, kb, service):
    editor = client_of(factories.make_member(kb, Membership.Role.EDITOR))
    assert editor.post(url(kb), body(service), format="json").status_code == 201


def test_a_source_of_another_knowledge_base_is_not_there(client, kb, owner, service):
    other = factories.make_kb(owner, "other")
    theirs = SearchProvider.objects.create(knowledge_base=other, name="s", settings={})
    assert client.get(url(kb, theirs.pk)).status_code == 404
    assert client.delete(url(kb, theirs.pk)).status_code == 404


def test_a_test_waits_for_its_service_only_where_requests_may(client, kb, service, crowded):
    created = client.post(url(kb), body(service), format="json").json()
    refused = client.post(url(kb, created["id"], "test"), {"query": "when"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (503, "too_many_waits")
    assert service.asked == []
