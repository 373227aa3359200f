"""What the OpenAPI description says beyond the serializers: authentication, and examples by what fields are called."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.utils import OpenApiExample
from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]

from kb.web.api.errors import remedy_of


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "kb.web.api.callers.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:  # noqa: ARG002 - the library's interface
        return {"type": "http", "scheme": "bearer", "description": "An API key of this server."}


class StrictSerializerScheme(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    target_class = "kb.web.api.fields.StrictSerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return {**schema, "additionalProperties": False}


SEARCH_EXAMPLES = [
    OpenApiExample(
        "A question to two knowledge bases",
        value={"query": "年假可以休几天？", "knowledge_base_ids": [1, 2], "top_k": 5, "explain": False},
        request_only=True,
    ),
    OpenApiExample(
        "A question in a conversation, to some of the documents",
        value={
            "query": "那病假呢？",
            "knowledge_base_ids": [1],
            "filters": {
                "tags": ["人事"],
                "metadata": [{"key": "year", "op": "gte", "value": 2024}],
                "created_after": "2026-01-01",
            },
            "history": [
                {"role": "user", "text": "年假可以休几天？"},
                {"role": "assistant", "text": "工作满一年的员工每年有五天带薪年假。"},
            ],
            "latency_budget_ms": 800,
        },
        request_only=True,
    ),
    OpenApiExample(
        "One result",
        value={
            "query": "年假可以休几天？",
            "results": [
                {
                    "chunk_id": 7,
                    "document_id": 3,
                    "knowledge_base_id": 1,
                    "title": "员工手册",
                    "source": "handbook.pdf",
                    "page": 12,
                    "seconds": None,
                    "regions": [{"page": 12, "box": [0.1, 0.32, 0.9, 0.36]}],
                    "text": "工作满一年的员工每年享有五天带薪年假。",
                    "matched_text": "",
                    "score": 0.71,
                    "score_scale": "overlap",
                    "relevance": "high",
                    "equal_question": "",
                    "pictures": [],
                    "ranks": {
                        "vector": 1,
                        "bm25": 2,
                        "characters": 1,
                        "question": 1,
                        "question_bm25": 1,
                        "fused": 1,
                        "rerank": 1,
                    },
                    "scores": {
                        "vector": 0.63,
                        "bm25": 8.4,
                        "characters": 19.2,
                        "question": 0.91,
                        "question_bm25": 5.2,
                        "fused": 0.0228,
                        "rerank": 0.71,
                        "order": 0.826,
                    },
                    "metadata": {"source_type": "book", "tags": ["人事"], "heading_path": ["休假"]},
                    "neighbours": [],
                }
            ],
            "near_misses": [],
            "facts": [
                {"knowledge_base_id": 1, "subject": "年假", "predicate": "天数", "object": "五天", "chunk_id": 7}
            ],
            "degraded": [],
            "profile": {"name": "default", "version": 1},
            "cached": False,
            "timings_ms": {
                "analysis": 0.1,
                "vector": 4.2,
                "bm25": 0.9,
                "characters": 0.4,
                "fusion": 0.1,
                "rerank": 0.4,
                "total": 6.7,
            },
            "trace_id": "2f1c6a52-5b0e-4f0e-8d0c-1c6ad4f2b7aa",
        },
        response_only=True,
        status_codes=["200"],
    ),
]

BATCH_EXAMPLES = [
    OpenApiExample(
        "Two questions",
        value={
            "searches": [
                {"query": "年假可以休几天？", "knowledge_base_ids": [1]},
                {"query": "How long is the warranty period?", "knowledge_base_ids": [2], "top_k": 3},
            ]
        },
        request_only=True,
    )
]

CHUNK_EXAMPLES = {
    "merge": [OpenApiExample("Two neighbours", value={"chunk_ids": [7, 8]}, request_only=True)],
    "split": [
        OpenApiExample("At two places", value={"at": [120, 260]}, request_only=True),
        OpenApiExample("Into these texts", value={"texts": ["年假每年五天。", "病假凭医院证明。"]}, request_only=True),
    ],
    "bulk": [OpenApiExample("Keep two out of searches", value={"ids": [7, 8], "action": "disable"}, request_only=True)],
}


Schema = Mapping[str, Any]

TITLE, SENTENCE, QUESTION = "员工手册", "工作满一年的员工每年享有五天带薪年假。", "年假可以休几天？"
UUID, TIME = "2f1c6a52-5b0e-4f0e-8d0c-1c6ad4f2b7aa", "2026-03-01T08:00:00Z"
ETAG = '"0f343b0931126a20f133d67c2b018a3b"'
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

BY_NAME: dict[str, Any] = {
    "aliases": ["带薪年假"],
    "answer": f"{SENTENCE}[1]\n\n来源：handbook.pdf（第 12 页）",
    "chunk_count": 42,
    "chunk_id": 7,
    "chunk_ids": [7, 8],
    "code": "invalid",
    "created_by": "ann",
    "description": "人事部的规定",
    "detail": "The request is not valid: see “fields”.",
    "document_count": 3,
    "document_id": 3,
    "document_ids": [3],
    "embedding_model": "BAAI/bge-large-zh-v1.5",
    "entity_id": 5,
    "etag": ETAG,
    "excerpt": SENTENCE,
    "external_id": "q-1",
    "file": "(the bytes of handbook.pdf)",
    "files": ["(the bytes of handbook.pdf)"],
    "heading_path": ["休假", "年假"],
    "id": 3,
    "ids": [7, 8],
    "invited_by": "ann",
    "keywords": ["年假", "带薪"],
    "knowledge_base_id": 1,
    "knowledge_base_ids": [1],
    "knowledge_base_name": "handbook",
    "label": "handbook.pdf, p. 12",
    "metadata": {"year": 2026},
    "mime": "application/pdf",
    "model": "BAAI/bge-large-zh-v1.5",
    "name": "handbook",
    "near_misses": [],
    "object": "五天",
    "origin": "hand",
    "page": 12,
    "predicate": "天数",
    "prefix": "a1B2c3D4",
    "profile": "balanced",
    "profile_version": 1,
    "progress": 100,
    "query": QUESTION,
    "questions": [QUESTION],
    "pictures": [],
    "quote": SENTENCE,
    "rank": 1,
    "rate_limit": "120/minute",
    "regions": [{"page": 12, "box": [0.1, 0.32, 0.9, 0.36]}],
    "relevance": "high",
    "remedy": "Correct the fields that “fields” names, and send the request again.",
    "role": "editor",
    "score": 0.71,
    "score_scale": "overlap",
    "sha256": SHA256,
    "size": 182_044,
    "source": "handbook.pdf",
    "status": "ready",
    "stop_words": ["的"],
    "subject": "年假",
    "tags": ["人事"],
    "text": SENTENCE,
    "texts": ["年假每年五天。", "病假凭医院证明。"],
    "title": TITLE,
    "token_count": 19,
    "trace_id": UUID,
    "url": "https://example.org/handbook",
    "username": "ann",
}
BY_COMPONENT: dict[str, Any] = {
    "ConceptChangeRequest": {"name": "年假", "synonyms": ["带薪年休假"], "abbreviations": ["PTO"]},
    "PatchedConceptChangeRequest": {"synonyms": ["带薪年休假", "年休假"]},
    "PatchedFactCreateRequest": {"object": "五天"},
    "ChunkPreviewRequestRequest": {"text": SENTENCE, "chunk_strategy": "recursive", "chunk_size": 300},
    "CompareRequestRequest": {"query": QUESTION, "knowledge_base_ids": [1], "b": {"profile": "balanced"}},
    "DocumentTextRequest": {"title": TITLE, "text": SENTENCE, "tags": ["人事"], "metadata": {"year": 2026}},
    "DocumentReplaceRequest": {"title": TITLE, "tags": ["人事"], "metadata": {"year": 2026}},
    "EmbeddingModelChangeRequest": {"model": "BAAI/bge-large-zh-v1.5", "swap": True},
    "EvalQueryCreateRequest": {"text": QUESTION, "answerable": True},
    "EvalRunCreateRequest": {"eval_set_id": 4, "profile": "balanced"},
    "ExternalSourceChangeRequest": {"name": "site search", "kind": "vertex_ai_search", "settings": {}},
    "ExternalSourceTestRequest": {"query": QUESTION},
    "GraphImportRequest": {"table": "facts", "file": "(the bytes of facts.csv)", "dry_run": True},
    "InvalidateRequest": {"knowledge_base_ids": [1], "bm25": False},
    "JudgeRequest": {"query": QUESTION, "chunk_id": 7, "grade": 2},
    "KnowledgeBaseCreateRequest": {"name": "handbook", "language": "zh", "embedding_model": "hashing"},
    "PatchedChunkChangeRequest": {"text": SENTENCE, "enabled": True},
    "PatchedDocumentChangeRequest": {"title": TITLE, "tags": ["人事"]},
    "PatchedEntityChangeRequest": {"aliases": ["带薪年假"]},
    "PatchedEvalQueryChangeRequest": {"answerable": False},
    "PatchedExternalSourceChangeRequest": {"enabled": False},
    "PatchedKnowledgeBaseChangeRequest": {"description": "人事部的规定", "chunk_size": 300},
    "PatchedSourceChangeRequest": {"every_minutes": 1_440},
    "ProfileCreateRequest": {"name": "legal", "settings": {"top_k": 8}, "description": "more results"},
    "PublishRequest": {"adopt": True},
    "TextRequest": {"text": QUESTION},
    "TokenizerChangeRequest": {"dictionary": "带薪年假\n产假"},
    "SourceCreateRequest": {
        "knowledge_base_id": 1,
        "name": "news",
        "kind": "feed",
        "url": "https://example.org/news.xml",
        "every_minutes": 60,
    },
}
BY_STATUS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "400": ("invalid", "The request is not valid: see “fields”.", {"fields": {"query": ["This field is required."]}}),
    "401": ("not_authenticated", "Authentication credentials were not provided.", {}),
    "403": ("permission_denied", "You may see this, but not change it.", {}),
    "404": ("not_found", "There is no such object.", {}),
    "406": ("not_acceptable", "Could not satisfy the request Accept header.", {}),
    "409": ("already_there", "The same content is in this knowledge base already.", {"document_id": 3}),
    "411": ("length_required", "Send the body with a Content-Length.", {}),
    "412": ("precondition_failed", "It has changed since you read it, and nothing was done.", {"etag": ETAG}),
    "413": ("too_large", "The body is larger than 51 MB: split the file.", {}),
    "415": ("unsupported_media_type", "Unsupported media type “text/plain” in request.", {}),
    "422": ("idempotency_key_reused", "This Idempotency-Key came with another request before.", {}),
    "429": ("throttled", "Too many requests: wait as Retry-After says.", {}),
    "503": ("unavailable", "The database is out of reach or overloaded: try again later.", {}),
}
BY_TYPE = {"string": "text", "integer": 1, "number": 0.5, "boolean": True, "null": None}
BY_FORMAT = {"date-time": TIME, "date": TIME[:10], "uuid": UUID, "uri": "https://example.org/", "binary": "(bytes)"}

FORMATS = {None, "binary", "uri", "uuid"}


def any_value_may_be_null(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Makes an optional value of any type just any value: null would match both it and null, of which `oneOf` wants one."""
    nodes: list[Any] = [result]
    for node in nodes:  # grows meanwhile
        if isinstance(node, dict):
            if {} in node.get("oneOf", ()):
                del node["oneOf"]
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return result


