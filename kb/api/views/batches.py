from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.http.response import HttpResponseBase
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.authentication import user_of
from kb.api.filters import BatchFilters
from kb.api.idempotency import PARAMETER as IDEMPOTENCY_KEY
from kb.api.idempotency import once
from kb.api.parsers import ShallowJSONParser
from kb.api.schema import answers
from kb.api.serializers.batches import (
    FAILED_SHOWN,
    BatchCreateSerializer,
    BatchDetailSerializer,
    BatchFilesSerializer,
    BatchRetrySerializer,
    BatchSerializer,
    BatchTakenSerializer,
)
from kb.api.views.base import ApiViewSet, one
from kb.models import Document, IngestBatch, KnowledgeBase
from kb.services.batches.batches import (
    batch_cancel,
    batch_create,
    batch_pause,
    batch_progress,
    batch_resume,
    batch_retry,
    progress_of,
)
from kb.services.batches.tables import batch_describe, read_table
from kb.services.batches.uploads import Refused, batch_add_files
from kb.services.documents import largest_upload_bytes
from kb.services.rate_limits import UPLOAD
from kb.stores.temporary import UnnamedFileUploadHandler

STEERED = answers({200: BatchDetailSerializer}, 403, 404)
PROGRESS_EXAMPLE = OpenApiExample(
    "Half way",
    value={
        "id": 5,
        "knowledge_base_id": 1,
        "name": "statutes.zip",
        "paused": False,
        "progress": {
            "counts": {"ready": 4900, "failed": 1, "processing": 200, "pending": 4899},
            "stages": {"embed": 200},
            "total": 10000,
            "done": 4901,
            "percent": 49,
            "rate": 212.4,
            "seconds_left": 24,
        },
        "created_at": "2026-01-01T08:00:00Z",
        "failed": [
            {
                "id": 77,
                "source": "scan.pdf",
                "title": "",
                "error": {"code": "empty_file", "message": "The file holds no text. Upload a file that has content."},
            }
        ],
        "notes": [],
        "note_count": 0,
    },
    response_only=True,
    status_codes=["200"],
)


class _FormOfFiles(ApiViewSet):
    """Files go to the disk as they come, however small, so that many of them take no memory."""

    rate_limit_kind = UPLOAD
    queryset = IngestBatch.objects.none()
    parser_classes = [MultiPartParser, ShallowJSONParser]
    most_form_bytes = staticmethod(largest_upload_bytes)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if (request.content_type or "").startswith(MultiPartParser.media_type):
            # Before anything, the check of a session's token included, reads the form.
            request._request.upload_handlers = [UnnamedFileUploadHandler(request._request)]
        super().initial(request, *args, **kwargs)

    def described(self, pk: int) -> IngestBatch:
        """An upload with its progress and what has failed."""
        batch: IngestBatch = one(IngestBatch.objects.visible_to(self.principal), pk)
        rows = Document.objects.visible_to(self.principal).filter(batch=batch, status=Document.Status.FAILED)
        told: Any = batch
        told.progress, told.failed = batch_progress(batch), list(rows.order_by("pk")[:FAILED_SHOWN])
        return batch

    def taken(self, batch: IngestBatch, fields: Mapping[str, Any], status_code: int) -> Response:
        """Takes the files of a request in."""
        names = fields.get("paths") or [file.name or "" for file in fields["files"]]
        files = list(zip(names, fields["files"], strict=True))
        kind = fields.get("source_type", Document.SourceType.BOOK)
        refused: list[Refused] = batch_add_files(batch, files, user=user_of(self.request), source_type=kind)
        told: Any = self.described(batch.pk)
        told.refused = refused
        return Response(BatchTakenSerializer(told).data, status=status_code)


