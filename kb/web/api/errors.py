"""Every error as one JSON shape: {"code", "detail", "remedy"}, with "fields" where the request's own fields are at fault."""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, cast

from django.core.exceptions import (
    ObjectDoesNotExist,
    PermissionDenied,
    RequestDataTooBig,
    TooManyFieldsSent,
    TooManyFilesSent,
)
from django.core.signals import got_request_exception
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, UnreadablePostError
from django.template.loader import render_to_string
from django.utils.translation import gettext as _, gettext_lazy
from django.views import defaults
from rest_framework import exceptions, status
from rest_framework.response import Response

from kb.base.disk import DiskFull, is_disk_full
from kb.base.errors import (
    COLLISION_SECONDS,
    DATABASE_OUT_OF_REACH,
    AlreadyThere,
    NotAllowed,
    NotVisible,
    Rejected,
    Superseded,
    is_collision,
)
from kb.base.files import FilesUnavailable
from kb.base.shapes import as_values
from kb.base.telemetry import logs as log_context
from kb.base.waits import RETRY_SECONDS, TooManyWaits
from retrieval.errors import InvalidConfiguration, NoChannelAvailable

BY_CODE = {
    "already_there": gettext_lazy(
        "Use the document that “document_id” names, or change the content before you send it."
    ),
    "already_member": gettext_lazy("Change the role of this member instead, with PATCH."),
    "already_invited": gettext_lazy(
        "Wait until the user has answered, or withdraw the invitation with DELETE and make another."
    ),
    "already_owner": gettext_lazy("There is nothing to do: name another user to hand it over to."),
    "authentication_failed": gettext_lazy(
        "Send a valid API key as “Authorization: Bearer KEY”; its owner can make another."
    ),
    "batch_out_of_time": gettext_lazy("Send this search again, by itself or with fewer others."),
    "bm25_dependencies_missing": gettext_lazy(
        "Ask the server’s operator to run “manage.py doctor” and to install what it names."
    ),
    "chunk_changed": gettext_lazy("Read the chunk again, and repeat the change on what it holds now."),
    "declined_lately": gettext_lazy("Ask the person whether they want it, and a superuser to add them."),
    "idempotency_key_reused": gettext_lazy(
        "Send a new Idempotency-Key with another request; the same one only with the same request."
    ),
    "idempotency_in_progress": gettext_lazy(
        "Wait as many seconds as Retry-After says, then send the same request again."
    ),
    "internal_error": gettext_lazy("Try again later; if it goes on, tell the server’s operator when it happened."),
    "invalid": gettext_lazy("Correct the fields that “fields” names, and send the request again."),
    "last_owner": gettext_lazy(
        "Hand the knowledge base over, or make another member with an active account an owner, and try again."
    ),
    "length_required": gettext_lazy("Send the body with a Content-Length header."),
    "method_not_allowed": gettext_lazy("Use one of the methods that the Allow header names."),
    "model_changed": gettext_lazy("Send the same request again."),
    "model_unavailable": gettext_lazy(
        "Try again later, or ask the server’s operator to look at the model with “manage.py doctor”."
    ),
    "name_taken": gettext_lazy("Choose another name, or change what has it."),
    "no_channel_available": gettext_lazy(
        "Try again after as many seconds as Retry-After says; “degraded” tells what is out of order."
    ),
    "not_accepted": gettext_lazy("Withdraw the invitation with DELETE, and make one with the role that you want."),
    "not_acceptable": gettext_lazy("Leave the Accept header out, or accept application/json."),
    "not_authenticated": gettext_lazy("Send an API key as “Authorization: Bearer KEY”, or log in."),
    "parse_error": gettext_lazy("Send a body that is valid for its Content-Type."),
    "permission_denied": gettext_lazy(
        "Use an API key with the scope write, or ask an owner of the knowledge base for more rights."
    ),
    "precondition_failed": gettext_lazy(
        "Read it again, repeat the change on what it is now, and send its new ETag in If-Match."
    ),
    "throttled": gettext_lazy("Wait as many seconds as Retry-After says, then go on more slowly."),
    "too_many_invitations": gettext_lazy("Wait until some are answered, or withdraw some with DELETE on members/."),
    "too_large": gettext_lazy("Send less at once: split the file or the text."),
    "rate_limit_too_high": gettext_lazy("Ask for a lower limit, or leave it out; an operator can give a higher one."),
    "unknown_user": gettext_lazy("Ask the person for the exact user name, and whether the account is active."),
    "unknown_model": gettext_lazy("Choose a model that “manage.py doctor” lists, or leave it out for the default."),
    "unsupported_type": gettext_lazy("Upload a file of one of the types that “detail” names."),
    "url_refused": gettext_lazy("Give the address of a public page that can be read, or upload its content as a file."),
}
BY_STATUS = {
    400: gettext_lazy("Change the request as “detail” says, and send it again."),
    401: BY_CODE["not_authenticated"],
    403: BY_CODE["permission_denied"],
    404: gettext_lazy(
        "Check the path and the ids in it, and that your key or your user may see them; every path ends with a slash."
    ),
    405: BY_CODE["method_not_allowed"],
    406: BY_CODE["not_acceptable"],
    408: gettext_lazy("Send the whole request again, without a pause in its body."),
    409: gettext_lazy("Read the object again, and repeat the request if it is still wanted."),
    411: BY_CODE["length_required"],
    412: BY_CODE["precondition_failed"],
    413: BY_CODE["too_large"],
    415: gettext_lazy(
        "Send a Content-Type that the endpoint takes: application/json, or multipart/form-data for files."
    ),
    422: gettext_lazy("Send the request as it was first sent, or as a new one."),
    429: BY_CODE["throttled"],
    500: BY_CODE["internal_error"],
    503: gettext_lazy("Try again after as many seconds as Retry-After says."),
    507: gettext_lazy("Ask the server’s operator to make room (“manage.py doctor” says where), then send it again."),
}


