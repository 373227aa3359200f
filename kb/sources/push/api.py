from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.access.services.rate_limits import UPLOAD
from kb.base.shapes import as_values
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS
from kb.sources.push.services import MOST_FILES, FileSync, FolderSync, PushedFile, push_file, push_sync
from kb.web.api.callers import user_of
from kb.web.api.fields import (
    MAX_ID,
    JsonObjectField,
    ListField,
    StrictBooleanField,
    StrictCharField,
    StrictIntegerField,
    StrictSerializer,
    answers,
    shape,
)
from kb.web.api.views import ApiViewSet

NAME_CHARACTERS = 200
# Longer paths are refused one by one.
MOST_PATH_CHARACTERS = 4_096


class TextsField(JsonObjectField):
    """A JSON object of texts."""

    default_error_messages = {"texts": _("Give texts as values.")}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        if not all(isinstance(each, str) for each in value.values()):
            self.fail("texts")
        return value


class Sha256Field(serializers.RegexField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            r"^[0-9a-f]{64}\Z", max_length=64, help_text="Of its bytes, in 64 small hexadecimal digits.", **kwargs
        )

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class ManifestFileSerializer(StrictSerializer):
    path = StrictCharField(
        max_length=MOST_PATH_CHARACTERS,
        trim_whitespace=False,
        help_text="From the folder on, with slashes: it names the file from sync to sync.",
    )
    sha256 = Sha256Field()
    size = StrictIntegerField(min_value=0, max_value=MAX_ID, help_text="In bytes.")
    metadata = TextsField(
        required=False, help_text="Texts by name, which become metadata of the document, also of one that is as it was."
    )


class ManifestSerializer(StrictSerializer):
    source = StrictCharField(  # type: ignore[assignment] # a field of the request
        max_length=NAME_CHARACTERS, help_text="Its name: one for each folder. The first sync makes it."
    )
    files = ListField(child=ManifestFileSerializer(), max_length=MOST_FILES, help_text="All files of the folder.")
    dry_run = StrictBooleanField(default=False, help_text="Only say what would be done.")
    delete = StrictBooleanField(default=False, help_text="Delete documents whose files the folder has no more.")
    accept = StrictIntegerField(
        min_value=0,
        max_value=MAX_ID,
        default=0,
        help_text="So many deletions at most are meant, however large a share they are: the `count` of `asks`.",
    )


class SyncFileSerializer(StrictSerializer):
    source = StrictCharField(  # type: ignore[assignment]
        max_length=NAME_CHARACTERS, help_text="As in the manifest."
    )
    path = StrictCharField(max_length=MOST_PATH_CHARACTERS, trim_whitespace=False, help_text="As in the manifest.")
    sha256 = Sha256Field()
    metadata = TextsField(required=False, help_text="As in the manifest; in a form: the text of a JSON object.")
    file = serializers.FileField(allow_empty_file=True, help_text=f"One of {', '.join(SUPPORTED_EXTENSIONS)}.")


_PUMP = "5f8ef1b8f2a7c7d1e4a8f4f9f3c9c0a86f3c3b2f9a0e6a1b7d5c4e3f2a1b0c9d"
_VALVE = "0a4d55a8d778e5022fab701977c5d840bbc486d0d1f3b6d6f1b0c7a8e9d2f3c4"
EXAMPLES = [
    OpenApiExample(
        "What a sync would do",
        value={
            "source": "manuals",
            "files": [
                {"path": "pumps/pump.md", "sha256": _PUMP, "size": 5120},
                {"path": "valves/valve.md", "sha256": _VALVE, "size": 812, "metadata": {"author": "Li"}},
            ],
            "dry_run": True,
            "delete": True,
        },
        request_only=True,
    ),
    OpenApiExample(
        "One file to send, one that was renamed, and one that has gone",
        value={
            "source": "manuals",
            "dry_run": True,
            "send": ["valves/valve.md"],
            "moved": [{"from_path": "pump.md", "to_path": "pumps/pump.md"}],
            "unchanged": 0,
            "delete": ["old.md"],
            "deleted": 0,
            "refused": [],
            "asks": None,
            "more": False,
        },
        response_only=True,
        status_codes=["200"],
    ),
]


@extend_schema_view(
    create=extend_schema(
        operation_id="knowledge_base_sync",
        summary="Sync a folder: say what it has, and learn what to send",
        description="Files that were renamed keep their documents with edits and judgments, and with `delete` those that have "
        "gone lose them, unless that would be a large share: then nothing is deleted, and `asks` says how many would be. Send "
        "each path of `send` with PUT to `sync/file/`, then the manifest again: it says what is missing still. Every request "
        "may be repeated, and one that was cut off too.",
        request=ManifestSerializer,
        responses=answers({200: shape(FolderSync)}, 400, 403, 404, 411, 413, 415),
        examples=EXAMPLES,
    ),
    update=extend_schema(
        operation_id="knowledge_base_sync_file",
        summary="Send a file of a synced folder",
        description="It is taken only if it has the SHA-256. One that has arrived before is `unchanged`.",
        request={"multipart/form-data": SyncFileSerializer},
        responses=answers({200: shape(FileSync)}, 400, 403, 404, 411, 413, 415),
    ),
)
class SyncViewSet(ApiViewSet):
    rate_limit_kind = UPLOAD

    def create(self, request: Request, kb_id: int) -> Response:
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        fields = self.checked(ManifestSerializer)
        files = [PushedFile(**each) for each in fields.pop("files")]
        answer = push_sync(knowledge_base=kb, user=user_of(request), name=fields.pop("source"), files=files, **fields)
        return Response(as_values(answer))

    def update(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        fields = self.checked(SyncFileSerializer)
        return Response(as_values(push_file(knowledge_base=kb, name=fields.pop("source"), **fields)))
