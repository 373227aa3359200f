"""How long a request's body may be, said before anything reads it: little for callers that nobody knows."""

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.wsgi import WSGIRequest
from django.db import DatabaseError, connections
from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve
from django.utils.deprecation import MiddlewareMixin
from django.utils.module_loading import import_string
from django.utils.translation import gettext
from rest_framework.exceptions import APIException, AuthenticationFailed, Throttled

from kb.access.services.api_keys import api_key_use
from kb.web.api.authentication import SCHEME, WRONG_KEY
from kb.web.api.errors import PREFIX, LengthRequired, TooLarge, answer, problem_of
from kb.web.api.throttling import count_failure

FORM_OVERHEAD_BYTES = 1024**2


class BodyLimit(MiddlewareMixin):
    """Middleware before all that reads a form, the check of its token included; refuses by the stated length alone."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        try:
            check_body(request)
        except APIException as error:
            if isinstance(error, AuthenticationFailed):
                error = _counted(request, error)
            if request.path.startswith(PREFIX):
                return answer(problem_of(error))
            return HttpResponse(str(error.detail), status=error.status_code, content_type="text/plain; charset=utf-8")
        return None


def check_body(request: HttpRequest) -> None:
    """Asks the database only for a body that is too large for a caller without a session or key.

    Raises:
        LengthRequired: the body comes in chunks of unknown number; it would be read as an empty one.
        TooLarge: it is longer than this caller may send here.
        AuthenticationFailed: it is long, and comes with an API key that opens nothing.
    """
    if "Transfer-Encoding" in request.headers:
        raise LengthRequired(gettext("Send the body with a Content-Length, not in chunks of unknown number."))
    length = stated_length(request.META)
    if length <= settings.ANONYMOUS_BODY_BYTES:
        return
    if not _is_known(request):
        message = gettext("Without a session or an API key a request’s body has at most %(kilobytes)s KB.")
        raise TooLarge(message % {"kilobytes": settings.ANONYMOUS_BODY_BYTES // 1024})
    is_form = (request.content_type or "").startswith("multipart/")
    most = _most_form_bytes(request) + FORM_OVERHEAD_BYTES if is_form else settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if length > most:
        advice = gettext("split the file") if is_form else gettext("upload long texts as a file")
        message = gettext("The body is larger than %(megabytes)s MB: %(advice)s.")
        raise TooLarge(message % {"megabytes": most // 1024**2, "advice": advice})


def may_send(environ: dict[str, Any]) -> bool:
    """Whether the body that a request states may be taken in, asked before it has arrived.

    Args:
        environ: of WSGI.

    Returns:
        False also where nobody can say; the request is then answered without its body.
    """
    request = WSGIRequest(environ)
    request.session = import_string(f"{settings.SESSION_ENGINE}.SessionStore")(
        request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    )
    try:
        check_body(request)
    except (APIException, DatabaseError):
        return False
    finally:
        connections.close_all()
    return True


def stated_length(environ: dict[str, Any]) -> int:
    """In bytes; read as the framework does, which takes what is no number for none."""
    try:
        return int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0


def _counted(request: HttpRequest, error: AuthenticationFailed) -> APIException:
    """The error itself, or that there were too many such from its address."""
    try:
        count_failure(request)
    except Throttled as throttled:
        return throttled
    error.auth_header = SCHEME  # type: ignore[attr-defined]
    return error


def _is_known(request: HttpRequest) -> bool:
    scheme, _separator, secret = request.headers.get("Authorization", "").partition(" ")
    if request.path.startswith(PREFIX) and scheme.lower() == SCHEME.lower():
        if api_key_use(secret.strip()) is None:
            raise AuthenticationFailed(WRONG_KEY)
        return True
    return settings.SESSION_COOKIE_NAME in request.COOKIES and get_user(request).is_authenticated


def _most_form_bytes(request: HttpRequest) -> int:
    """How long the files of a form may be together: a view that takes archives says so (`most_form_bytes`)."""
    try:
        view = resolve(request.path_info).func
    except Resolver404:
        return 0
    view_class = getattr(view, "cls", None) or getattr(view, "view_class", view)
    most = getattr(view_class, "most_form_bytes", None)
    return int(most() if most else settings.MAX_UPLOAD_BYTES)