def remedy_of(code: str, status: int) -> str:
    return str(
        BY_CODE.get(code) or BY_STATUS.get(status) or _("Change the request as “detail” says, or try again later.")
    )


logger = logging.getLogger(__name__)

RETRY_AFTER_S = 30
REJECTED_STATUS = {
    "bm25_dependencies_missing": status.HTTP_503_SERVICE_UNAVAILABLE,
    "preview_pending": status.HTTP_503_SERVICE_UNAVAILABLE,
    "too_many_streams": status.HTTP_503_SERVICE_UNAVAILABLE,
    **dict.fromkeys(
        (
            "already_member",
            "already_owner",
            "already_invited",
            "declined_lately",
            "not_accepted",
            "too_many_invitations",
        ),
        status.HTTP_409_CONFLICT,
    ),
    **dict.fromkeys(("last_owner", "chunk_changed", "idempotency_in_progress"), status.HTTP_409_CONFLICT),
    "idempotency_key_reused": status.HTTP_422_UNPROCESSABLE_ENTITY,
    "too_large": status.HTTP_413_REQUEST_ENTITY_TOO_LARGE,
    "unsupported_type": status.HTTP_415_UNSUPPORTED_MEDIA_TYPE,
}
# After how many seconds it is worth while to ask again.
WAITS = {"idempotency_in_progress": 1}
REJECTED_FIELD = {
    "blank_text": "text",
    "text_too_long": "text",
    "invalid_chunking": "chunk_overlap",
    "invalid_parent": "parent_id",
    "invalid_parent_size": "parent_size",
    "name_taken": "name",
    "profile_ambiguous": "profile",
    "profile_name_invalid": "name",
    "profile_name_taken": "name",
    "profile_place_ambiguous": "knowledge_base_id",
    "profile_shared": "confirm_shared",
    "profile_unnamed": "name",
    "expired": "expires_at",
    "expires_too_late": "expires_at",
    "share_out_of_range": "share",
    "invalid_rate_limit": "rate_limit",
    "rate_limit_too_high": "rate_limit",
    "unknown_scope": "scope",
    "unknown_user": "username",
    "unknown_model": "embedding_model",
    "exclude_invalid": "exclude",
    "include_invalid": "include",
    "url_refused": "url",
}


class ApiError(exceptions.APIException):
    """An error of the API's own; `more` are further keys of its body."""

    def __init__(self, status_code: int, code: str, detail: str, **more: Any) -> None:
        super().__init__(detail, code)
        self.status_code, self.more = status_code, more
        if status_code == status.HTTP_503_SERVICE_UNAVAILABLE:
            self.wait = RETRY_AFTER_S


