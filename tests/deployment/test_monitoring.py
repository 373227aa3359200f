"""Dashboard and alerts name only what the code counts."""

import json
import re
from datetime import timedelta

import pytest
import yaml
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from kb.base.telemetry import requests
from kb.ingest.services.documents import document_requeue
from kb.models import Document
from kb.operations.services import monitoring
from tests.deployment.compose import ROOT
from tests.factories import make_document, make_kb
from tests.interleaving import PATIENCE

SUFFIX = re.compile(r"_(total|bucket|sum|count)$")


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    monkeypatch.setattr(monitoring, "PATIENCE_SECONDS", PATIENCE)


def counted():
    code = (ROOT / "kb/base/metrics.py").read_text() + (ROOT / "kb/operations/services/monitoring.py").read_text()
    return set(re.findall(r'"(zhiku_[a-z0-9_]+)"', code))


def named(expression):
    return {SUFFIX.sub("", name) for name in re.findall(r"\bzhiku_[a-z0-9_]+", expression)}


def test_every_alert_is_of_a_metric_and_says_what_to_do():
    rules = yaml.safe_load((ROOT / "docs/monitoring/alerts.yml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert named(rule["expr"]) <= counted(), rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_every_panel_is_of_a_metric():
    panels = json.loads((ROOT / "docs/monitoring/grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        for target in panel["targets"]:
            assert named(target["expr"]), panel["title"]
            assert named(target["expr"]) <= counted(), panel["title"]


def test_a_request_is_counted_by_route_and_never_by_its_id(db, client):
    client.get("/api/v1/documents/424242/")
    client.generic("BREW", "/api/v1/health/")
    text = client.get("/metrics", SERVER_NAME="localhost").content.decode()
    samples = {
        (sample.labels["route"], sample.labels["method"], sample.labels["status"])
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "zhiku_http_requests_total"
    }
    assert any("documents/<int:pk>" in route and status == "4xx" for route, _, status in samples)
    assert "424242" not in text
    assert {method for _, method, _ in samples} <= {*requests.METHODS, "other"}
    assert any(method == "other" for _, method, _ in samples)


def test_the_queue_is_told_of(db, client):
    text = client.get("/metrics", SERVER_NAME="localhost").content.decode()
    for name in ("zhiku_documents_waiting", "zhiku_documents_oldest_waiting_seconds", "zhiku_queue_length"):
        assert f"\n{name} " in text


def test_a_document_that_is_processed_once_more_waits_since_then(transactional_db, client):
    document = make_document(make_kb(), "保修")
    an_hour = timedelta(hours=1)
    Document.objects.update(created_at=timezone.now() - 9 * an_hour, waiting_since=timezone.now() - an_hour)
    Document.objects.update(status=Document.Status.PENDING)
    assert 3_600 <= _gauge(client, "zhiku_documents_oldest_waiting_seconds") < 7_200
    document_requeue(document)
    assert _gauge(client, "zhiku_documents_oldest_waiting_seconds") < 600


def _gauge(client, name):
    families = text_string_to_metric_families(client.get("/metrics", SERVER_NAME="localhost").content.decode())
    return next(family.samples[0].value for family in families if family.name == name)
