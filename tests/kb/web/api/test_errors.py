import itertools
import json

import pytest
from django.core.exceptions import TooManyFieldsSent
from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from rest_framework.exceptions import Throttled

from kb.base.errors import Superseded
from kb.base.telemetry.logs import bound
from kb.models import EvalSet, GraphFact, KnowledgeBase
from kb.web.api.errors import BY_CODE, BY_STATUS, bad_request, exception_handler, flatten, remedy_of, server_error
from tests.factories import make_kb


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_a_database_out_of_reach_is_503_with_retry_after(kind):
    response = exception_handler(kind("connection refused on 10.0.0.1"), {})

    assert (response.status_code, response.data["code"]) == (503, "unavailable")
    assert int(response.headers["Retry-After"]) > 0
    assert "10.0.0.1" not in response.data["detail"]


def test_a_model_that_changed_meanwhile_is_409():
    assert exception_handler(Superseded(), {}).status_code == 409


def test_an_object_that_is_gone_since_it_was_found_is_404_and_its_model_is_not_named():
    response = exception_handler(GraphFact.DoesNotExist("GraphFact matching query does not exist."), {})

    assert (response.status_code, response.data["code"]) == (404, "not_found")
    assert "GraphFact" not in str(response.data)


@pytest.mark.django_db(transaction=True)
def test_a_row_whose_owner_is_deleted_at_the_same_moment_is_503_and_worth_another_try():
    kb = make_kb()
    gone = kb.pk
    kb.delete()
    with pytest.raises(IntegrityError) as caught:
        EvalSet.objects.create(knowledge_base_id=gone, name="questions")

    response = exception_handler(caught.value, {})

    assert (response.status_code, response.data["code"]) == (503, "deleted_meanwhile")
    assert response.headers["Retry-After"] == "1"


@pytest.mark.django_db
def test_two_rows_of_one_name_are_a_fault_where_nobody_expects_them():
    make_kb(name="one")
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        KnowledgeBase.objects.bulk_create([KnowledgeBase(name="one", owner=KnowledgeBase.objects.get().owner)])

    assert exception_handler(caught.value, {}).status_code == 500


def test_a_form_with_too_many_fields_is_413():
    assert exception_handler(TooManyFieldsSent("too many"), {}).status_code == 413


def test_a_fault_of_the_code_is_500_in_json_and_tells_nothing_of_its_insides(caplog):
    response = exception_handler(ZeroDivisionError("secret of 10.0.0.1"), {})

    assert (response.status_code, response.data["code"]) == (500, "internal_error")
    assert "secret" not in str(response.data)
    assert "secret" in caplog.text


def test_a_fault_names_the_id_that_the_log_knows_the_request_by():
    with bound(request_id="0af7651916cd43dd"):
        response = exception_handler(ZeroDivisionError(), {})

    assert response.data["request_id"] == "0af7651916cd43dd"


@pytest.mark.parametrize(("view", "status"), [(bad_request, 400), (server_error, 500)])
def test_what_fails_before_a_view_is_json_under_the_api_and_a_page_elsewhere(rf, view, status):
    arguments = (ValueError("bad host"),) if view is bad_request else ()

    inside, outside = (view(rf.get(path), *arguments) for path in ("/api/v1/search/", "/admin/"))

    assert (inside.status_code, outside.status_code) == (status, status)
    assert json.loads(inside.content).keys() == {"code", "detail", "remedy"}
    assert outside["Content-Type"].startswith("text/html")


def test_every_error_has_a_remedy():
    errors = itertools.product([*BY_CODE, "something_new"], [*BY_STATUS, 418])

    assert [error for error in errors if not remedy_of(*error).endswith(".")] == []


def test_a_throttled_caller_is_told_when_to_go_on():
    response = exception_handler(Throttled(wait=2.1), {})

    assert (response.status_code, response.data["code"]) == (429, "throttled")
    assert response.headers["Retry-After"] == "3"
    assert "Retry-After" in response.data["remedy"]


@pytest.mark.django_db
def test_what_the_caller_cannot_accept_is_406_in_json(client):
    response = client.get("/api/v1/knowledge-bases/", headers={"Accept": "application/xml"})

    assert (response.status_code, response.json()["code"]) == (406, "not_acceptable")
    assert response.json()["remedy"]


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


def test_the_error_of_a_field_is_in_the_language_of_its_request_whichever_was_asked_before(client, kb):
    url, body = f"/api/v1/knowledge-bases/{kb.pk}/entities/", {"name": "x" * 500}

    english, chinese, again = (
        client.post(url, body, format="json", headers={"accept-language": language}).json()["fields"]
        for language in ("en", "zh-hans", "en")
    )

    assert english == again == {"name": ["Ensure this field has no more than 200 characters."]}
    assert "200" in str(chinese)
    assert chinese != english
