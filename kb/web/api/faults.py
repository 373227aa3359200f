"""Errors that no view could answer, such as a fault in middleware: JSON under the API's paths, as all of its errors."""

import sys
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views import defaults
from rest_framework import status

from kb.base.errors import DATABASE_OUT_OF_REACH
from kb.web.api.errors import RETRY_AFTER_S, Problem, fault_problem, problem_of

PREFIX = "/api/"


def bad_request(request: HttpRequest, exception: Exception, *args: Any, **kwargs: Any) -> HttpResponse:
    """Of a request that the framework refuses before it comes to a view, as for its Host header."""
    if not request.path.startswith(PREFIX):
        return defaults.bad_request(request, exception, *args, **kwargs)
    detail = _("The server does not take this request: its host name or its form is not one that it serves.")
    return answer(Problem(status.HTTP_400_BAD_REQUEST, "bad_request", detail))


def server_error(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """Of a fault outside of the views; it is logged by the framework.

    A database that is out of reach, as for who the session is of, is 503 here as in the views.
    """
    error = sys.exception()
    is_outage = isinstance(error, DATABASE_OUT_OF_REACH)
    if not request.path.startswith(PREFIX):
        response = defaults.server_error(request, *args, **kwargs)
        if is_outage:
            response.status_code = status.HTTP_503_SERVICE_UNAVAILABLE
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response
    return answer(problem_of(error, request) if isinstance(error, DATABASE_OUT_OF_REACH) else fault_problem())


def answer(problem: Problem) -> HttpResponse:
    """What is said of an error, outside of the views."""
    return JsonResponse(problem.body(), status=problem.status, headers=dict(problem.headers))
