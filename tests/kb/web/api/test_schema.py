import json
import re

import pytest
import yaml
from django.core.management import call_command
from django.utils.translation import override
from jsonschema import Draft202012Validator

from kb.api import urlpatterns
from kb.ingest.parser.archives import ARCHIVE_EXTENSIONS
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS

SILENT = {"^metrics/?$", "schema/", "docs/", ""}


@pytest.fixture(scope="module", params=["en", "zh-hans"])
def schema(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("schema") / "schema.json"
    with override(request.param):  # the labels of choices play a part in the names of enumerations
        call_command("spectacular", "--validate", "--fail-on-warn", format="openapi-json", file=str(file))
    return json.loads(file.read_text())


def _operations(schema):
    return {(path, method): each for path, methods in schema["paths"].items() for method, each in methods.items()}


def test_every_endpoint_is_described(schema):
    routes = {str(each.pattern) for each in urlpatterns} - SILENT
    named = {re.sub(r"<\w+:(\w+)>", lambda match: "{" + match[1].replace("pk", "id") + "}", route) for route in routes}

    assert {path.removeprefix("/api/v1/") for path in schema["paths"]} == named


def test_every_operation_for_callers_describes_401_and_its_success(schema):
    for (path, _), operation in _operations(schema).items():
        if path not in {"/api/v1/health/", "/api/v1/ready/"}:
            assert "401" in operation["responses"], path
            assert {"apiKey": []} in operation["security"], path
        assert any(status.startswith("2") for status in operation["responses"]), path


def test_every_operation_on_an_object_describes_404(schema):
    for (path, _), operation in _operations(schema).items():
        if "{" in path:
            assert "404" in operation["responses"], path


def test_requests_allow_no_unknown_fields(schema):
    requests = {name: each for name, each in schema["components"]["schemas"].items() if name.endswith("Request")}

    assert requests
    assert all(each["additionalProperties"] is False for each in requests.values())


def _media(schema):
    """Each body of a request or a response that is described."""
    for (path, method), operation in _operations(schema).items():
        bodies = {"request": operation.get("requestBody", {}), **operation["responses"]}
        for name, body in bodies.items():
            for kind, media in body.get("content", {}).items():
                yield f"{method} {path} {name} {kind}", media


def _examples(media):
    return [media["example"]] if "example" in media else [each["value"] for each in media.get("examples", {}).values()]


def test_every_body_has_an_example_but_for_files(schema):
    without = {name for name, media in _media(schema) if not _examples(media)}

    assert without
    assert all(name.endswith(("octet-stream", "zip")) or " image/" in name for name in without), without


def test_every_example_is_valid(schema):
    for name, media in _media(schema):
        validator = Draft202012Validator({**media["schema"], "components": schema["components"]})
        for example in _examples(media):
            assert [error.message for error in validator.iter_errors(example)] == [], name


def test_every_operation_for_callers_may_be_throttled_or_out_of_order(schema):
    for (path, _), operation in _operations(schema).items():
        if path not in {"/api/v1/health/", "/api/v1/ready/"}:
            assert {"406", "429", "503"} <= operation["responses"].keys(), path


def test_every_error_has_code_detail_and_remedy(schema):
    for name, media in _media(schema):
        if re.search(r" [45]\d\d ", name):
            for example in _examples(media):
                assert {"code", "detail", "remedy"} <= example.keys(), name
                assert all(example[key] for key in ("code", "detail", "remedy")), name


def test_what_can_be_changed_documents_its_etag(schema):
    for kind in ("documents", "chunks", "knowledge-bases"):
        methods = schema["paths"][f"/api/v1/{kind}/{{id}}/"]
        headers = {name: {each["name"] for each in methods[name]["parameters"]} for name in ("get", "patch", "delete")}
        assert "If-None-Match" in headers["get"]
        assert "If-Match" in headers["patch"] & headers["delete"]
        assert "ETag" in methods["get"]["responses"]["200"]["headers"]
        assert {"304"} <= methods["get"]["responses"].keys()
        assert {"412"} <= methods["patch"]["responses"].keys()


def test_search_has_an_example(schema):
    content = schema["paths"]["/api/v1/search/"]["post"]["requestBody"]["content"]

    assert content["application/json"]["examples"]


def test_an_invalid_request_is_described_with_its_fields(schema):
    assert "fields" in schema["components"]["schemas"]["Invalid"]["properties"]


@pytest.mark.django_db
def test_the_documentation_loads_nothing_from_elsewhere(client):
    page = client.get("/api/v1/docs/").content.decode()

    assert "swagger-ui" in page
    assert not re.search(r"(?:src|href)=[\"'](?:https?:)?//", page)


@pytest.mark.django_db
def test_the_schema_is_served(client):
    served = client.get("/api/v1/schema/")

    assert served.status_code == 200
    assert yaml.load(served.content, Loader=yaml.CSafeLoader)["paths"]


def test_an_upload_names_every_kind_of_file_that_can_be_read(schema):
    told = schema["components"]["schemas"]["DocumentUploadRequest"]["properties"]["file"]["description"]
    assert set(re.findall(r"\.\w+", told)) == {*SUPPORTED_EXTENSIONS, *ARCHIVE_EXTENSIONS}


def _alternatives(node):
    if isinstance(node, dict):
        if isinstance(node.get("oneOf"), list):
            yield node["oneOf"]
        for each in node.values():
            yield from _alternatives(each)
    elif isinstance(node, list):
        for each in node:
            yield from _alternatives(each)


def test_a_value_that_may_be_null_may_be_null(schema):
    optional = [found for found in _alternatives(schema) if {"type": "null"} in found]
    assert optional
    for found in optional:
        described = {"components": schema["components"], "oneOf": found}
        assert Draft202012Validator(described).is_valid(None), found


@pytest.mark.parametrize("value", [None, 0.5, "text", ["a"]])
def test_a_difference_of_settings_may_be_of_any_value(schema, value):
    described = schema["components"]["schemas"]["SettingDifference"]
    Draft202012Validator(described).validate({"name": "score_threshold", "before": 0.3, "after": value})
