"""Errors as Dify reads them: {"error_code", "error_msg"}."""

from collections.abc import Mapping
from typing import Any

from rest_framework import exceptions, status
from rest_framework.response import Response

from kb.web.api.errors import exception_handler

MALFORMED_AUTHORIZATION, AUTHORIZATION_FAILED, UNKNOWN_KNOWLEDGE = 1001, 1002, 2001


class MalformedAuthorization(exceptions.AuthenticationFailed):
    """The header holds no key at all, whereas one that opens nothing is an AuthenticationFailed."""


def dify_exception_handler(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """The API's own answer to an error in Dify's form.

    Dify has codes for a key and for a knowledge base that are not there; any other error has its HTTP status for a code. It
    takes 403, and not 401, for a key that does not open.
    """
    response = exception_handler(error, context)
    if response is None:
        return None
    if response.status_code == status.HTTP_401_UNAUTHORIZED:
        response.status_code = status.HTTP_403_FORBIDDEN
        del response.headers["WWW-Authenticate"]
    response.data = {"error_code": _code(error, response.status_code), "error_msg": _message(response.data)}
    return response


def _code(error: Exception, status_code: int) -> int:
    if isinstance(error, MalformedAuthorization):
        return MALFORMED_AUTHORIZATION
    own = {status.HTTP_403_FORBIDDEN: AUTHORIZATION_FAILED, status.HTTP_404_NOT_FOUND: UNKNOWN_KNOWLEDGE}
    return own.get(status_code, status_code)


def _message(problem: Mapping[str, Any]) -> str:
    """One sentence: Dify shows nothing else."""
    fields: Mapping[str, list[str]] = problem.get("fields", {})
    return "; ".join(f"{name}: {' '.join(messages)}" for name, messages in fields.items()) or str(problem["detail"])
