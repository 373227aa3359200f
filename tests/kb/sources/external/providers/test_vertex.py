import json
import sys
import time

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt
from google.cloud import discoveryengine_v1 as vertex

from kb.base.errors import Rejected
from kb.models import SearchProvider
from kb.sources.external.providers import vertex as client
from kb.sources.external.services import checked_settings, provider_of
from retrieval.errors import ChannelUnavailable
from retrieval.types import Analysis
from tests.factories import make_kb, make_user
from tests.vertex_server import VertexServer, page


@pytest.fixture
def server(settings):
    with VertexServer() as running:
        settings.EXTERNAL_PROVIDERS = [client.KIND]
        settings.VERTEX_PROJECTS = ["library"]
        settings.VERTEX_ENDPOINTS = [running.endpoint, running.rest_endpoint]
        client._client.cache_clear()
        yield running


def search(server, query="when open", k=5, seconds=10.0, **values):
    given = {"project": "library", "data_store": "site", "endpoint": server.endpoint, **values}
    source = SearchProvider(name="site search", kind=client.KIND, settings=given)
    return provider_of(source).search(Analysis(text=query), k, time.monotonic() + seconds)


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_results_come_in_order_with_what_they_are_cited_by(server, transport):
    server.results = [
        page("Hours", "https://example.org/hours", "Opens at <b>nine</b> &amp; closes.", name="d1", score=0.9),
        page("Fees", "https://example.org/fees", "Free.", score=0.4),
    ]
    endpoint = server.endpoint if transport == "grpc" else server.rest_endpoint
    first, second = search(server, transport=transport, endpoint=endpoint)
    assert (first.title, first.url, first.text) == ("Hours", "https://example.org/hours", "Opens at nine & closes.")
    assert (first.id, second.title) == ("d1", "Fees")
    assert (first.score, second.score) == pytest.approx((0.9, 0.4))
    [request] = server.asked
    assert request.query == "when open"
    assert request.serving_config == (
        "projects/library/locations/global/collections/default_collection/dataStores/site/servingConfigs/default_search"
    )
    assert request.page_size == 5


def test_an_app_is_asked_by_its_engine_and_for_whole_passages_where_wanted(server):
    derived = {
        "title": "Hours",
        "link": "https://example.org/hours",
        "snippets": [{"snippet": "short", "snippet_status": "SUCCESS"}],
        "extractive_segments": [{"content": "The archive opens at nine and closes at five."}],
        "extractive_answers": [{"content": "nine"}],
    }
    document = vertex.Document(id="1", derived_struct_data=derived)
    server.results = [vertex.SearchResponse.SearchResult(id="1", document=document)]
    [hit] = search(server, data_store="", engine="app", extractive=True)
    assert hit.text == "The archive opens at nine and closes at five."
    assert "/engines/app/servingConfigs/" in server.asked[0].serving_config
    assert server.asked[0].content_search_spec.extractive_content_spec.max_extractive_segment_count == 1


def test_a_record_is_read_by_its_own_fields(server):
    record = {"title": "Item 7", "description": "A blue chair.", "url": "https://example.org/7", "date": "2026-01-02"}
    document = vertex.Document(id="7", struct_data=record)
    server.results = [vertex.SearchResponse.SearchResult(id="7", document=document)]
    [hit] = search(server)
    assert (hit.title, hit.text, hit.url, hit.published) == (
        "Item 7",
        "A blue chair.",
        "https://example.org/7",
        "2026-01-02",
    )


