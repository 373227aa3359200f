import json
from datetime import timedelta

import pytest
from django.db.models import Q
from django.utils import timezone

from kb import tasks
from kb.base.messages import shown
from kb.graph.services.entities import MAX_ALIASES, entity_update
from kb.graph.services.writing import (
    EXTRACTIONS,
    MAX_ATTEMPTS,
    extract_document,
    graph_request,
    graph_request_if_wanted,
    sweep_graph_requests,
)
from kb.ingest.services.documents import document_delete
from kb.jobs.leases import LeaseLost
from kb.models import Chunk, Document, Entity, EntityName, FactSource, GraphExtraction, GraphFact, Origin
from tests.factories import make_document, make_kb
from tests.kb.providers.language_model import language_model, no_language_model
from tests.servers import Reply

pytestmark = pytest.mark.django_db

ACME = "智能温控器由 Acme 公司生产。"
LOCK = "门锁由 Acme 公司生产。"


def graph(body):
    """A model that finds who makes what, and calls every document one about devices."""
    prompt = body["messages"][1]["content"]
    if "document" in json.loads(prompt):
        return json.dumps({"concepts": [{"name": "设备", "wider": "产品"}]})
    things = [thing for thing in ("智能温控器", "门锁") if thing in prompt]
    facts = [{"subject": thing, "predicate": "生产商", "object": "Acme 公司"} for thing in things]
    entities = [{"name": thing, "kind": "产品"} for thing in things] + [{"name": "Acme 公司", "aliases": ["Acme"]}]
    return json.dumps({"entities": entities if things else [], "facts": facts})


@pytest.fixture
def kb():
    kb = make_kb()
    kb.extract_graph = True
    kb.save()
    return kb


@pytest.fixture
def model(settings):
    with language_model(settings) as server:
        server.always("chat", Reply(graph))
        yield server


def extract(document):
    graph_request(document)
    extract_document(document.pk)
    return GraphExtraction.objects.get(document=document)


def stated():
    return sorted(GraphFact.objects.values_list("subject", "predicate", "object"))


def test_facts_entities_and_concepts_of_a_document_are_found_with_their_chunks(kb, model):
    document = make_document(kb, ACME, "天气很好。")

    extraction = extract(document)

    fact = GraphFact.objects.get()
    assert (fact.origin, fact.source_chunk) == (Origin.LLM, document.chunks.get(position=0))
    assert {each.name: each.kind for each in Entity.objects.all()} == {"智能温控器": "产品", "Acme 公司": ""}
    assert EntityName.objects.get(text="Acme").entity.name == "Acme 公司"
    assert list(document.concepts.values_list("name", flat=True)) == ["设备"]
    assert (extraction.status, extraction.read_count, extraction.fact_count) == ("done", 2, 1)


def test_a_passage_that_has_not_changed_is_not_read_again(kb, model):
    document = make_document(kb, ACME, LOCK)
    extract(document)
    before = model.calls["chat"]
    Chunk.objects.filter(document=document, position=1).update(text="天气很好。")

    extract(document)

    assert model.calls["chat"] - before == 2  # the changed passage, and what the document is about
    assert stated() == [("智能温控器", "生产商", "Acme 公司")]
    extract(document)
    assert model.calls["chat"] - before == 2


def test_what_is_said_no_more_goes_and_what_was_made_by_hand_stays(kb, model):
    document = make_document(kb, ACME)
    extract(document)
    GraphFact.objects.create(knowledge_base=kb, subject="智能温控器", predicate="颜色", object="白")
    document.concepts.create(knowledge_base=kb, name="白色家电")
    Chunk.objects.filter(document=document).update(text=LOCK)

    extract(document)

    assert stated() == [("智能温控器", "颜色", "白"), ("门锁", "生产商", "Acme 公司")]
    assert set(document.concepts.values_list("name", flat=True)) == {"设备", "白色家电"}
    Chunk.objects.filter(document=document).update(text="天气很好。")
    extract(document)
    assert stated() == [("智能温控器", "颜色", "白")]
    assert not Entity.objects.filter(name__in=["门锁", "Acme 公司"]).exists()  # which nothing names any more


