import pytest

from kb.models import KnowledgeBaseVersion, Membership
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/performance/cache/invalidate"


def versions(kb):
    row = KnowledgeBaseVersion.objects.get(pk=kb.pk)
    return row.version, row.content_version


@pytest.fixture
def other(owner):
    return factories.make_kb(owner, "faq")


def test_names_the_knowledge_bases_whose_responses_are_not_served_again(client, kb, other):
    before, untouched = versions(kb), versions(other)

    response = client.post(URL, {"knowledge_base_ids": [kb.pk]}, format="json")

    assert (response.status_code, response.json()) == (200, {"invalidated": [kb.pk]})
    assert versions(kb)[0] == before[0]
    assert versions(kb)[1] > before[1]
    assert versions(other) == untouched


def test_without_ids_all_that_the_caller_may_change(client, kb, other):
    factories.make_kb()

    assert client.post(URL, {}, format="json").json() == {"invalidated": sorted([kb.pk, other.pk])}


def test_a_request_without_a_body_is_one_without_ids(client, kb):
    assert client.post(URL).json() == {"invalidated": [kb.pk]}


def test_keyword_indexes_too_where_asked_for(client, kb):
    before = versions(kb)

    client.post(URL, {"knowledge_base_ids": [kb.pk], "bm25": True}, format="json")

    assert versions(kb)[0] > before[0]


def test_an_editor_may(client_of, kb):
    editor = client_of(factories.make_member(kb, Membership.Role.EDITOR))

    assert editor.post(URL, {"knowledge_base_ids": [kb.pk]}, format="json").status_code == 200


def test_a_viewer_may_not(client_of, kb):
    viewer = client_of(factories.make_member(kb))

    response = viewer.post(URL, {"knowledge_base_ids": [kb.pk]}, format="json")

    assert response.status_code == 403
    assert "ask its owner" in response.json()["detail"]


def test_what_the_caller_may_not_see_is_404(client, kb):
    hidden = factories.make_kb()

    response = client.post(URL, {"knowledge_base_ids": [kb.pk, hidden.pk]}, format="json")

    assert response.status_code == 404
    assert str(hidden.pk) in response.json()["detail"]


def test_a_key_needs_the_scope_write(client_with, owner, kb):
    _, secret = factories.make_api_key(owner, kb, scope="read")

    assert client_with(secret).post(URL, {}, format="json").status_code == 403


def test_a_key_reaches_the_knowledge_bases_it_is_bound_to(client_with, owner, kb, other):
    _, secret = factories.make_api_key(owner, kb, scope="write")

    assert client_with(secret).post(URL, {}, format="json").json() == {"invalidated": [kb.pk]}
    assert client_with(secret).post(URL, {"knowledge_base_ids": [other.pk]}, format="json").status_code == 404


def test_nobody_without_credentials(anonymous):
    assert anonymous.post(URL, {}, format="json").status_code == 401


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"knowledge_base_ids": []}, "knowledge_base_ids"),
        ({"knowledge_base_ids": None}, "knowledge_base_ids"),
        ({"knowledge_base_ids": 1}, "knowledge_base_ids"),
        ({"knowledge_base_ids": [0]}, "knowledge_base_ids"),
        ({"knowledge_base_ids": [2**63]}, "knowledge_base_ids"),
        ({"knowledge_base_ids": ["1"]}, "knowledge_base_ids"),
        ({"bm25": "yes"}, "bm25"),
        ({"kb": [1]}, "kb"),
    ],
)
def test_a_request_that_is_not_valid_names_the_field(client, body, field):
    response = client.post(URL, body, format="json")

    assert response.status_code == 400
    assert any(name.split(".")[0] == field for name in response.json()["fields"])