def test_an_unstructured_document_and_a_chunk_are_read(server):
    content = vertex.Document.Content(raw_bytes=b"Plain words.", mime_type="text/plain")
    at = {"url": "gs://bucket/a.txt"}
    chunk = vertex.Chunk(
        id="c1",
        content="A passage.",
        document_metadata=vertex.Chunk.DocumentMetadata(uri="https://example.org/c", title="Chunked"),
    )
    server.results = [
        vertex.SearchResponse.SearchResult(id="a", document=vertex.Document(id="a", content=content, struct_data=at)),
        vertex.SearchResponse.SearchResult(id="c", chunk=chunk),
        vertex.SearchResponse.SearchResult(id="empty", document=vertex.Document(id="empty")),
    ]
    first, second = search(server)
    assert (first.text, first.url) == ("Plain words.", "gs://bucket/a.txt")
    assert (second.text, second.title, second.url) == ("A passage.", "Chunked", "https://example.org/c")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "external_refused"),
        (grpc.StatusCode.UNAUTHENTICATED, "external_refused"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "external_quota"),
        (grpc.StatusCode.UNAVAILABLE, "external_unavailable"),
        (grpc.StatusCode.INTERNAL, "external_unavailable"),
        (grpc.StatusCode.NOT_FOUND, "external_not_configured"),
        (grpc.StatusCode.INVALID_ARGUMENT, "external_not_configured"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "external_timeout"),
    ],
)
def test_every_fault_has_a_code_and_names_the_source(server, status, code):
    server.fails = (status, "no")
    with pytest.raises(ChannelUnavailable, match="site search") as fault:
        search(server)
    assert fault.value.code == code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "external_refused"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "external_quota"),
        (grpc.StatusCode.UNAVAILABLE, "external_unavailable"),
    ],
)
def test_faults_over_http_are_the_same(server, status, code):
    server.fails = (status, "no")
    with pytest.raises(ChannelUnavailable) as fault:
        search(server, transport="rest", endpoint=server.rest_endpoint)
    assert fault.value.code == code


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_service_that_hangs_is_given_up(server, transport):
    server.hangs = True
    endpoint = server.endpoint if transport == "grpc" else server.rest_endpoint
    with pytest.raises(ChannelUnavailable) as fault:
        search(server, seconds=0.3, transport=transport, endpoint=endpoint)
    assert fault.value.code == "external_timeout"


def test_a_service_that_is_gone_is_unavailable(server, settings):
    settings.VERTEX_ENDPOINTS = ["http://127.0.0.1:1"]
    with pytest.raises(ChannelUnavailable) as fault:
        search(server, endpoint="http://127.0.0.1:1", transport="rest")
    assert fault.value.code == "external_unavailable"


def test_credentials_are_named_and_never_kept(server, monkeypatch):
    monkeypatch.delenv("VERTEX_KEY", raising=False)
    with pytest.raises(ChannelUnavailable) as fault:
        search(server, endpoint="", credentials_env="VERTEX_KEY")
    assert fault.value.code == "external_refused"
    assert server.asked == []


# The operator's own file is loaded, which is what the library warns of for files from others.
@pytest.mark.filterwarnings("ignore:The load_credentials_from_file method:DeprecationWarning")
def test_the_key_file_of_a_service_account_signs_in_at_the_place_that_it_names(server, monkeypatch, tmp_path):
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    account = {
        "type": "service_account",
        "client_email": "reader@library.example.org",
        "private_key": key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain).decode(),
        "token_uri": server.token_uri,
    }
    (tmp_path / "key.json").write_text(json.dumps(account))
    monkeypatch.setenv("VERTEX_KEY", str(tmp_path / "key.json"))

    with pytest.raises(ChannelUnavailable) as fault:
        search(server, endpoint="", credentials_env="VERTEX_KEY", transport="rest")

    assert fault.value.code == "external_refused"
    [grant] = server.grants
    claims = jwt.decode(grant, verify=False)
    assert claims["iss"] == "reader@library.example.org"
    assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"