def test_a_fact_of_two_documents_stays_until_both_are_gone(kb, model):
    first, second = make_document(kb, ACME), make_document(kb, f"再说一遍：{ACME}")
    extract(first)
    extract(second)
    assert GraphFact.objects.get().source_chunk.document == first

    document_delete(first)
    assert GraphFact.objects.get().source_chunk.document == second
    document_delete(second)
    assert not GraphFact.objects.exists()
    assert not FactSource.objects.exists()


def test_facts_are_stated_by_the_names_of_known_entities(kb, model):
    entity_update(Entity(knowledge_base=kb), name="艾克美", aliases=["Acme 公司"])

    extract(make_document(kb, ACME))

    assert stated() == [("智能温控器", "生产商", "艾克美")]
    assert EntityName.objects.get(text="Acme").entity.name == "艾克美"


def test_a_switched_off_chunk_is_not_read(kb, model):
    document = make_document(kb, ACME, LOCK)
    Chunk.objects.filter(document=document, position=1).update(enabled=False)

    assert extract(document).chunk_count == 1
    assert stated() == [("智能温控器", "生产商", "Acme 公司")]


def test_an_unusable_answer_is_asked_for_once_more_and_then_told_of(kb, model):
    model.once("chat", Reply("no JSON"), Reply("no JSON either"))

    extraction = extract(make_document(kb, ACME))

    assert (extraction.status, extraction.unusable_count, extraction.read_count) == ("done", 1, 0)
    assert "could not be used" in model.requests[1].body["messages"][-1]["content"]


def test_a_repaired_answer_is_taken(kb, model):
    model.once("chat", Reply("no JSON"))

    assert extract(make_document(kb, ACME)).fact_count == 1


def test_a_failure_is_told_tried_again_later_and_keeps_what_was_read(kb, model, settings):
    settings.GRAPH_LLM_CONCURRENCY = 1
    document = make_document(kb, ACME, LOCK)
    model.once("chat", Reply(graph), Reply(status=500), Reply(status=500))

    extraction = extract(document)

    assert (extraction.status, extraction.attempts, extraction.error_code) == ("waiting", 1, "llm_unavailable")
    assert extraction.due_at > timezone.now()
    assert "LLM_BASE_URL" in extraction.error
    assert stated() == [("智能温控器", "生产商", "Acme 公司")]
    GraphExtraction.objects.update(due_at=timezone.now())
    assert sweep_graph_requests() == [document.pk]
    calls = model.calls["chat"]
    extract_document(document.pk)
    assert model.calls["chat"] - calls == 2
    extraction.refresh_from_db()
    assert (extraction.status, extraction.error, extraction.fact_count) == ("done", "", 2)


def test_after_the_last_attempt_it_is_left_to_a_curator(kb, settings):
    no_language_model(settings)
    document = make_document(kb, ACME)
    graph_request(document)
    for _attempt in range(8):
        extract_document(document.pk)

    extraction = GraphExtraction.objects.get()
    assert (extraction.status, extraction.due_at, extraction.error_code) == ("failed", None, "llm_not_configured")
    assert document.status == Document.Status.READY


@pytest.mark.usefixtures("english")
def test_a_document_that_ends_its_worker_each_time_is_left_to_a_curator(kb, model):
    document = make_document(kb, ACME)
    graph_request(document)
    for _killed in range(MAX_ATTEMPTS):
        EXTRACTIONS.claim(Q(document=document))
        GraphExtraction.objects.update(due_at=timezone.now() - timedelta(seconds=1))

    assert not extract_document(document.pk)

    extraction = GraphExtraction.objects.get()
    assert (extraction.status, extraction.error_code, extraction.due_at) == ("failed", "worker_lost", None)
    assert shown(extraction.error).startswith("the worker stopped 8 times")
    assert model.calls["chat"] == 0
    assert graph_request(document).attempts == 0


