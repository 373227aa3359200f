"""What a request may hold at most; each excess is told with its limit, and none reaches the database."""

import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.web.api.fields import MAX_JSON_DEPTH
from tests.isolation.openapi import fields, operations

pytestmark = pytest.mark.django_db
SEARCH = "/api/v1/search/"
LONG_TEXT = {"post /api/v1/knowledge-bases/{kb_id}/documents/": "text"}
"""Bounded by the size of the body."""


def nested(depth):
    return "[" * depth + "]" * depth


def post(client, body):
    return client.generic("POST", SEARCH, body, content_type="application/json")


def test_a_body_that_is_too_large_is_413_before_it_is_read(client, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000_000

    response = post(client, json.dumps({"query": "x" * 1_000_001}))

    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_a_form_with_too_many_fields_is_413(client, kb, settings):
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 10
    form = {f"field{number}": "x" for number in range(11)}

    response = client.post(f"/api/v1/knowledge-bases/{kb.pk}/documents/", form, format="multipart")

    assert (response.status_code, response.json()["code"]) == (413, "too_large")


def test_a_form_with_too_many_files_is_413(client, kb, settings):
    settings.DATA_UPLOAD_MAX_NUMBER_FILES = 2
    files = [SimpleUploadedFile(f"{number}.txt", b"text") for number in range(3)]

    response = client.post(f"/api/v1/knowledge-bases/{kb.pk}/batches/", {"files": files}, format="multipart")

    assert (response.status_code, response.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH + 1, 900, 100_000])
def test_json_that_is_nested_too_deeply_is_400(client, depth):
    response = post(client, nested(depth))

    assert response.status_code == 400
    assert str(MAX_JSON_DEPTH) in response.json()["detail"]


def test_json_of_the_greatest_depth_is_read(client):
    response = post(client, '{"a":' + nested(MAX_JSON_DEPTH - 1) + "}")

    assert response.json()["code"] == "invalid"  # for what it lacks


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query", "x" * 2_001),
        ("knowledge_base_ids", list(range(1, 22))),
        ("history", [{"role": "user", "text": "x"}] * 101),
        ("top_k", 201),
    ],
)
def test_a_field_beyond_its_limit_is_named(client, kb, field, value):
    body = {"query": "x", "knowledge_base_ids": [kb.pk], field: value}

    response = client.post(SEARCH, body, format="json")

    assert response.status_code == 400
    assert field in response.json()["fields"]


@pytest.mark.parametrize("operation", operations(), ids=lambda each: f"{each.method} {each.path}")
def test_every_list_and_text_of_a_body_has_a_greatest_length(operation):
    unbounded = [path for path, schema in fields(operation).items() if is_unbounded(schema)]

    assert set(unbounded) <= {LONG_TEXT.get(f"{operation.method} {operation.path}")}


def is_unbounded(schema):
    kind = str(schema.get("type", ""))
    if "array" in kind:
        return "maxItems" not in schema
    is_text = "string" in kind and "enum" not in schema and "format" not in schema
    return is_text and "maxLength" not in schema
