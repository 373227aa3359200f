"""Errors as clients of OpenAI's protocol read them: {"error": {"message", "type", "param", "code"}}."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from django.utils.translation import gettext as _, gettext_lazy
from rest_framework import exceptions, status
from rest_framework.response import Response
from typing_extensions import Doc

from kb.answers.sse import fault_of
from kb.assistants.services.limits import LimitReached
from kb.base.errors import NotVisible, Rejected
from kb.base.shapes import as_values
from kb.web.api.errors import RETRY_AFTER_S, exception_handler
from retrieval.errors import InvalidConfiguration, NoChannelAvailable

logger = logging.getLogger(__name__)

TYPES = {
    status.HTTP_401_UNAUTHORIZED: "authentication_error",
    status.HTTP_403_FORBIDDEN: "permission_error",
    status.HTTP_404_NOT_FOUND: "not_found_error",
    status.HTTP_429_TOO_MANY_REQUESTS: "rate_limit_error",
}
CODES = {
    "authentication_failed": "invalid_api_key",
    "not_authenticated": "invalid_api_key",
    "throttled": "rate_limit_exceeded",
}


class NoSuchModel(exceptions.NotFound):
    """There is no such assistant, or the key does not open it: the answer is the same."""

    default_code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(
            _("There is no model “%(model)s” for this key: GET /v1/models lists those there are.") % {"model": model}
        )


class NoSuchEndpoint(exceptions.NotFound):
    default_code = "unknown_url"
    default_detail = gettext_lazy(
        "An assistant speaks POST /v1/chat/completions and GET /v1/models of OpenAI’s protocol, no more."
    )


@dataclass(frozen=True, slots=True)
class Fault:
    message: str
    type: str
    param: Annotated[str | None, Doc("The field that is at fault, if one is.")]
    code: str | None


@dataclass(frozen=True, slots=True)
class ErrorBody:
    error: Fault


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    return dict(as_values(ErrorBody(Fault(message, kind, param, code))))


class AnswerUnwritten(exceptions.APIException):
    """The chat model of the assistant has failed; neither its name nor its place is said."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_code = "chat_model_unavailable"
    default_detail = gettext_lazy("The answer could not be written, or broke off before its end: try again later.")
    wait = RETRY_AFTER_S


class CannotAnswer(exceptions.APIException):
    """What the assistant searches, or how, is not in order; neither is named to whoever may use it and no more."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_code = "assistant_unavailable"
    default_detail = gettext_lazy(
        "This assistant cannot answer at the moment: try again later, or tell whoever runs it."
    )
    wait = RETRY_AFTER_S


def openai_exception_handler(error: Exception, context: Mapping[str, Any]) -> Response:
    """The API's own answer to an error in OpenAI's form. A limit of the day is not worth another try within the minute."""
    if isinstance(error, LimitReached):
        body = error_body(str(error), "insufficient_quota", "insufficient_quota")
        return Response(body, status.HTTP_429_TOO_MANY_REQUESTS, headers={"x-should-retry": "false"})
    is_inside = isinstance(error, NotVisible | NoChannelAvailable | InvalidConfiguration)
    if is_inside or (isinstance(error, Rejected) and error.code != "too_many_streams"):
        logger.warning("an assistant could not answer: %s", error)
        error = CannotAnswer()
    response = exception_handler(error, context)
    found = response.data
    fields: Mapping[str, list[str]] = found.get("fields", {})
    message = "; ".join(f"{name}: {' '.join(messages)}" for name, messages in fields.items()) or found["detail"]
    kind = TYPES.get(response.status_code, "invalid_request_error" if response.status_code < 500 else "server_error")
    param = next(iter(fields), "").partition(".")[0] or None
    response.data = error_body(message, kind, CODES.get(found["code"], found["code"]), param)
    return response


def stream_fault(error: Exception) -> dict[str, Any]:
    """What a stream says of a fault after its beginning."""
    fault = fault_of(error)
    return error_body(str(fault["detail"]), "server_error", str(fault["code"]))