def test_what_nobody_expected_is_tried_again_later_and_a_stated_number_of_times(kb, model, monkeypatch):
    monkeypatch.setattr("kb.graph.services.writing.readable_chunks", lambda _document: 1 / 0)
    document = make_document(kb, ACME)
    graph_request(document)

    extract_document(document.pk)

    extraction = GraphExtraction.objects.get()
    assert (extraction.status, extraction.attempts, extraction.error_code) == ("waiting", 1, "internal_error")
    for _again in range(MAX_ATTEMPTS - 1):
        extract_document(document.pk)
    assert GraphExtraction.objects.get().status == "failed"


def test_passages_beyond_the_bound_are_not_read_and_told_of(kb, model, settings):
    settings.GRAPH_LLM_MAX_CHUNKS = 1

    extraction = extract(make_document(kb, ACME, LOCK))

    assert (extraction.read_count, extraction.skipped_count) == (1, 1)


def test_a_document_that_is_asked_for_again_meanwhile_is_not_written_by_the_first_reader(kb, model):
    document = make_document(kb, ACME)
    job = EXTRACTIONS.claim(Q(pk=graph_request(document).pk))

    graph_request(document)

    with pytest.raises(LeaseLost):
        job.renew()
    assert EXTRACTIONS.claim(Q(document=document)) is not None
    assert EXTRACTIONS.claim(Q(document=document)) is None


def test_only_documents_of_bases_that_want_it_are_asked_for_each_once(kb):
    wanted, other = make_document(kb, ACME), make_document(make_kb(), ACME)

    assert graph_request_if_wanted(wanted.pk)
    assert not graph_request_if_wanted(wanted.pk)
    assert not graph_request_if_wanted(other.pk)
    assert sweep_graph_requests() == []


def test_the_sweep_finds_documents_that_were_never_read_and_those_that_have_changed(kb):
    document = make_document(kb, ACME)

    assert sweep_graph_requests() == [document.pk]
    GraphExtraction.objects.update(status="done", due_at=None)
    assert sweep_graph_requests() == []
    document.save()
    assert sweep_graph_requests() == [document.pk]


def test_a_reading_whose_worker_was_lost_is_taken_up(kb):
    document = make_document(kb, ACME)
    graph_request(document)
    GraphExtraction.objects.update(status="running", due_at=timezone.now())

    assert sweep_graph_requests() == [document.pk]
    assert GraphExtraction.objects.get().status == "waiting"


def test_the_workers_task_reads_a_document_that_was_asked_for(kb, model):
    document = make_document(kb, ACME)
    assert graph_request_if_wanted(document.pk)

    tasks.extract_graph(document.pk)

    assert stated() == [("智能温控器", "生产商", "Acme 公司")]


def test_a_document_is_searchable_while_its_graph_waits(kb, settings):
    no_language_model(settings)
    document = make_document(kb, ACME)

    extract(document)

    document.refresh_from_db()
    assert document.status == Document.Status.READY
    assert document.chunks.count() == 1


def test_a_model_gives_an_entity_no_more_names_than_it_can_have(kb, model):
    """Passages that call one thing by many names would make it an entity that nobody can change."""
    document = make_document(kb, *(f"IBM a{n}x b{n}x c{n}x d{n}x" for n in range(20)))

    def names(body):
        words = body["messages"][1]["content"].split("IBM ")[-1].split()
        return json.dumps({"entities": [{"name": "IBM", "aliases": words[:4]}], "facts": []})

    model.always("chat", Reply(names))
    graph_request(document)
    extract_document(document.pk)

    assert EntityName.objects.filter(entity__name="IBM").count() == MAX_ALIASES + 1
