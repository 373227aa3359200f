import json

import grpc
import pytest

from kb.answers.services.answers import AskRequest, answer
from kb.base.errors import Rejected
from kb.base.shapes import as_values
from kb.models import SearchProvider
from kb.rag import RAGService
from kb.sources.external.providers import vertex
from kb.sources.external.services import (
    external_source_test,
    external_source_update,
    external_sources,
)
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.sources.external.sources import codes, elsewhere, find, vertex_source
from tests.vertex_server import page

pytestmark = pytest.mark.django_db
HOURS = page(
    "Opening hours", "https://example.org/hours", "The archive does open at eight in summer.", name="h", score=0.8
)


def test_a_result_of_the_service_is_one_of_ours_with_its_provenance(owner, kb, service):
    service.results = [HOURS]
    vertex_source(kb, service)
    outcome = find(owner, kb)
    [hit] = elsewhere(outcome)
    assert (hit["source"], hit["title"], hit["knowledge_base_id"]) == (
        "https://example.org/hours",
        "Opening hours",
        kb.pk,
    )
    assert hit["metadata"]["external"] == {
        "kind": "vertex_ai_search",
        "source": "site search",
        "id": "h",
        "url": "https://example.org/hours",
        "published": "",
        "rank": 1,
        "score": pytest.approx(0.8),
    }
    assert hit["ranks"]["external:site search"] == 1
    assert service.asked[0].query == "when does the archive open"
    assert codes(outcome) == []


def test_a_weight_of_its_own_decides_how_much_it_counts(owner, kb, service):
    service.results = [HOURS]
    source = vertex_source(kb, service, weight=100.0)
    assert elsewhere(find(owner, kb))[0]["ranks"]["fused"] == 1
    source.weight = 0.0001
    source.save()
    assert elsewhere(find(owner, kb))[0]["ranks"]["fused"] == 3


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "external_refused"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "external_quota"),
        (grpc.StatusCode.UNAVAILABLE, "external_unavailable"),
    ],
)
def test_a_fault_costs_its_results_only(owner, kb, service, status, code):
    service.fails = (status, "no")
    vertex_source(kb, service)
    outcome = find(owner, kb)
    assert codes(outcome) == [code]
    assert outcome.result.hits[0].passage.title == "Hours"


def test_a_service_that_hangs_is_not_waited_for(owner, kb, service):
    service.hangs = True
    vertex_source(kb, service, timeout_ms=200)
    assert codes(find(owner, kb)) == ["external_timeout"]


def test_a_kind_that_is_no_longer_allowed_is_told_of(owner, kb, service, settings):
    vertex_source(kb, service)
    settings.EXTERNAL_PROVIDERS = []
    assert codes(find(owner, kb)) == ["external_not_configured"]
    assert service.asked == []


def test_without_the_extra_a_sentence_says_what_to_install(owner, kb, service, monkeypatch):
    source = vertex_source(kb, service)
    monkeypatch.setattr(vertex.VertexSearch, "installed", lambda: False)
    outcome = find(owner, kb)
    assert codes(outcome) == ["external_not_configured"]
    assert any("zhiku[vertex]" in each.detail for each in outcome.result.degraded)
    assert "zhiku[vertex]" in external_source_test(source, "x")["error"]
    assert external_sources().state == "degraded"


def test_only_one_query_of_a_search_is_sent_out(owner, kb, service):
    vertex_source(kb, service)
    find(owner, kb)
    assert len(service.asked) == 1


def test_a_service_is_asked_for_its_own_knowledge_base_only(owner, kb, service):
    service.results = [HOURS]
    vertex_source(kb, service)
    stranger = make_user()
    other = make_kb(stranger, "other", language="en")
    make_document(other, "The archive of another house does open.")
    assert elsewhere(find(stranger, other)) == []
    assert service.asked == []


