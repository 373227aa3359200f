"""What the OpenAPI description says beyond what the serializers tell by themselves."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension
from drf_spectacular.utils import OpenApiExample, OpenApiResponse

from kb.web.api.fields import (
    ConflictSerializer,
    FaultSerializer,
    InvalidSerializer,
    ProblemSerializer,
    StaleSerializer,
    UnavailableSerializer,
)

PROBLEMS = {
    400: OpenApiResponse(InvalidSerializer, "The request is not valid."),
    401: OpenApiResponse(ProblemSerializer, "No API key and no session, or one that is not valid."),
    403: OpenApiResponse(ProblemSerializer, "The caller may see this, but not do it."),
    404: OpenApiResponse(ProblemSerializer, "It does not exist, or the caller may not see it."),
    406: OpenApiResponse(ProblemSerializer, "The Accept header names nothing that the endpoint can send."),
    409: OpenApiResponse(ConflictSerializer, "It is there already, or was changed meanwhile."),
    411: OpenApiResponse(ProblemSerializer, "The body has no length."),
    412: OpenApiResponse(StaleSerializer, "It has changed since it was read: If-Match names another ETag."),
    413: OpenApiResponse(ProblemSerializer, "The body is too large."),
    415: OpenApiResponse(ProblemSerializer, "The type of the body or of the file is not supported."),
    422: OpenApiResponse(ProblemSerializer, "The Idempotency-Key was sent with another request before."),
    429: OpenApiResponse(ProblemSerializer, "Too many requests: Retry-After says when to go on."),
    500: OpenApiResponse(FaultSerializer, "A fault of the server."),
    503: OpenApiResponse(UnavailableSerializer, "Not now: Retry-After says when to try again."),
}

NOT_MODIFIED = OpenApiResponse(description="It is as If-None-Match says.")
ALWAYS = (401, 406, 429, 503)
"""What any operation for callers may answer. 500 is no answer that a caller can plan for."""


def answers(success: dict[Any, Any], *problems: int) -> dict[Any, Any]:
    """The responses of an operation that needs a caller."""
    return success | {status: PROBLEMS[status] for status in sorted({*ALWAYS, *problems})}


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "kb.web.api.authentication.ApiKeyAuthentication"
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
                    "text": "工作满一年的员工每年享有五天带薪年假。",
                    "matched_text": "",
                    "score": 0.71,
                    "score_scale": "overlap",
                    "ranks": {"vector": 1, "bm25": 2, "question": 1, "fused": 1, "rerank": 1},
                    "scores": {"vector": 0.63, "bm25": 8.4, "question": 0.91, "fused": 0.0228, "rerank": 0.71},
                    "metadata": {"source_type": "book", "tags": ["人事"], "heading_path": ["休假"]},
                    "neighbours": [],
                }
            ],
            "facts": [
                {"knowledge_base_id": 1, "subject": "年假", "predicate": "天数", "object": "五天", "chunk_id": 7}
            ],
            "degraded": [],
            "profile": {"name": "default", "version": 1},
            "cached": False,
            "timings_ms": {"analysis": 0.1, "vector": 4.2, "bm25": 0.9, "fusion": 0.1, "rerank": 0.4, "total": 6.3},
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
