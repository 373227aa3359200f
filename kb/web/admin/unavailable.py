"""What a reader sees where nothing is wrong with what was asked: when to come back, and what an operator should look at."""

import logging
from collections.abc import Callable
from http import HTTPStatus

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.base.errors import COLLISION_SECONDS, DATABASE_OUT_OF_REACH, is_collision
from kb.base.files import FilesUnavailable

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 30


class Unavailable:
    """Middleware that answers 503 with Retry-After in place of 500; the API does so by itself."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, DATABASE_OUT_OF_REACH):
            logger.error("the database could not answer", exc_info=exception)
            # Without the request: what the theme's pages show beside their own matter comes from the database.
            return _answer(render_to_string("web/unavailable.html", {"seconds": RETRY_AFTER_S}), RETRY_AFTER_S)
        if not request.path.startswith(reverse("admin:index")):
            return None
        if isinstance(exception, FilesUnavailable):
            logger.error("uploads cannot be reached: %s", exception)
            detail = _("The store of the files cannot be reached: try again in a moment.")
            return _answer(_try_again(request, detail), RETRY_AFTER_S)
        if is_collision(exception):
            logger.warning("a row was deleted while another came to point to it", exc_info=exception)
            detail = _("Something that this belongs to was deleted at the same moment, and nothing was changed.")
            return _answer(_try_again(request, detail), COLLISION_SECONDS)
        return None


def _try_again(request: HttpRequest, detail: str) -> str:
    context = {**admin.site.each_context(request), "title": _("This did not work just now"), "detail": detail}
    return render_to_string("web/try_again.html", context, request)


def _answer(page: str, seconds: int) -> HttpResponse:
    headers = {"Retry-After": str(seconds), "Cache-Control": "no-store"}
    return HttpResponse(page, status=HTTPStatus.SERVICE_UNAVAILABLE, headers=headers)
