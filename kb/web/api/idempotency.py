"""Headers by which requests may be repeated safely: Idempotency-Key does nothing twice, ETags change only what was read."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, ClassVar

from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.utils.http import parse_etags
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import ApiKey
from kb.base.files import sha256_of
from kb.web.api.callers import user_of
from kb.web.api.errors import ApiError
from kb.web.models import IdempotencyKey
from kb.web.services import answer_once

HEADER, REPLAYED = "Idempotency-Key", "Idempotent-Replayed"
MOST_CHARACTERS = 255
_KEY = re.compile(rf"[!-~]{{1,{MOST_CHARACTERS}}}")

IDEMPOTENCY_KEY = OpenApiParameter(
    HEADER,
    {"type": "string", "minLength": 1, "maxLength": MOST_CHARACTERS, "pattern": "^[!-~]+$"},
    OpenApiParameter.HEADER,
    description="A text of your own, such as a UUID. The same request with the same key within 24 hours is answered with "
    "what the first one was, marked by the header `Idempotent-Replayed: true`, and nothing is done twice. With another "
    "request: 422. While the first is under way: 409 with Retry-After. A request that failed may be sent again.",
)


def idempotent(before: Callable[[Any, Request], Any] | None = None) -> Callable[..., Callable[..., HttpResponseBase]]:
    """Decorates a method of a view that does the work of a request whose caller may do it: see `answer_once`.

    What takes long and needs no transaction is done by `before`, whose result is the last argument of the method.
    Raises ValidationError for what is no key, and Rejected where it came with another request or the first one is under
    way.
    """

    def decorate(method: Callable[..., Response]) -> Callable[..., HttpResponseBase]:
        @wraps(method)
        def call(view: Any, request: Request, *args: Any) -> HttpResponseBase:
            def prepare() -> tuple[Any, ...]:
                return () if before is None else (before(view, request),)

            key = request.headers.get(HEADER)
            if key is None:
                return method(view, request, *args, *prepare())
            if not _KEY.fullmatch(key):
                message = _("Give from 1 to %(most)s visible ASCII characters, such as a UUID.")
                raise ValidationError({HEADER: [message % {"most": MOST_CHARACTERS}]})
            made: list[Response] = []

            def answer(*prepared: Any) -> tuple[int, str]:
                made.append(method(view, request, *args, *prepared))
                return made[0].status_code, JSONRenderer().render(made[0].data).decode()

            earlier = answer_once(_asked(request, key), answer, before=prepare)
            if earlier is None:
                return made[0]
            return HttpResponse(
                earlier.body, status=earlier.status, content_type="application/json", headers={REPLAYED: "true"}
            )

        return call

    return decorate


def _asked(request: Request, key: str) -> IdempotencyKey:
    credential = request.auth.prefix if isinstance(request.auth, ApiKey) else ""
    digest = hashlib.sha256()
    for part in (request.method or "", request.get_full_path(), *_parts(request.data)):
        digest.update(f"{len(part)}:{part}".encode(errors="backslashreplace"))
    return IdempotencyKey(user=user_of(request), credential=credential, key=key, fingerprint=digest.hexdigest())


def _parts(data: Any) -> Iterator[str]:
    """What is asked, whatever the boundary of the form and the order of an object's fields."""
    if not isinstance(data, QueryDict):
        yield json.dumps(data, sort_keys=True)
        return
    for name, values in sorted(data.lists()):
        for value in values:
            yield name
            yield f"{value.name} {sha256_of(value)}" if isinstance(value, UploadedFile) else str(value)


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
        data = super().to_representation(instance)
        others = {name: value for name, value in data.items() if name != self.ETAG}
        digest = hashlib.sha256(json.dumps(others, sort_keys=True, default=str).encode())
        data[self.ETAG] = f'"{digest.hexdigest()[:32]}"'  # a strong ETag has quotation marks
        return data


def conditional(request: Request, data: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """The response that tells it, or 304 where the caller has it."""
    etag = str(data[Etagged.ETAG])
    known = [each.removeprefix("W/") for each in parse_etags(request.headers.get("If-None-Match", ""))]
    headers = {**(headers or {}), "ETag": etag}
    if etag in known or "*" in known:
        return Response(status=status.HTTP_304_NOT_MODIFIED, headers=headers)
    return Response(data, headers=headers)


def require_match(request: Request, data: Mapping[str, Any]) -> None:
    """Raises ApiError (412) where a row, which must be locked, is not as the caller has read it."""
    wanted = request.headers.get("If-Match")
    if wanted is None:
        return
    known, etag = parse_etags(wanted), str(data[Etagged.ETAG])
    if etag not in known and "*" not in known:
        message = _("It has changed since you read it, and nothing was done.")
        raise ApiError(status.HTTP_412_PRECONDITION_FAILED, "precondition_failed", message, etag=etag)
