import threading

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kb.operations.services import monitoring
from tests import factories
from tests.interleaving import PATIENCE

pytestmark = pytest.mark.django_db

URLS = ("/metrics", "/metrics/", "/api/v1/metrics", "/api/v1/metrics/")
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    monkeypatch.setattr(monitoring, "PATIENCE_SECONDS", PATIENCE)


@pytest.fixture
def anonymous(anonymous):
    """A scraper of this machine."""
    anonymous.defaults["SERVER_NAME"] = "localhost"
    return anonymous


def _families(response):
    return {family.name: family for family in text_string_to_metric_families(response.content.decode())}


@pytest.mark.parametrize("url", URLS)
def test_the_metrics_are_text_for_prometheus(anonymous, url):
    response = anonymous.get(url)

    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert {"zhiku_searches", "zhiku_bm25_cache_events", "zhiku_search_seconds"} <= _families(response).keys()


def test_a_scraper_that_asks_for_openmetrics_gets_it(anonymous):
    response = anonymous.get("/metrics", headers={"Accept": OPENMETRICS})

    assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert list(openmetrics.text_string_to_metric_families(response.content.decode()))


def _searches(anonymous, outcome):
    samples = _families(anonymous.get("/metrics"))["zhiku_searches"].samples
    return sum(each.value for each in samples if each.labels == {"outcome": outcome} and each.name.endswith("_total"))


@pytest.mark.parametrize(
    ("query", "model", "tokenizer_id", "outcome"),
    [
        ("带薪年假", "hashing", None, "found"),
        ("chromodynamics", "hashing", None, "none"),
        ("带薪年假", "nobody/no-such-model", "old", "unavailable"),
    ],
)
def test_a_search_through_the_api_counts(client, anonymous, kb, document, query, model, tokenizer_id, outcome):
    kb.embedding_model, kb.tokenizer_id = model, tokenizer_id or kb.tokenizer_id
    kb.save()
    before = _searches(anonymous, outcome)

    request = {
        "query": query,
        "knowledge_base_ids": [kb.pk],
        "score_threshold": 0.2,
        "overrides": {"enable_fts": False, "lexical_fallback": False},  # they would answer where the others cannot
    }
    client.post("/api/v1/search/", request, format="json")

    assert _searches(anonymous, outcome) == before + 1


def test_the_sizes_of_the_shared_tiers_are_told(anonymous):
    families = _families(anonymous.get("/metrics"))

    for name in ("zhiku_bm25_database_bytes", "zhiku_bm25_redis_memory_bytes"):
        assert families[name].samples[0].value > 0


def test_a_tier_that_cannot_be_asked_is_left_out(anonymous, settings):
    settings.CACHES = {**settings.CACHES, "bm25": settings.CACHES["bm25"] | {"LOCATION": "redis://127.0.0.1:1/0"}}

    families = _families(anonymous.get("/metrics"))

    assert "zhiku_bm25_redis_memory_bytes" not in families
    assert "zhiku_bm25_database_bytes" in families


def test_a_tier_that_does_not_answer_in_time_is_not_waited_for(anonymous, monkeypatch):
    release, answered = threading.Event(), threading.Event()

    def read():
        release.wait(PATIENCE)
        answered.set()

    monkeypatch.setattr(monitoring, "PATIENCE_SECONDS", 0)
    monkeypatch.setattr(monitoring, "READERS", ((read, "zhiku_late", "Read too late"),))

    families = _families(anonymous.get("/metrics"))

    assert "zhiku_searches" in families
    assert "zhiku_late" not in families
    assert not answered.is_set()
    release.set()  # one that had not begun yet has been cancelled and never will


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("sent", [None, "Bearer wrong", "Basic s3cret", "Bearer s3cret-and-more", "s3cret", "Bearer é"])
def test_where_there_is_a_token_no_other_credentials_open_them(anonymous, settings, url, sent):
    settings.METRICS_TOKEN = "s3cret"

    response = anonymous.get(url, headers={"Authorization": sent} if sent else {})

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.json()["code"] == "authentication_failed"
    assert "METRICS_TOKEN" in response.json()["detail"]


def test_an_api_key_is_no_token_of_the_metrics(client_with, settings, owner):
    settings.METRICS_TOKEN = "s3cret"
    _, secret = factories.make_api_key(owner)

    assert client_with(secret).get("/metrics").status_code == 401


def test_the_token_opens_them(anonymous, settings):
    settings.METRICS_TOKEN = "s3cret"

    assert anonymous.get("/metrics", headers={"Authorization": "bearer s3cret"}).status_code == 200


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "where",
    [
        {"REMOTE_ADDR": "10.0.0.9"},
        {"REMOTE_ADDR": ""},  # behind a socket, of which only a proxy knows
        {"SERVER_NAME": "zhiku.example.org"},
        {"HTTP_X_FORWARDED_FOR": "127.0.0.1"},
        {"HTTP_X_REAL_IP": "127.0.0.1"},
        {"HTTP_FORWARDED": "for=127.0.0.1"},
    ],
    ids=str,
)
def test_without_a_token_no_other_machine_reads_them(anonymous, settings, url, where):
    settings.ALLOWED_HOSTS = ["localhost", "zhiku.example.org"]

    assert anonymous.get(url, **where).status_code == 401


@pytest.mark.parametrize("where", [{"REMOTE_ADDR": "::1"}, {"SERVER_NAME": "127.0.0.1"}], ids=str)
def test_without_a_token_this_machine_reads_them(anonymous, settings, where):
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1"]

    assert anonymous.get("/metrics", **where).status_code == 200


def test_with_a_token_another_machine_reads_them(anonymous, settings):
    settings.METRICS_TOKEN = "s3cret"

    answer = anonymous.get("/metrics", REMOTE_ADDR="10.0.0.9", headers={"Authorization": "Bearer s3cret"})

    assert answer.status_code == 200
