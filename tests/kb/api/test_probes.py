import pytest
from django.db.migrations.recorder import MigrationRecorder

pytestmark = pytest.mark.django_db


def test_a_live_process_says_so_without_a_query(anonymous, django_assert_num_queries):
    with django_assert_num_queries(0):
        response = anonymous.get("/api/v1/health/")

    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_a_process_with_its_services_is_ready(anonymous):
    response = anonymous.get("/api/v1/ready/")

    assert (response.status_code, response.json()) == (200, {"status": "ready"})


def test_a_process_with_an_unapplied_migration_is_not_ready(anonymous):
    MigrationRecorder.Migration.objects.filter(app="kb").delete()

    response = anonymous.get("/api/v1/ready/")

    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert "migrations" in response.json()["detail"]
    assert int(response.headers["Retry-After"]) > 0


def test_the_probes_ignore_credentials_that_are_not_valid(anonymous):
    assert anonymous.get("/api/v1/health/", headers={"Authorization": "Bearer nonsense"}).status_code == 200
