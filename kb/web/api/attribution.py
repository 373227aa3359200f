"""The one place where requests, of the API and of the admin, are told to the audit log."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from django.http import HttpRequest, HttpResponse

from kb.access.models.accounts import User
from kb.access.services.attribution import How, acting
from kb.base.net.client_address import client_address
from kb.base.telemetry import context

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class AttributionMiddleware:
    """Tells of requests that may write. Views whose POST only reads (`post_reads`) are left alone, as are safe methods."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with ExitStack() as told:
            request.__dict__["attribution"] = told
            return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Of a caller with an API key the view learns later than this who it is, and tells (`caller_is`)."""
        if request.method in SAFE_METHODS or getattr(getattr(view, "cls", None), "post_reads", False):
            return
        route = request.resolver_match.route if request.resolver_match else ""
        is_api = route.startswith("api/")
        user = getattr(request, "user", None)
        told: ExitStack = request.__dict__["attribution"]
        told.enter_context(
            acting(
                How.API if is_api else How.ADMIN,
                via=f"{request.method} {route}",
                user=user if isinstance(user, User) else None,
                address=client_address(request),
                request_id=str(context.fields().get("request_id", "")),
            )
        )
