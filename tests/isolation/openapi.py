"""The OpenAPI schema as the tests read it: operations, their fields, and bodies that fit."""

from dataclasses import dataclass, field
from functools import cache

from django.utils.translation import override
from drf_spectacular.generators import SchemaGenerator


@dataclass(frozen=True, eq=False)
class Operation:
    """One method of one path; `body` is the schema of its body with all references resolved."""

    method: str
    path: str
    is_json: bool
    writes: bool
    parameters: tuple = ()
    body: dict = field(default_factory=dict)


@cache
def description():
    """In English. What is read of it as tests are collected is made once for all files."""
    with override("en"):
        return SchemaGenerator().get_schema(request=None, public=True)


@cache
def operations():
    schema = description()
    components = schema["components"]["schemas"]
    found = []
    for path, methods in schema["paths"].items():
        for method, described in methods.items():
            content = described.get("requestBody", {}).get("content", {})
            kind = "application/json" if "application/json" in content else next(iter(content), "")
            body = _resolved(content[kind]["schema"], components) if kind else {}
            writes = "403" in described["responses"] and method != "get"
            parameters = tuple(described.get("parameters", ()))
            found.append(Operation(method, path, kind == "application/json", writes, parameters, body))
    return found


def fields(operation):
    """The schema of each field of the body, by its dotted path."""
    return _fields(operation.body, "")


def query_parameters(operation):
    return {each["name"]: each["schema"] for each in operation.parameters if each["in"] == "query"}


def sample(schema, *, only_required=False):
    """A value that fits the schema."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "string")
    kind = next(each for each in kind if each != "null") if isinstance(kind, list) else kind
    if kind == "object":
        required = schema.get("required", ())
        return {
            name: sample(each, only_required=only_required)
            for name, each in schema.get("properties", {}).items()
            if not only_required or name in required
        }
    if kind == "array":
        return [sample(schema.get("items", {}), only_required=only_required)]
    return {"integer": max(1, schema.get("minimum", 1)), "number": 0.5, "boolean": True}.get(kind, "mine")


def _fields(schema, before):
    found = {}
    for name, each in schema.get("properties", {}).items():
        path = f"{before}.{name}" if before else name
        found[path] = each
        found |= _fields(each, path)
        found |= _fields(each.get("items", {}), path + "[]")
    return found


def _resolved(schema, components):
    if "$ref" in schema:
        return _resolved(components[schema["$ref"].rpartition("/")[2]], components)
    for word in ("oneOf", "allOf", "anyOf"):
        if word in schema:
            usable = [each for each in schema[word] if each.get("type") != "null" and each.get("enum") != [""]]
            return _resolved({**usable[0]}, components)
    made = dict(schema)
    if "properties" in made:
        made["properties"] = {name: _resolved(each, components) for name, each in made["properties"].items()}
    if "items" in made:
        made["items"] = _resolved(made["items"], components)
    return made
