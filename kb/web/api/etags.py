"""ETags of what the API tells: a caller reads again only what has changed, and changes only what it has read."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from django.utils.http import parse_etags
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.web.api.errors import PreconditionFailed

EXAMPLE = '"0f343b0931126a20f133d67c2b018a3b"'
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    str,
    OpenApiParameter.HEADER,
    description="The ETag of what you have: 304 without a body where it is the same still.",
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The ETag of what you have read: 412, and nothing is changed, where it has changed since.",
)
RETURNED = OpenApiParameter(
    "ETag",
    str,
    OpenApiParameter.HEADER,
    response=[200],
    description="Of what the body tells; `etag` of the body, and of each item of a list, is the same.",
)


class Etagged(serializers.Serializer[Any]):
    """Adds `etag`, which changes with any of the other fields."""

    etag = serializers.SerializerMethodField(help_text="For If-None-Match and If-Match.")
    ETAG: ClassVar[str] = "etag"

    def get_etag(self, _row: Any) -> str:
        return ""

    def to_representation(self, instance: Any) -> Any:
        told = super().to_representation(instance)
        told[self.ETAG] = etag_of(told)
        return told


def etag_of(told: Mapping[str, Any]) -> str:
    """A strong ETag, with its quotation marks."""
    fields = {name: value for name, value in told.items() if name != Etagged.ETAG}
    text = json.dumps(fields, sort_keys=True, default=str)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def conditional(request: Request, told: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The response that tells it, or 304 where the caller has it."""
    etag = str(told[Etagged.ETAG])
    known = [each.removeprefix("W/") for each in parse_etags(request.headers.get("If-None-Match", ""))]
    headers = {**(headers or {}), "ETag": etag}
    if etag in known or "*" in known:
        return Response(status=status.HTTP_304_NOT_MODIFIED, headers=headers)
    return Response(told, headers=headers)


def require_match(request: Request, told: Mapping[str, Any]) -> None:
    """Refuses to change what is not as the caller has read it; what is told must be locked by now.

    Raises:
        PreconditionFailed: it is another.
    """
    wanted = request.headers.get("If-Match")
    if wanted is None:
        return
    known, etag = parse_etags(wanted), str(told[Etagged.ETAG])
    if etag not in known and "*" not in known:
        message = _("It has changed since you read it, and nothing was done.")
        raise PreconditionFailed(message, etag=etag)
