"""Every route, method, parameter and field of the API, given the ids of another tenant."""

import re

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction

from tests.isolation.conftest import make_callers
from tests.isolation.openapi import fields, operations, query_parameters, sample
from tests.isolation.routes import PARAMETER, foreign_values, routes
from tests.isolation.rules import BODY, FIRST_PART, NO_ID, PATH, QUERY
from tests.isolation.world import STRANGER

PREFIX = "api/v1/"
METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
PATHS = [route for route in routes(PREFIX) if route.parameters]
OPERATIONS = {(each.method, each.path): each for each in operations()}
BODIES = [each for each in OPERATIONS.values() if any(path in BODY for path in fields(each))]
QUERIES = [each for each in OPERATIONS.values() if any(name in QUERY for name in query_parameters(each))]
VOLATILE = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d+\.\d+(e-?\d+)?")
"""Ids of traces and milliseconds."""


@pytest.fixture
def world(standing_world):
    return standing_world


@pytest.fixture(scope="module")
def callers(world_of_the_file):
    return make_callers(world_of_the_file)


def kinds_of(route):
    """What the parameters of an address are ids of.

    Raises:
        KeyError: one has no rule.
    """
    first = route.path.removeprefix(PREFIX).split("/")[0]
    return [FIRST_PART[first] if name == "pk" else PATH[name] for name in route.parameters]


def ids_with_numbers(ids):
    return {**ids, "number_one": 1, "number_two": 2}


def seen(response):
    """Status and body, without what differs between two calls at any rate; reading a stream closes it."""
    body = b"".join(response) if response.streaming else response.content
    return response.status_code, VOLATILE.sub(b"?", body)


def ask(world, client, method, url, body=None, body_format="json"):
    """One request whose changes are taken back; it may neither fail, nor show or change anything of the other tenant."""
    with transaction.atomic():
        arguments = {} if method in {"get", "head"} else {"data": body or {}, "format": body_format}
        status, content = seen(getattr(client, method)(url, **arguments))
        changed = world.changes()
        transaction.set_rollback(True)
    assert status < 500, (method, url, content)
    assert STRANGER.encode() not in content.replace(STRANGER.encode() if STRANGER in _sent(url, body) else b"\0", b"")
    assert not changed, (method, url)
    return status, content


def _sent(url, body):
    return f"{url} {body}"


def without(content, ids):
    """A body without the ids that it may repeat, nor any other: what is made and taken back takes a new one each time."""
    for value in sorted((str(value) for value in ids.values()), key=len, reverse=True):
        if len(value) > 1:
            content = content.replace(value.encode(), b"#")
    return VOLATILE.sub(b"?", re.sub(rb"(?<!\d)[89]\d{8}(?!\d)", b"#", content))


@pytest.mark.parametrize("route", PATHS, ids=lambda route: route.path)
def test_ids_in_the_path(world, callers, route):
    kinds = kinds_of(route)
    mine, theirs, missing = map(ids_with_numbers, (world.mine.ids, world.theirs.ids, world.missing))
    body = _body(route)

    for name, client in callers.items():
        pairs = zip(
            foreign_values(route.parameters, kinds, mine, theirs),
            foreign_values(route.parameters, kinds, mine, missing),
            strict=True,
        )
        for foreign, absent in pairs:
            if not set(map(str, foreign.values())) & set(map(str, world.theirs.ids.values())):
                continue  # only numbers that everyone has
            for method in METHODS:
                found = ask(world, client, method, route.url(foreign), body)
                other = ask(world, client, method, route.url(absent), body)
                assert found[0] in {403, 404, 405}, (name, method, route.url(foreign), found)
                assert found[0] != 403 or name == "read key" or method == "options", (name, method, found)
                assert (found[0], without(found[1], foreign)) == (other[0], without(other[1], absent))


@pytest.mark.parametrize("operation", BODIES, ids=lambda each: f"{each.method} {each.path}")
def test_ids_in_the_body(world, callers, operation):
    for path in fields(operation):
        if path in BODY:
            _try_field(world, callers, operation, path)


@pytest.mark.parametrize("operation", QUERIES, ids=lambda each: f"{each.method} {each.path}")
def test_ids_in_the_query(world, callers, operation):
    mine, theirs, missing = map(ids_with_numbers, (world.mine.ids, world.theirs.ids, world.missing))
    for parameter in query_parameters(operation):
        if parameter not in QUERY:
            continue
        url = _own_url(operation, world)
        for client in callers.values():
            kind = QUERY[parameter]
            own = ask(world, client, operation.method, f"{url}?{parameter}={mine[kind]}")
            assert own[0] == 200
            found = ask(world, client, operation.method, f"{url}?{parameter}={theirs[kind]}")
            other = ask(world, client, operation.method, f"{url}?{parameter}={missing[kind]}")
            assert (found[0], without(found[1], world.theirs.ids)) == (other[0], without(other[1], world.missing))