@dataclass(frozen=True, slots=True)
class Problem:
    """What an error response says; `more` holds further keys of the body."""

    status: int
    code: str
    detail: str
    fields: Mapping[str, list[str]] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        fields = {_encodable(path): list(map(_encodable, messages)) for path, messages in self.fields.items()}
        return {
            "code": self.code,
            "detail": _encodable(self.detail),
            "remedy": remedy_of(self.code, self.status),
            **self.more,
            **({"fields": fields} if fields else {}),
        }


def exception_handler(error: Exception, context: Mapping[str, Any]) -> Response:
    problem = problem_of(error, getattr(context.get("request"), "_request", None))
    return Response(problem.body(), status=problem.status, headers=dict(problem.headers))


def problem_of(error: Exception, request: HttpRequest | None = None) -> Problem:
    """What is said of an error of the framework, the services or the library, or of a fault of this code."""
    if is_disk_full(error):
        logger.error("the disk is full", exc_info=error)
        return Problem(status.HTTP_507_INSUFFICIENT_STORAGE, "disk_full", str(DiskFull()))
    for kinds, describe in DESCRIPTIONS:
        if isinstance(error, kinds):
            return describe(error)
    if is_collision(error):
        logger.warning("a row was deleted while another came to point to it", exc_info=error)
        detail = _("Something that this belongs to was deleted at the same moment, and nothing was changed.")
        return _not_now("deleted_meanwhile", detail, COLLISION_SECONDS)
    # As the framework does where nobody catches the error, for whoever watches its signal.
    got_request_exception.send(sender=None, request=request)
    logger.error("a fault while %s was answered", request.path if request else "", exc_info=error)
    return fault_problem()


def fault_problem() -> Problem:
    """What is said of a fault of this code: nothing of its insides, but the id that the log knows the request by."""
    request_id = log_context.fields().get("request_id")
    more = {"request_id": str(request_id)} if request_id else {}
    detail = _("The server could not answer because of a fault of its own.")
    return Problem(status.HTTP_500_INTERNAL_SERVER_ERROR, "internal_error", detail, more=more)


def _framework_error(error: exceptions.APIException) -> Problem:
    headers = {}
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(ceil(wait))
    code = str(getattr(error.detail, "code", error.default_code))
    return Problem(error.status_code, code, str(error.detail), more=getattr(error, "more", {}), headers=headers)


def _rejected(error: Rejected) -> Problem:
    name = REJECTED_FIELD.get(error.code)
    status_code = REJECTED_STATUS.get(error.code, status.HTTP_400_BAD_REQUEST)
    wait = RETRY_AFTER_S if status_code == status.HTTP_503_SERVICE_UNAVAILABLE else WAITS.get(error.code)
    headers = {"Retry-After": str(wait)} if wait else {}
    return Problem(status_code, error.code, str(error), {name: [str(error)]} if name else {}, headers=headers)


def _database_out_of_reach(error: Exception) -> Problem:
    logger.error("the database could not answer", exc_info=error)
    return _not_now("unavailable", _("The database is out of reach or overloaded: try again later."))


def _files_out_of_reach(error: FilesUnavailable) -> Problem:
    logger.error("uploads cannot be reached: %s", error)
    return _not_now("files_unavailable", _("The store of the files cannot be reached: try again in a moment."))


def _not_now(code: str, detail: str, seconds: int = RETRY_AFTER_S, **more: Any) -> Problem:
    return Problem(status.HTTP_503_SERVICE_UNAVAILABLE, code, detail, more=more, headers={"Retry-After": str(seconds)})


