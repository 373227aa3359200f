import pytest
from django.core.exceptions import TooManyFieldsSent
from django.db import OperationalError

from kb.api.errors import exception_handler, flatten
from kb.services.indexing import Superseded


def test_a_database_out_of_reach_is_503_with_retry_after():
    response = exception_handler(OperationalError("connection refused on 10.0.0.1"), {})

    assert (response.status_code, response.data["code"]) == (503, "unavailable")
    assert int(response.headers["Retry-After"]) > 0
    assert "10.0.0.1" not in response.data["detail"]


def test_a_model_that_changed_meanwhile_is_409():
    assert exception_handler(Superseded(), {}).status_code == 409


def test_a_form_with_too_many_fields_is_413():
    assert exception_handler(TooManyFieldsSent("too many"), {}).status_code == 413


def test_a_fault_of_the_code_is_left_to_the_server():
    assert exception_handler(ZeroDivisionError(), {}) is None


@pytest.mark.parametrize(
    ("detail", "flat"),
    [
        (["wrong"], {"non_field_errors": ["wrong"]}),
        ({"name": ["a", "b"]}, {"name": ["a", "b"]}),
        ({"ids": {"1": ["wrong"]}}, {"ids.1": ["wrong"]}),
        ({"rows": [{}, {"name": ["wrong"]}]}, {"rows.1.name": ["wrong"]}),
        ({"name": "one"}, {"name": ["one"]}),
    ],
)
def test_field_errors_are_flattened_to_dotted_paths(detail, flat):
    assert flatten(detail) == flat


@pytest.mark.parametrize("path", ["nonsense/", "knowledge-bases", "documents/abc/", "search"])
@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_a_path_without_an_endpoint_is_404_in_json(anonymous, path, method):
    response = getattr(anonymous, method)(f"/api/v1/{path}")

    assert (response.status_code, response.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("method", ["put", "patch", "delete", "options"])
def test_a_method_that_an_endpoint_lacks_is_405_in_json(client, method):
    response = getattr(client, method)("/api/v1/knowledge-bases/")

    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert set(response.headers["Allow"].split(", ")) == {"GET", "HEAD", "POST"}
