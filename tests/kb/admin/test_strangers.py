"""Every page of the admin that names a row by its id, as its URLs are configured, asked for a row of another tenant.

A new page is tested without being listed; a new model without a row of a stranger fails.
"""

import pytest
from django.apps import apps
from django.contrib import admin
from django.urls import reverse

from kb.models import (
    Chunk,
    Concept,
    Entity,
    EvalQuery,
    EvalRun,
    GraphExtraction,
    GraphFact,
    IngestBatch,
    KnowledgeBase,
    RetrievalProfile,
    SearchLog,
    SearchProvider,
    WebPage,
    WebSource,
)
from kb.services.graph.entities import entity_create
from kb.services.graph.requests import graph_request
from kb.services.search import SearchRequest, search
from tests.factories import make_api_key, principal
from tests.kb.admin.failed_queries.test_queries import make_failed
from tests.kb.eval_runs import make_run


def routes(patterns=None, before=""):
    """Each route of the admin that holds an id, with its name."""
    for pattern in admin.site.urls[0] if patterns is None else patterns:
        route = before + str(pattern.pattern)
        if hasattr(pattern, "url_patterns"):
            yield from routes(pattern.url_patterns, route)
        elif "<" in route and pattern.name and pattern.name.startswith("kb_"):
            yield pattern.name, route


ROUTES = dict(routes())


def model_of(name):
    return next(model for model in apps.get_app_config("kb").models if name.startswith(f"kb_{model}_"))


@pytest.fixture
def strange(foreign):
    """Rows of a stranger, by model."""
    kb = foreign.knowledge_base
    search(principal(kb.owner), SearchRequest(query="secret", knowledge_base_ids=[kb.pk], explain=True))
    eval_set = kb.eval_sets.create(name="stranger-set")
    source = WebSource.objects.create(knowledge_base=kb, name="stranger-site", url="https://example.org/")
    page = WebPage.objects.create(source=source, url="https://example.org/a", url_hash="0" * 64)
    query = EvalQuery.objects.create(eval_set=eval_set, external_id="q", text="secret")
    graph_request(foreign)
    return {
        "knowledgebase": kb,
        "document": foreign,
        "chunk": foreign.chunks.get(),
        "concept": Concept.objects.create(knowledge_base=kb, name="stranger-idea"),
        "graphfact": GraphFact.objects.create(knowledge_base=kb, subject="a", predicate="is", object="b"),
        "entity": entity_create(knowledge_base=kb, name="stranger-entity"),
        "graphextraction": GraphExtraction.objects.get(document=foreign),
        "ingestbatch": IngestBatch.objects.create(knowledge_base=kb, name="stranger-upload", created_by=kb.owner),
        "searchlog": SearchLog.objects.get(),
        "apikey": make_api_key(kb.owner, kb)[0],
        "evalset": eval_set,
        "evalquery": query,
        "evalrun": make_run(eval_set),
        "failedquery": make_failed(kb),
        "searchprovider": SearchProvider.objects.create(knowledge_base=kb, name="stranger-service"),
        "websource": source,
        "webpage": page,
        "retrievalprofile": RetrievalProfile.objects.create(knowledge_base=kb, name="stranger-profile"),
        "user": kb.owner,
    }


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("name", sorted(ROUTES))
def test_a_row_of_another_tenant_is_at_no_address(client, strange, name, method):
    rows = {model: row.pk for model, row in strange.items()}
    ids = {"object_id": rows[model_of(name)], "query_id": rows["evalquery"], "id": rows["user"]}
    wanted = [key for key in ids if f":{key}>" in ROUTES[name] or f"<{key}>" in ROUTES[name]]
    before = {model: type(row).objects.filter(pk=row.pk).values().get() for model, row in strange.items()}

    url = reverse(f"admin:{name}", args=[ids[key] for key in wanted])
    answer = getattr(client, method)(url, {"post": "yes"}, follow=True)

    assert answer.status_code in (403, 404, 405)
    assert b"stranger-" not in answer.content
    assert {model: type(row).objects.filter(pk=row.pk).values().get() for model, row in strange.items()} == before


def test_the_routes_are_those_of_all_models():
    assert {"document", "chunk", "entity", "websource", "searchprovider", "ingestbatch"} <= set(map(model_of, ROUTES))
    assert {Chunk, Entity, EvalRun, KnowledgeBase} <= set(apps.get_app_config("kb").get_models())
