from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.access.services.rate_limits import UPLOAD
from kb.base.files import UnnamedFileUploadHandler, largest_upload_bytes
from kb.content.models import Document, IngestBatch
from kb.ingest.api.documents import USUAL_SOURCE_TYPE, DocumentErrorSerializer
from kb.ingest.services.batches import (
    BatchProgress,
    batch_add_files,
    batch_cancel,
    batch_create,
    batch_pause,
    batch_resume,
    batch_retry,
    shown_note,
    with_progress,
)
from kb.ingest.services.tables import batch_describe, read_table
from kb.web.api.callers import user_of
from kb.web.api.fields import IdField, ListField, ShallowJSONParser, StrictCharField, StrictSerializer, answers, shape
from kb.web.api.idempotency import IDEMPOTENCY_KEY, idempotent
from kb.web.api.views import ApiViewSet, Created, Flag, ListFilters, Text, one

FILES_A_REQUEST = 100
FAILED_SHOWN = 100
NOTES_SHOWN = 100
FINAL = (Document.Status.FAILED.value, Document.Status.CANCELLED.value)


class BatchFilesSerializer(StrictSerializer):
    """Files of an upload, as a form."""

    files = ListField(
        child=serializers.FileField(allow_empty_file=True),
        allow_empty=False,
        max_length=FILES_A_REQUEST,
        help_text="Any number up to 100. Of a ZIP archive every file becomes a document: the way to send thousands.",
    )
    paths = ListField(
        child=StrictCharField(max_length=1_000),
        required=False,
        max_length=FILES_A_REQUEST,
        help_text="The names of the files with the folders that they lay in, in the same order. Left out: the files' names.",
    )
    source_type = serializers.ChoiceField(Document.SourceType.choices, required=False, help_text=USUAL_SOURCE_TYPE)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("paths") and len(attrs["paths"]) != len(attrs["files"]):
            raise serializers.ValidationError({"paths": [_("Give a path for each file, or none at all.")]})
        return attrs


class BatchCreateSerializer(BatchFilesSerializer):
    table = serializers.FileField(
        required=False,
        allow_empty_file=True,
        help_text="CSV with a column filename, and any of title, tags (between semicolons) and metadata (a JSON object); "
        "every further column is an entry of the metadata.",
    )
    name = StrictCharField(max_length=200, required=False, help_text="Left out: the name of the first file.")
    folder_id = IdField(
        required=False,
        allow_null=True,
        help_text="The folder that they go into, with the folders of their paths; null: the top.",
    )


class BatchRetrySerializer(StrictSerializer):
    status = serializers.ChoiceField(
        [(each, each) for each in FINAL], default=Document.Status.FAILED.value, help_text="Which are to be tried again."
    )


class BatchSerializer(serializers.ModelSerializer[IngestBatch]):
    """An upload; the view gives each a `progress`."""

    progress = shape(BatchProgress)(read_only=True)

    class Meta:
        model = IngestBatch
        fields: tuple[str, ...] = (
            "id",
            "knowledge_base_id",
            "folder_id",
            "name",
            "paused",
            "progress",
            "created_at",
        )
        read_only_fields: tuple[str, ...] = fields


class FailedDocumentSerializer(serializers.ModelSerializer[Document]):
    error = DocumentErrorSerializer(source="*", read_only=True, help_text="Why it failed, as a sentence to act on.")

    class Meta:
        model = Document
        fields = ("id", "source", "title", "error")
        read_only_fields = fields


class BatchNoteSerializer(serializers.Serializer[Any]):
    """A file that became no document."""

    name = serializers.CharField()
    code = serializers.CharField()
    message = serializers.CharField(help_text="A sentence to act on.")
    document_id = serializers.IntegerField(allow_null=True, help_text="Of the document that holds the same bytes.")


class BatchDetailSerializer(BatchSerializer):
    failed = FailedDocumentSerializer(many=True, read_only=True, help_text="The first 100 of them.")
    notes = serializers.SerializerMethodField(help_text="Files of archives that became no document: the first 100.")

    class Meta(BatchSerializer.Meta):
        fields = (*BatchSerializer.Meta.fields, "failed", "notes", "note_count")
        read_only_fields = fields

    @extend_schema_field(BatchNoteSerializer(many=True))
    def get_notes(self, batch: IngestBatch) -> list[dict[str, Any]]:
        return [shown_note(note) for note in batch.notes[:NOTES_SHOWN]]