def test_every_caller_copes_with_a_result_that_has_no_chunk(owner, kb, service):
    service.results = [HOURS]
    vertex_source(kb, service)
    rag = RAGService()
    chunks = rag.search("when does the archive open", kb.pk, owner.pk, 5)
    assert None in [chunk["chunk_id"] for chunk in chunks]
    assert "https://example.org/hours" in rag.format_for_context(chunks, 2_000)
    assert "https://example.org/hours" in rag.format_for_tool_output(chunks, 5)
    found = rag.get_retriever(owner.pk, kb.pk, 5).invoke("when does the archive open")
    assert "https://example.org/hours" in [document.id for document in found]


def test_an_answer_cites_the_address(owner, kb, service):
    service.results = [HOURS]
    vertex_source(kb, service)
    asked = AskRequest(
        query="when does the archive open", knowledge_base_ids=[kb.pk], overrides={"score_threshold": 0.0}
    )
    given = as_values(answer(principal(owner), asked))
    assert ("https://example.org/hours", None) in [(each["source"], each["chunk_id"]) for each in given["sources"]]
    json.dumps(given, allow_nan=False)


def test_the_explained_trace_tells_of_it_without_a_chunk(owner, kb, service):
    from kb.search.services.search import trace_as_json

    service.results = [HOURS]
    vertex_source(kb, service)
    trace = json.loads(json.dumps(trace_as_json(find(owner, kb)), allow_nan=False))
    [span] = [each for each in trace["spans"] if each["stage"] == "external"]
    assert (span["source"], span["found"], span["provider"]) == ("site search", 1, "vertex_ai_search")
    [candidate] = [each for each in trace["candidates"] if each["chunk_id"] is None]
    assert candidate["external"]["url"] == "https://example.org/hours"
    assert candidate["provenance"][0]["chunk_id"] is None


def test_a_source_is_created_changed_and_checked(kb, service):
    values = {"project": "library", "data_store": "site", "endpoint": service.endpoint}
    source = SearchProvider(knowledge_base=kb)
    external_source_update(source=source, name="s", kind=vertex.KIND, settings=values)
    assert source.settings["location"] == "global"
    with pytest.raises(Rejected) as refusal:
        external_source_update(source=SearchProvider(knowledge_base=kb), name="s", kind=vertex.KIND, settings=values)
    assert refusal.value.code == "name_taken"
    with pytest.raises(Rejected) as refusal:
        external_source_update(source=source, settings={**values, "endpoint": "evil.example.org"})
    assert refusal.value.code == "endpoint_invalid"


def test_one_of_a_kind_that_is_not_allowed_can_be_switched_off(kb, service, settings):
    source = vertex_source(kb, service)
    settings.EXTERNAL_PROVIDERS = []
    external_source_update(source=source, enabled=False)
    assert not SearchProvider.objects.get().enabled
    with pytest.raises(Rejected):
        external_source_update(source=source, enabled=True)


def test_a_test_tells_what_was_found_or_why_not(kb, service):
    source = vertex_source(kb, service)
    service.results = [HOURS]
    assert external_source_test(source, "hours")["hits"][0].title == "Opening hours"
    service.fails = (grpc.StatusCode.PERMISSION_DENIED, "no")
    assert external_source_test(source, "hours")["code"] == "external_refused"
    service.fails, service.hangs = None, True
    assert external_source_test(source, "hours", seconds=0.2)["code"] == "external_timeout"


def test_the_doctor_tells_what_may_be_asked(kb, service, settings):
    vertex_source(kb, service)
    assert external_sources().state == "ok"
    settings.VERTEX_PROJECTS = []
    assert (external_sources().state, "VERTEX_PROJECTS" in external_sources().remedy) == ("degraded", True)
    settings.EXTERNAL_PROVIDERS = ["astrology"]
    assert external_sources().state == "broken"
    settings.EXTERNAL_PROVIDERS = []
    assert external_sources().state == "degraded"


def test_a_search_without_sources_reads_no_more_than_before(owner, kb, django_assert_max_num_queries):
    request = {"query": "archive", "overrides": {"external": True}}
    find(owner, kb, **request)
    with django_assert_max_num_queries(8):
        find(owner, kb, **request, log=False, explain=False)