def test_without_its_library_nothing_is_asked_and_the_remedy_is_said(server, monkeypatch):
    monkeypatch.delitem(sys.modules, "google.cloud.discoveryengine_v1")
    monkeypatch.setitem(sys.modules, "google.cloud", None)  # as where nothing of Google's is installed
    with pytest.raises(ChannelUnavailable, match="pip install") as fault:
        search(server)
    assert fault.value.code == "external_not_configured"
    assert server.asked == []


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"project": ""}, "project"),
        ({"project": "a/b"}, "project"),
        ({"location": "evil.example.org/"}, "location"),
        ({"engine": "both"}, "engine"),
        ({"data_store": ""}, "engine"),
        ({"endpoint": "http://169.254.169.254"}, "endpoint"),
        ({"endpoint": "evil.example.org"}, "endpoint"),
        ({"credentials_env": "DJANGO_SECRET_KEY"}, "credentials_env"),
        ({"transport": "carrier pigeon"}, "transport"),
        ({"extractive": "yes"}, "extractive"),
        ({"project": 7}, "project"),
        ({"api_key": "s3cret"}, "settings"),
    ],
)
def test_what_may_not_be_asked_is_refused(settings, values, field):
    settings.EXTERNAL_PROVIDERS, settings.VERTEX_PROJECTS = [client.KIND], ["p"]
    with pytest.raises(Rejected) as refusal:
        checked_settings(client.KIND, {"project": "p", "data_store": "d", **values})
    assert refusal.value.code == f"{field}_invalid"


def test_a_kind_is_refused_until_an_operator_allows_it(settings):
    settings.EXTERNAL_PROVIDERS = []
    with pytest.raises(Rejected, match="EXTERNAL_PROVIDERS"):
        checked_settings(client.KIND, {"project": "p", "data_store": "d"})


def test_a_project_is_one_of_those_that_an_operator_names(settings):
    settings.EXTERNAL_PROVIDERS, settings.VERTEX_PROJECTS = [client.KIND], ["ours"]
    with pytest.raises(Rejected, match="VERTEX_PROJECTS"):
        checked_settings(client.KIND, {"project": "theirs", "data_store": "d"})
    assert checked_settings(client.KIND, {"project": "ours", "data_store": "d"})["location"] == "global"


def test_no_project_is_open_unless_an_operator_names_it(settings):
    settings.EXTERNAL_PROVIDERS, settings.VERTEX_PROJECTS = [client.KIND], []
    with pytest.raises(Rejected, match="VERTEX_PROJECTS"):
        checked_settings(client.KIND, {"project": "ours", "data_store": "d"})


@pytest.mark.parametrize(
    ("entry", "values", "is_open"),
    [
        ("ours", {"data_store": "any"}, True),
        ("ours/site", {"data_store": "site"}, True),
        ("ours/site", {"engine": "site"}, True),
        ("ours/site", {"data_store": "payroll"}, False),
        ("ours/site@alice", {"data_store": "site"}, True),
        ("ours/site@mallory", {"data_store": "site"}, False),
        ("ours@mallory", {"data_store": "site"}, False),
        ("ours@alice", {"data_store": "any"}, True),
        ("theirs/site@alice", {"data_store": "site"}, False),
    ],
)
@pytest.mark.django_db
def test_a_store_is_open_to_the_knowledge_bases_of_one_owner(settings, entry, values, is_open):
    settings.EXTERNAL_PROVIDERS, settings.VERTEX_PROJECTS = [client.KIND], [entry]
    kb = make_kb(make_user("alice"))
    source = SearchProvider(knowledge_base=kb, name="s", kind=client.KIND, settings={"project": "ours", **values})
    if is_open:
        assert provider_of(source).serving_config.startswith("projects/ours/")
    else:
        with pytest.raises(ChannelUnavailable, match="VERTEX_PROJECTS"):
            provider_of(source)


@pytest.mark.django_db
def test_a_store_is_shut_once_the_knowledge_base_is_another_s(settings):
    settings.EXTERNAL_PROVIDERS, settings.VERTEX_PROJECTS = [client.KIND], ["ours@alice@example.org"]
    kb = make_kb(make_user("alice@example.org"))
    given = {"project": "ours", "data_store": "d"}
    source = SearchProvider.objects.create(knowledge_base=kb, name="s", kind=client.KIND, settings=given)
    assert provider_of(source)
    kb.owner = make_user("mallory")
    kb.save()
    with pytest.raises(ChannelUnavailable, match="VERTEX_PROJECTS"):
        provider_of(source)


def test_googles_endpoint_follows_the_location():
    assert client.googles("global") == "discoveryengine.googleapis.com"
    assert client.googles("eu") == "eu-discoveryengine.googleapis.com"
