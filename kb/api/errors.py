"""Every error as one JSON shape: {"code", "detail"}, with "fields" where the request's own fields are at fault."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import (
    PermissionDenied,
    RequestDataTooBig,
    TooManyFieldsSent,
    TooManyFilesSent,
)
from django.db import OperationalError
from django.http import Http404
from django.utils.translation import gettext as _
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import set_rollback

from kb.services.errors import AlreadyThere, NotAllowed, NotVisible, Rejected
from kb.services.writing import Superseded
from retrieval.errors import InvalidConfiguration, NoChannelAvailable

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 30
REJECTED_STATUS = {
    "bm25_dependencies_missing": status.HTTP_503_SERVICE_UNAVAILABLE,
    "chunk_changed": status.HTTP_409_CONFLICT,
    "too_large": status.HTTP_413_REQUEST_ENTITY_TOO_LARGE,
    "unsupported_type": status.HTTP_415_UNSUPPORTED_MEDIA_TYPE,
}
REJECTED_FIELD = {
    "blank_text": "text",
    "text_too_long": "text",
    "invalid_chunking": "chunk_overlap",
    "invalid_parent_size": "parent_size",
    "name_taken": "name",
    "profile_name_invalid": "name",
    "profile_name_taken": "name",
    "profile_unnamed": "name",
    "unknown_model": "embedding_model",
    "exclude_invalid": "exclude",
    "include_invalid": "include",
    "url_refused": "url",
}


class TooLarge(exceptions.APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"


class LengthRequired(exceptions.APIException):
    status_code = status.HTTP_411_LENGTH_REQUIRED
    default_code = "length_required"


class Unavailable(exceptions.APIException):
    """Nothing is wrong with the request; the same one may be answered later."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_code = "unavailable"
    wait = RETRY_AFTER_S


@dataclass(frozen=True, slots=True)
class Problem:
    """What an error response says; `more` holds further keys of the body."""

    status: int
    code: str
    detail: str
    fields: Mapping[str, list[str]] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        body = {"code": self.code, "detail": _encodable(self.detail), **self.more}
        if self.fields:
            body["fields"] = {
                _encodable(path): [_encodable(message) for message in messages]
                for path, messages in self.fields.items()
            }
        return Response(body, status=self.status, headers=dict(self.headers))


def exception_handler(error: Exception, _context: Mapping[str, Any]) -> Response | None:
    """The response to an error of the framework, the services or the library; None where it is a fault of this code."""
    for kinds, describe in DESCRIPTIONS:
        if isinstance(error, kinds):
            set_rollback()
            return describe(error).response()
    return None


def _invalid(error: exceptions.ValidationError) -> Problem:
    return Problem(error.status_code, "invalid", _("The request is not valid: see “fields”."), flatten(error.detail))


def _framework_error(error: exceptions.APIException) -> Problem:
    headers = {}
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait))
    code = getattr(error.detail, "code", error.default_code)
    return Problem(error.status_code, str(code), str(error.detail), headers=headers)


def _not_visible(error: Exception) -> Problem:
    detail = str(error) if isinstance(error, NotVisible) else _("There is no such object.")
    return Problem(status.HTTP_404_NOT_FOUND, "not_found", detail)


def _not_allowed(error: Exception) -> Problem:
    detail = str(error) or _("You may see this, but not change it.")
    return Problem(status.HTTP_403_FORBIDDEN, "permission_denied", detail)


def _already_there(error: AlreadyThere) -> Problem:
    return Problem(status.HTTP_409_CONFLICT, "already_there", str(error), more={"document_id": error.document_id})


def _model_changed(_error: Superseded) -> Problem:
    detail = _("The knowledge base moved to another embedding model meanwhile: send the request again.")
    return Problem(status.HTTP_409_CONFLICT, "model_changed", detail)


def _rejected(error: Rejected) -> Problem:
    name = REJECTED_FIELD.get(error.code)
    fields = {name: [str(error)]} if name else {}
    status_code = REJECTED_STATUS.get(error.code, status.HTTP_400_BAD_REQUEST)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status_code == status.HTTP_503_SERVICE_UNAVAILABLE else {}
    return Problem(status_code, error.code, str(error), fields, headers=headers)


def _invalid_configuration(error: InvalidConfiguration) -> Problem:
    """Only a request's overrides can be at fault here.

    Its own fields were checked, a profile's settings when it was made, and the environment's at the start.
    """
    fields = {f"overrides.{error.field}": [str(error)]}
    return Problem(status.HTTP_400_BAD_REQUEST, "invalid", str(error), fields)


def _no_channel(error: NoChannelAvailable) -> Problem:
    return Problem(
        status.HTTP_503_SERVICE_UNAVAILABLE,
        "no_channel_available",
        str(error),
        more={"degraded": [degradation.as_dict() for degradation in error.degradations]},
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def _database_out_of_reach(error: OperationalError) -> Problem:
    logger.error("the database could not answer", exc_info=error)
    detail = _("The database is out of reach or overloaded: try again later.")
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return Problem(status.HTTP_503_SERVICE_UNAVAILABLE, "unavailable", detail, headers=headers)


def _form_too_big(error: Exception) -> Problem:
    return Problem(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, "too_large", str(error))


DESCRIPTIONS: tuple[tuple[tuple[type[Exception], ...], Callable[[Any], Problem]], ...] = (
    ((exceptions.ValidationError,), _invalid),
    ((exceptions.APIException,), _framework_error),
    ((NotVisible, Http404), _not_visible),
    ((NotAllowed, PermissionDenied), _not_allowed),
    ((AlreadyThere,), _already_there),
    ((Superseded,), _model_changed),
    ((Rejected,), _rejected),
    ((InvalidConfiguration,), _invalid_configuration),
    ((NoChannelAvailable,), _no_channel),
    ((OperationalError,), _database_out_of_reach),
    ((RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent), _form_too_big),
)


def _encodable(text: str) -> str:
    """Errors quote what was sent, which in JSON may be half a surrogate pair."""
    return text.encode(errors="backslashreplace").decode()


def flatten(detail: Any, path: str = "") -> dict[str, list[str]]:
    """Field errors by dotted path, as in "knowledge_base_ids.0"."""
    if isinstance(detail, Mapping):
        items = [(str(key), value) for key, value in detail.items()]
    elif isinstance(detail, list) and any(isinstance(value, Mapping | list) for value in detail):
        items = [(str(position), value) for position, value in enumerate(detail) if value]
    else:
        messages = detail if isinstance(detail, list) else [detail]
        return {path or "non_field_errors": [str(message) for message in messages]}
    flat: dict[str, list[str]] = {}
    for key, value in items:
        flat |= flatten(value, f"{path}.{key}" if path else key)
    return flat