class BatchTakenSerializer(BatchDetailSerializer):
    refused = BatchNoteSerializer(many=True, read_only=True, help_text="Files of this request that were not taken in.")

    class Meta(BatchDetailSerializer.Meta):
        fields = (*BatchDetailSerializer.Meta.fields, "refused")
        read_only_fields = fields


STEERED = answers({200: BatchDetailSerializer}, 403, 404)
PROGRESS_EXAMPLE = OpenApiExample(
    "Half way",
    value={
        "id": 5,
        "knowledge_base_id": 1,
        "folder_id": None,
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


class BatchFilters(Created, ListFilters):
    orders: ClassVar = ("-id", "id")
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")
    paused = Flag()


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
class BatchViewSet(ApiViewSet):
    """Files go to the disk as they come, however small, so that many of them take no memory."""

    rate_limit_kind = UPLOAD
    parser_classes = [MultiPartParser, ShallowJSONParser]
    most_form_bytes = staticmethod(largest_upload_bytes)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if (request.content_type or "").startswith(MultiPartParser.media_type):
            # Before anything, the check of a session's token included, reads the form.
            request._request.upload_handlers = [UnnamedFileUploadHandler(request._request)]
        super().initial(request, *args, **kwargs)

    def described(self, pk: int) -> Any:
        [batch] = with_progress([one(IngestBatch.objects.visible_to(self.principal), pk)])
        rows = Document.objects.visible_to(self.principal).filter(batch=batch, status=Document.Status.FAILED)
        batch.failed = list(rows.order_by("pk")[:FAILED_SHOWN])
        return batch

    def taken(self, batch: IngestBatch, fields: Mapping[str, Any], status_code: int) -> Response:
        names = fields.get("paths") or [file.name or "" for file in fields["files"]]
        kind = fields.get("source_type", "")
        files = list(zip(names, fields["files"], strict=True))
        refused = batch_add_files(batch, files, user=user_of(self.request), source_type=kind)
        described = self.described(batch.pk)
        described.refused = refused
        return Response(BatchTakenSerializer(described).data, status=status_code)

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        rows = IngestBatch.objects.visible_to(self.principal).filter(knowledge_base=kb)
        batches = with_progress(self.found(rows, BatchFilters))
        return self.get_paginated_response(BatchSerializer(batches, many=True).data)

    def create(self, request: Request, kb_id: int) -> HttpResponseBase:
        return self._begin(request, self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id))

    @idempotent()
    def _begin(self, request: Request, kb: KnowledgeBase) -> Response:
        fields = self.checked(BatchCreateSerializer)
        rows = read_table(fields["table"].read()) if "table" in fields else []
        name = fields.get("name") or fields["files"][0].name or ""
        folder_id = fields.get("folder_id")
        batch = batch_create(knowledge_base=kb, name=name, user=user_of(request), folder_id=folder_id)
        batch_describe(batch, rows)
        return self.taken(batch, fields, status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(BatchDetailSerializer(self.described(pk)).data)

    @action(detail=True, methods=["post"])
    def files(self, request: Request, pk: int) -> HttpResponseBase:
        return self._add(request, self.editable(IngestBatch.objects.visible_to(self.principal), pk))

    @idempotent()
    def _add(self, _request: Request, batch: IngestBatch) -> Response:
        return self.taken(batch, self.checked(BatchFilesSerializer), status.HTTP_200_OK)

    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._steered(pk, batch_pause)

    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._steered(pk, batch_resume)

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._steered(pk, batch_cancel)

    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._steered(pk, lambda batch: batch_retry(batch, self.checked(BatchRetrySerializer)["status"]))

    def _steered(self, pk: int, steer: Callable[[IngestBatch], object]) -> Response:
        steer(self.editable(IngestBatch.objects.visible_to(self.principal), pk))
        return Response(BatchDetailSerializer(self.described(pk)).data)