@extend_schema_view(
    list=extend_schema(
        summary="List the uploads of a knowledge base, newest first",
        parameters=BatchFilters.parameters(),
        responses=answers({200: BatchSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Upload many files, or a ZIP archive of them, as one",
        description="Each becomes a document that workers parse and index. The answer comes at once: GET batches/{id}/ tells "
        "how far they are. A file that cannot be taken is named in `refused` and keeps none of the others out.",
        parameters=[IDEMPOTENCY_KEY],
        request={"multipart/form-data": BatchCreateSerializer},
        responses=answers({201: BatchTakenSerializer}, 400, 403, 404, 409, 411, 413, 415, 422),
    ),
)
class KnowledgeBaseBatchViewSet(_FormOfFiles):
    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(self._knowledge_bases(), kb_id)
        rows = IngestBatch.objects.visible_to(self.principal).filter(knowledge_base=kb)
        batches = self.found(rows, BatchFilters)
        progress = progress_of(batches)
        for batch in batches:
            batch.progress = progress[batch.pk]
        return self.get_paginated_response(BatchSerializer(batches, many=True).data)

    def create(self, request: Request, kb_id: int) -> HttpResponseBase:
        kb = self.editable(self._knowledge_bases(), kb_id)
        return once(request, lambda: self._begun(request, kb))

    def _begun(self, request: Request, kb: KnowledgeBase) -> Response:
        fields = self.checked(BatchCreateSerializer)
        table = fields.get("table")
        described = read_table(table.read()) if table is not None else []
        name = fields.get("name") or fields["files"][0].name or ""
        batch = batch_create(knowledge_base=kb, name=name, user=user_of(request))
        batch_describe(batch, described)
        return self.taken(batch, fields, status.HTTP_201_CREATED)

    def _knowledge_bases(self) -> QuerySet[KnowledgeBase]:
        return KnowledgeBase.objects.visible_to(self.principal)


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read how far an upload is, and what of it has failed",
        responses=answers({200: BatchDetailSerializer}, 404),
        examples=[PROGRESS_EXAMPLE],
    ),
    files=extend_schema(
        summary="Send further files of an upload",
        description="What its table says of them holds for them too.",
        parameters=[IDEMPOTENCY_KEY],
        request={"multipart/form-data": BatchFilesSerializer},
        responses=answers({200: BatchTakenSerializer}, 400, 403, 404, 409, 411, 413, 415, 422),
    ),
    pause=extend_schema(
        summary="Pause an upload: what workers have at hand is finished", request=None, responses=STEERED
    ),
    resume=extend_schema(summary="Go on with a paused upload", request=None, responses=STEERED),
    cancel=extend_schema(
        summary="Take what is not done of an upload out of the queue",
        description="What is searchable by now stays, and so do the files.",
        request=None,
        responses=STEERED,
    ),
    retry=extend_schema(
        summary="Process what has failed of an upload once more, or what was cancelled after all",
        request=BatchRetrySerializer,
        responses=answers({200: BatchDetailSerializer}, 400, 403, 404, 413, 415),
    ),
)
class BatchViewSet(_FormOfFiles):
    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._told(pk)

    @action(detail=True, methods=["post"])
    def files(self, request: Request, pk: int) -> HttpResponseBase:
        batch = self._editable(pk)
        return once(request, lambda: self.taken(batch, self.checked(BatchFilesSerializer), status.HTTP_200_OK))

    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        batch_pause(self._editable(pk))
        return self._told(pk)

    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        batch_resume(self._editable(pk))
        return self._told(pk)

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        batch_cancel(self._editable(pk))
        return self._told(pk)

    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        batch = self._editable(pk)
        batch_retry(batch, self.checked(BatchRetrySerializer)["status"])
        return self._told(pk)

    def _editable(self, pk: int) -> IngestBatch:
        batch: IngestBatch = self.editable(IngestBatch.objects.visible_to(self.principal), pk)
        return batch

    def _told(self, pk: int) -> Response:
        return Response(BatchDetailSerializer(self.described(pk)).data)
