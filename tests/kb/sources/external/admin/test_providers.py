import pytest
from django.urls import reverse

from kb.models import Membership, SearchProvider
from kb.sources.external.providers import vertex
from tests.factories import make_kb, make_member
from tests.vertex_server import VertexServer, page

ENGLISH = {"accept-language": "en"}


@pytest.fixture
def service(settings):
    with VertexServer() as running:
        settings.EXTERNAL_PROVIDERS = [vertex.KIND]
        settings.VERTEX_PROJECTS = ["library", "other"]
        settings.VERTEX_ENDPOINTS = [running.endpoint]
        vertex._client.cache_clear()
        yield running


@pytest.fixture
def source(kb, service):
    values = {"project": "library", "data_store": "site", "endpoint": service.endpoint}
    return SearchProvider.objects.create(knowledge_base=kb, name="site search", kind=vertex.KIND, settings=values)


def url(name, *args):
    return reverse(f"admin:kb_searchprovider_{name}", args=args)


def values(kb, service, **fields):
    usual = {
        "knowledge_base": kb.pk,
        "name": "site search",
        "kind": vertex.KIND,
        "enabled": "on",
        "timeout_ms": 2_000,
        "setting_project": "library",
        "setting_location": "global",
        "setting_collection": "default_collection",
        "setting_serving_config": "default_search",
        "setting_data_store": "site",
        "setting_transport": "grpc",
        "setting_endpoint": service.endpoint,
    }
    return usual | fields


def get(client, address):
    return client.get(address, headers=ENGLISH).content.decode()


def test_an_empty_list_says_what_a_source_is_for(client, service):
    assert 'data-testid="empty"' in get(client, url("changelist"))


def test_what_is_not_allowed_is_said_before_anything_is_filled_in(client, settings):
    settings.EXTERNAL_PROVIDERS = []
    for name in ("changelist", "add"):
        assert "EXTERNAL_PROVIDERS=vertex_ai_search" in get(client, url(name))


def test_a_source_is_added_with_the_settings_of_its_kind(client, kb, service):
    assert client.post(url("add"), values(kb, service, weight="0.5")).status_code == 302
    source = SearchProvider.objects.get()
    assert (source.weight, source.settings["project"], source.settings["extractive"]) == (0.5, "library", False)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"setting_project": ""}, "Give “project”"),
        ({"setting_endpoint": "evil.example.org"}, "VERTEX_ENDPOINTS"),
        ({"setting_data_store": ""}, "Give either the app or the data store"),
        ({"setting_credentials_env": "HOME"}, "cannot be “credentials from”"),
    ],
)
def test_a_wrong_setting_is_said_at_its_field(client, kb, service, fields, words):
    answer = client.post(url("add"), values(kb, service, **fields), headers=ENGLISH)
    assert answer.status_code == 200
    assert words in answer.content.decode()
    assert not SearchProvider.objects.exists()


def test_a_source_is_changed_and_keeps_what_was_given(client, kb, service, source):
    assert f'value="{service.endpoint}"' in get(client, url("change", source.pk))
    client.post(url("change", source.pk), values(kb, service, name="renamed", setting_project="other"))
    source.refresh_from_db()
    assert (source.name, source.settings["project"]) == ("renamed", "other")


def test_the_connection_is_tested_before_it_is_saved(client, kb, service):
    service.results = [page("Hours", "https://example.org/hours", "Open at nine.")]
    answer = client.post(url("test"), values(kb, service, name="", test_query="when open"), headers=ENGLISH)
    assert "https://example.org/hours" in answer.content.decode()
    assert service.asked[0].query == "when open"
    assert not SearchProvider.objects.exists()


def test_a_test_waits_for_its_service_only_where_requests_may(client, kb, service, crowded):
    answer = client.post(url("test"), values(kb, service, name="", test_query="when open"), headers=ENGLISH)
    assert answer.status_code == 503
    assert service.asked == []


def test_a_test_of_a_stored_source_says_why_it_fails(client, kb, service, source):
    import grpc

    service.fails = (grpc.StatusCode.PERMISSION_DENIED, "no")
    form = values(kb, service, test_query="when open")
    answer = client.post(url("test_again", source.pk), form, headers=ENGLISH).content.decode()
    assert 'data-code="external_refused"' in answer


def test_a_test_without_a_query_or_with_wrong_settings_sends_nothing(client, kb, service):
    assert "Give a query" in client.post(url("test"), values(kb, service), headers=ENGLISH).content.decode()
    wrong = values(kb, service, setting_project="", test_query="x")
    assert 'data-testid="form-errors"' in client.post(url("test"), wrong, headers=ENGLISH).content.decode()
    assert service.asked == []


def test_deleting_asks_first(client, source):
    assert SearchProvider.objects.filter(pk=source.pk).exists()
    assert client.get(url("delete", source.pk)).status_code == 200
    client.post(url("delete", source.pk), {"post": "yes"})
    assert not SearchProvider.objects.exists()


def test_the_list_says_which_cannot_be_asked(client, source, settings):
    settings.EXTERNAL_PROVIDERS = []
    assert "may not send queries" in get(client, url("changelist"))


def test_others_see_nothing_of_it(client, service, foreign):
    values = {"project": "p", "data_store": "d"}
    theirs = SearchProvider.objects.create(knowledge_base=foreign.knowledge_base, name="theirs", settings=values)
    assert "theirs" not in get(client, url("changelist"))
    assert client.get(url("change", theirs.pk)).status_code in {302, 404}
    assert client.post(url("test_again", theirs.pk), {"test_query": "x"}).status_code == 404
    assert service.asked == []


def test_a_viewer_may_not_test_or_change_it(client, curator, service):
    kb = make_kb(name="shared")
    make_member(kb, Membership.Role.VIEWER, curator)
    given = {"project": "library", "data_store": "site", "endpoint": service.endpoint}
    source = SearchProvider.objects.create(knowledge_base=kb, name="shared", kind=vertex.KIND, settings=given)
    form = values(kb, service, test_query="x")
    assert client.post(url("test_again", source.pk), form).status_code in {403, 404}
    assert client.post(url("change", source.pk), form).status_code in {403, 404}
    assert client.post(url("test"), form, headers=ENGLISH).content.decode().count("form-errors") == 1
    assert service.asked == []