def add_examples(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    made = Examples(result["components"]["schemas"])
    for methods in result["paths"].values():
        for operation in methods.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                _add(media, lambda schema: made.of(schema, is_request=True))
            for status, response in operation["responses"].items():
                for media in response.get("content", {}).values():
                    if status in BY_STATUS:
                        _add(media, lambda _schema, status=status: problem(status))
                    elif "json" in "".join(response["content"]):
                        _add(media, made.of)
    return result


def _add(media: dict[str, Any], make: Any) -> None:
    if "schema" in media and "example" not in media and not media.get("examples"):
        media["example"] = make(media["schema"])


def problem(status: str) -> dict[str, Any]:
    code, detail, more = BY_STATUS[status]
    return {"code": code, "detail": detail, "remedy": remedy_of(code, int(status)), **more}


class Examples:
    """Makes a value of a schema; of a request with what it requires only, since some fields exclude each other."""

    def __init__(self, components: Mapping[str, Schema]) -> None:
        self._components = components

    def of(self, schema: Schema, name: str = "", *, is_request: bool = False) -> Any:
        if "$ref" in schema:
            component = schema["$ref"].rpartition("/")[2]
            known = BY_COMPONENT.get(component)
            return known if known is not None else self.of(self._components[component], name, is_request=is_request)
        if name in BY_NAME and self._fits(schema, BY_NAME[name]):
            return BY_NAME[name]
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return next(value for value in schema["enum"] if value not in ("", None))
        for several in ("oneOf", "anyOf", "allOf"):
            if several in schema:
                return self.of(schema[several][0], name, is_request=is_request)
        return self._by_type(schema, name, is_request=is_request)

    def _by_type(self, schema: Schema, name: str, *, is_request: bool) -> Any:
        kinds = schema.get("type", "object" if "properties" in schema else "")
        if not isinstance(kinds, str):
            kinds = next((str(kind) for kind in kinds if kind != "null"), "null")
        match kinds:
            case "object":
                return self._object(schema, is_request=is_request)
            case "array":
                items = schema.get("items", {})
                return [self.of(items, name.removesuffix("s"), is_request=is_request)] * max(
                    1, schema.get("minItems", 1)
                )
            case "string":
                return BY_FORMAT.get(schema.get("format", ""), BY_TYPE["string"])
            case "integer" | "number" as kind:
                return max(BY_TYPE[kind], schema.get("minimum", BY_TYPE[kind]))
            case kind:
                return BY_TYPE.get(kind, {})

    def _object(self, schema: Schema, *, is_request: bool) -> dict[str, Any]:
        properties = schema.get("properties", {})
        wanted = schema.get("required", [])[:] if is_request else list(properties)
        made = {name: self.of(properties[name], name, is_request=is_request) for name in properties if name in wanted}
        further = schema.get("additionalProperties")
        if not properties and isinstance(further, Mapping) and further:
            made["key"] = self.of(further, is_request=is_request)
        return made

    def _fits(self, schema: Schema, value: Any) -> bool:
        if "properties" in schema or schema.get("format") not in FORMATS:
            return False
        whole = {**schema, "components": {"schemas": self._components}}
        return bool(Draft202012Validator(whole, format_checker=FormatChecker(["uuid"])).is_valid(value))


def of_this_api(endpoints: list[Any]) -> list[Any]:
    """The endpoints that the description is about: OpenAI's protocol has one of its own."""
    return [each for each in endpoints if each[0].startswith("/api/")]