# The first that fits counts.
DESCRIPTIONS: tuple[tuple[tuple[type[Exception], ...], Callable[[Any], Problem]], ...] = (
    (
        (exceptions.ValidationError,),
        lambda error: Problem(
            error.status_code, "invalid", _("The request is not valid: see “fields”."), flatten(error.detail)
        ),
    ),
    ((exceptions.APIException,), _framework_error),
    ((NotVisible,), lambda error: Problem(status.HTTP_404_NOT_FOUND, "not_found", str(error))),
    (
        (Http404, ObjectDoesNotExist),  # the latter: deleted since it was found
        lambda _error: Problem(status.HTTP_404_NOT_FOUND, "not_found", _("There is no such object.")),
    ),
    (
        (NotAllowed, PermissionDenied),
        lambda error: Problem(
            status.HTTP_403_FORBIDDEN, "permission_denied", str(error) or _("You may see this, but not change it.")
        ),
    ),
    (
        (AlreadyThere,),
        lambda error: Problem(
            status.HTTP_409_CONFLICT, "already_there", str(error), more={"document_id": error.document_id}
        ),
    ),
    (
        (Superseded,),
        lambda _error: Problem(
            status.HTTP_409_CONFLICT,
            "model_changed",
            _("The knowledge base moved to another embedding model meanwhile: send the request again."),
        ),
    ),
    (
        (UnreadablePostError,),  # the client has gone, in which case nobody reads this, or it has stopped in the middle
        lambda _error: Problem(
            status.HTTP_408_REQUEST_TIMEOUT, "request_timeout", _("The body did not arrive: send the request again.")
        ),
    ),
    ((Rejected,), _rejected),
    (
        # Of a request's overrides: its own fields were checked, a profile's settings when it was made, the environment's
        # at the start.
        (InvalidConfiguration,),
        lambda error: Problem(
            status.HTTP_400_BAD_REQUEST, "invalid", str(error), {f"overrides.{error.field}": [str(error)]}
        ),
    ),
    (
        (NoChannelAvailable,),
        lambda error: _not_now("no_channel_available", str(error), degraded=as_values(error.degradations)),
    ),
    ((TooManyWaits,), lambda error: _not_now("too_many_waits", str(error), RETRY_SECONDS)),
    (DATABASE_OUT_OF_REACH, _database_out_of_reach),
    ((FilesUnavailable,), _files_out_of_reach),
    (
        (RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent),
        lambda error: Problem(status.HTTP_413_REQUEST_ENTITY_TOO_LARGE, "too_large", str(error)),
    ),
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
        return {path or "non_field_errors": [str(each) for each in (detail if isinstance(detail, list) else [detail])]}
    flat: dict[str, list[str]] = {}
    for key, value in items:
        flat |= flatten(value, f"{path}.{key}" if path else key)
    return flat


OPENAI = "/v1/"
# What programs call: its errors are JSON, and a key opens it.
PROGRAMS = ("/api/", OPENAI)


def bad_request(request: HttpRequest, exception: Exception, *args: Any, **kwargs: Any) -> HttpResponse:
    """Of a request that the framework refuses before it comes to a view, as for its Host header."""
    if not request.path.startswith(PROGRAMS):
        return defaults.bad_request(request, exception, *args, **kwargs)
    detail = _("The server does not take this request: its host name or its form is not one that it serves.")
    return answer(Problem(status.HTTP_400_BAD_REQUEST, "bad_request", detail), request)


def server_error(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """Answers a fault outside of the views, which the framework logs; 503 without the database, 507 on a full disk."""
    error = sys.exception()
    is_full = is_disk_full(error)
    if request.path.startswith(PROGRAMS):
        is_known = is_full or isinstance(error, DATABASE_OUT_OF_REACH)
        return answer(problem_of(cast(Exception, error), request) if is_known else fault_problem(), request)
    if is_full:
        # Without the request, whose pages may need to write
        page = render_to_string("web/disk_full.html", {"detail": DiskFull()})
        return HttpResponse(page, status=status.HTTP_507_INSUFFICIENT_STORAGE)
    response = defaults.server_error(request, *args, **kwargs)
    if isinstance(error, DATABASE_OUT_OF_REACH):
        response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response


def answer(problem: Problem, request: HttpRequest) -> HttpResponse:
    """Of what comes to no view, in the form that the caller reads."""
    body: Mapping[str, Any] = problem.body()
    if request.path.startswith(OPENAI):
        kind = "server_error" if problem.status >= status.HTTP_500_INTERNAL_SERVER_ERROR else "invalid_request_error"
        body = {"error": {"message": problem.detail, "type": kind, "param": None, "code": problem.code}}
    return JsonResponse(body, status=problem.status, headers=dict(problem.headers))