def test_every_parameter_and_field_has_a_rule():
    for route in PATHS:
        kinds_of(route)
    for operation in OPERATIONS.values():
        for path, schema in fields(operation).items():
            if looks_like_an_id(path, schema):
                assert path in BODY or path in NO_ID, f"{operation.method} {operation.path}: {path} has no rule"
        for name, schema in query_parameters(operation).items():
            if looks_like_an_id(name, schema):
                assert name in QUERY or name in NO_ID, f"{operation.method} {operation.path}: ?{name} has no rule"


def looks_like_an_id(path, schema):
    """Whether a field could name a row: by its name, or by being a whole number."""
    items = schema.get("items", schema)
    return bool(re.search(r"(^|[._])ids?$", path)) or "integer" in str(items.get("type", ""))


def test_every_address_of_the_api_is_documented_or_has_no_parameter():
    documented = {re.sub(r"{\w+}", "{}", path) for _method, path in OPERATIONS}
    for route in PATHS:
        assert "/" + PARAMETER.sub("{}", route.path) in documented, route.path


def _body(route):
    shape = "/" + PARAMETER.sub("{}", route.path)
    for operation in OPERATIONS.values():
        if re.sub(r"{\w+}", "{}", operation.path) == shape and operation.body and operation.is_json:
            return sample(operation.body)
    return {}


def _own_url(operation, world):
    first = operation.path.removeprefix("/" + PREFIX).split("/")[0]
    ids = ids_with_numbers(world.mine.ids)

    def value(match):
        name = match[1]
        kind = FIRST_PART[first] if name in {"id", "pk"} else PATH[name]
        return str(ids[kind])

    return re.sub(r"{(\w+)}", value, operation.path)


def _try_field(world, callers, operation, path):
    url = _own_url(operation, world)
    body_format = "json" if operation.is_json else "multipart"
    for name, client in callers.items():
        if name == "read key" and operation.writes:
            continue
        own = ask(world, client, operation.method, url, _with(operation, world, {path: world.mine.ids}), body_format)
        if name == "bound key" and own[0] == 403:
            continue  # it makes nothing beside its knowledge bases, whatever it names
        assert own[0] < 400 or f"{operation.method} {operation.path}" in NOT_TAKEN, (name, url, path, own)
        found = ask(
            world, client, operation.method, url, _with(operation, world, {path: world.theirs.ids}), body_format
        )
        other = ask(world, client, operation.method, url, _with(operation, world, {path: world.missing}), body_format)
        assert (found[0], without(found[1], world.theirs.ids)) == (other[0], without(other[1], world.missing)), path


ALSO = {
    "post /api/v1/ask/": ("knowledge_base_ids",),
    "post /api/v1/compare/": ("knowledge_base_ids",),
    "post /api/v1/why-not/": ("chunk_id",),
}
"""Fields that a body needs besides those that the schema calls required."""
VALUES = {
    "post /api/v1/knowledge-bases/{kb_id}/documents/": {"text": "Words of a document."},
    "post /api/v1/sources/": {"kind": "page", "url": "https://mine.example/a"},
    "post /api/v1/sources/test/": {"kind": "page", "url": "https://mine.example/a"},
}
"""What the schema cannot tell of a value."""
NOT_TAKEN = {
    "patch /api/v1/concepts/{id}/",  # the address and the body name the same one
    "patch /api/v1/folders/{id}/",  # likewise
    "post /api/v1/entities/{id}/merge/",  # into itself, as the address and the body name the same one here
    "post /api/v1/eval-sets/import/",  # the file is none
    "post /api/v1/knowledge-bases/{id}/embedding-model/evaluate/",  # there is no second model yet
    "post /api/v1/sources/test/",  # no network is reached
}
"""Bodies of one's own that are refused for another reason, after their ids were looked at."""


def _with(operation, world, whose):
    """A body that is taken, with the ids of its fields from `whose`, else one's own."""
    name = f"{operation.method} {operation.path}"
    made = sample(operation.body, only_required=True) | VALUES.get(name, {})
    if "file" in made:
        made["file"] = SimpleUploadedFile("mine.zip", b"none", content_type="application/zip")
    if "files" in made:
        made["files"] = [SimpleUploadedFile("mine.txt", b"Words of a file.")]
    for path, kind in BODY.items():
        field = fields(operation).get(path)
        if field is None or (path not in whose and not _is_needed(operation, path)):
            continue
        ids = whose.get(path, world.mine.ids)
        value = [ids[each] for each in kind] if isinstance(kind, list) else ids[kind]
        _put(made, path.split("."), value)
    return made


def _is_needed(operation, path):
    also = ALSO.get(f"{operation.method} {operation.path}", ())
    return path in operation.body.get("required", ()) or path in also


def _put(body, path, value):
    for part in path[:-1]:
        body = body.setdefault(part, {})
    body[path[-1]] = str(value) if path[-1] == "conversation_id" else value
