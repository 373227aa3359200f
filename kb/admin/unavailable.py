"""What a reader sees while the database is out of reach: when to come back, and what an operator should look at."""

import logging
from collections.abc import Callable
from http import HTTPStatus

from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from kb.services.errors import DATABASE_OUT_OF_REACH

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 30


class DatabaseOutOfReach:
    """Middleware that answers 503 with Retry-After in place of 500; the API does so by itself."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, _request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, DATABASE_OUT_OF_REACH):
            return None
        logger.error("the database could not answer", exc_info=exception)
        # Without the request: what the theme's pages show beside their own matter comes from the database.
        page = render_to_string("admin/unavailable.html", {"seconds": RETRY_AFTER_S})
        headers = {"Retry-After": str(RETRY_AFTER_S), "Cache-Control": "no-store"}
        return HttpResponse(page, status=HTTPStatus.SERVICE_UNAVAILABLE, headers=headers)
