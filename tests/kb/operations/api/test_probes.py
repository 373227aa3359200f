import pytest
from django.core.cache import caches
from django.db.migrations.recorder import MigrationRecorder

from kb.base import draining
from kb.base.db.transactions import Purpose, try_lock
from kb.base.findings import State
from kb.operations.services.health import health
from kb.providers import embedding_models
from kb.search import wiring as conf
from tests.factories import make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def loading():
    """What this process knows of itself is as it was afterwards."""
    former = embedding_models.warmth
    yield
    embedding_models.warmth = former
    draining.forget()


@pytest.fixture
def cache_out_of_reach(settings):
    settings.CACHES = {**settings.CACHES, "bm25": {**settings.CACHES["bm25"], "LOCATION": "redis://127.0.0.1:1/1"}}
    former = getattr(caches._connections, "bm25", None)
    if former is not None:
        del caches["bm25"]
    yield
    del caches["bm25"]


def test_a_live_process_says_so_without_a_query(anonymous, django_assert_num_queries):
    with django_assert_num_queries(0):
        response = anonymous.get("/api/v1/health/")

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def states(response):
    return {each["name"]: (each["state"], each["detail"]) for each in response.json()["components"]}


def test_a_process_with_its_services_is_ready(anonymous):
    response = anonymous.get("/api/v1/ready/")

    assert (response.status_code, response.json()["status"]) == (200, "ready")
    names = ("process", "models", "broker", "cache", "disk", "database", "migrations", "page_cache")
    assert states(response) == dict.fromkeys(names, ("ok", ""))


def test_it_costs_three_small_queries(anonymous, django_assert_num_queries):
    anonymous.get("/api/v1/ready/")
    with django_assert_num_queries(3):  # whether the table of migrations is there, what it holds, and who reads in
        anonymous.get("/api/v1/ready/")


def test_while_vectors_are_read_into_memory_it_serves_and_says_so(anonymous):
    with try_lock(Purpose.PAGE_CACHE, 0):
        response = anonymous.get("/api/v1/ready/")
    assert (response.status_code, response.json()["status"]) == (200, "degraded")
    assert states(response)["page_cache"] == ("degraded", "being read in")


def test_a_process_that_loads_its_models_is_not_ready(anonymous, loading):
    embedding_models.warmth = embedding_models.Warmth(is_loading=True)
    response = anonymous.get("/api/v1/ready/")
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert "models" in response.json()["detail"]
    assert anonymous.get("/api/v1/health/").status_code == 200


def test_a_process_whose_models_cannot_be_loaded_serves_and_says_which(anonymous, loading):
    failed = ("BAAI/none", "/srv/models/mine")
    embedding_models.warmth = embedding_models.Warmth(failed=failed)
    response = anonymous.get("/api/v1/ready/")
    assert (response.status_code, response.json()["status"]) == (200, "degraded")
    assert states(response)["models"] == ("degraded", "not loaded: BAAI/none, mine")


def test_warming_up_notes_a_model_that_is_not_there(loading, settings):
    settings.RERANKER_MODEL = ""
    make_kb(embedding_model="BAAI/none")
    conf.warm_up()
    assert embedding_models.warmth == embedding_models.Warmth(failed=("BAAI/none",))


def test_a_process_that_ends_is_not_ready_and_still_alive(anonymous, loading):
    draining.begin()
    response = anonymous.get("/api/v1/ready/")
    assert response.status_code == 503
    assert "process" in response.json()["detail"]
    assert anonymous.get("/api/v1/health/").status_code == 200


def test_without_its_cache_a_process_serves(anonymous, settings, cache_out_of_reach):
    response = anonymous.get("/api/v1/ready/")
    assert (response.status_code, response.json()["status"]) == (200, "degraded")
    assert states(response)["cache"][0] == "degraded"


def test_a_process_with_an_unapplied_migration_is_not_ready(anonymous):
    MigrationRecorder.Migration.objects.filter(app="kb").delete()

    response = anonymous.get("/api/v1/ready/")

    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert "migrations" in response.json()["detail"]
    assert int(response.headers["Retry-After"]) > 0


def test_the_probes_ignore_credentials_that_are_not_valid(anonymous):
    assert anonymous.get("/api/v1/health/", headers={"Authorization": "Bearer nonsense"}).status_code == 200


def test_a_process_with_a_full_disk_serves_and_says_so(anonymous, monkeypatch):
    monkeypatch.setattr(health, "reserve", lambda total: total)
    response = anonymous.get("/api/v1/ready/")
    assert (response.status_code, response.json()["status"]) == (200, "degraded")
    assert states(response)["disk"] == ("degraded", "full")


def test_the_doctor_names_the_full_disk_and_how_much_is_to_be_free(monkeypatch, settings):
    settings.DISK_RESERVE_BYTES = 70 * 1024**2
    assert health.disk_space().state is State.OK
    monkeypatch.setattr(health, "reserve", lambda total: total)
    found = health.disk_space()
    assert found.state is State.BROKEN
    assert "uploads are refused" in str(found.detail)
    assert "more than 70 MB (DISK_RESERVE_MB)" in str(found.remedy)
    assert str(settings.DATA_DIR) in str(found.remedy)
