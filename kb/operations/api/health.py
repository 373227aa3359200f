"""For load balancers and supervisors: no caller, no details."""

import secrets

from django.conf import settings
from django.http import HttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view, inline_serializer
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed, NotFound
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.findings import State
from kb.base.net.client_address import is_local
from kb.operations.services.health.health import components
from kb.operations.services.monitoring import exposition
from kb.web.api.callers import SCHEME
from kb.web.api.errors import ApiError
from kb.web.api.fields import PROBLEMS
from kb.web.api.views import AnyAccept, ApiView


class MetricsToken(BaseAuthentication):
    """`Authorization: Bearer <METRICS_TOKEN>`; whoever has it is no user. Without such a token only this machine may read."""

    def authenticate(self, request: Request) -> None:
        scheme, _separator, token = request.headers.get("Authorization", "").partition(" ")
        wanted = settings.METRICS_TOKEN
        is_sent = scheme.lower() == SCHEME.lower() and secrets.compare_digest(token.strip().encode(), wanted.encode())
        if not (is_sent if wanted else is_local(request._request)):
            raise AuthenticationFailed(
                _("The metrics need a token: send the server’s METRICS_TOKEN as “Authorization: Bearer”.")
            )

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002 - the framework's interface
        return SCHEME


@extend_schema(exclude=True)
class MetricsView(ApiView):
    """For Prometheus; no label names a knowledge base, a query or a user."""

    authentication_classes = [MetricsToken]
    permission_classes = [AllowAny]
    content_negotiation_class = AnyAccept

    def get(self, request: Request) -> HttpResponse:
        body, content_type = exposition(request.headers.get("Accept", ""))
        return HttpResponse(body, content_type=content_type)


STATUS = inline_serializer("Status", {"status": serializers.CharField()})
COMPONENT = inline_serializer(
    "Component",
    {
        "name": serializers.CharField(),
        "state": serializers.CharField(help_text="`ok` or `degraded`"),
        "detail": serializers.CharField(allow_blank=True),
    },
    many=True,
)
READY = inline_serializer(
    "Ready", {"status": serializers.CharField(help_text="`ready` or `degraded`"), "components": COMPONENT}
)


class PublicView(ApiView):
    authentication_classes = []
    permission_classes = [AllowAny]


@extend_schema_view(get=extend_schema(summary="Whether the process is alive", auth=[], responses={200: STATUS}))
class HealthView(PublicView):
    def get(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return Response({"status": "ok"})


@extend_schema_view(
    get=extend_schema(
        summary="Whether the process can serve: database, its migrations, Redis, models; not while it loads or ends",
        auth=[],
        responses={200: OpenApiResponse(READY), 503: PROBLEMS[503]},
    )
)
class ReadyView(PublicView):
    def get(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        found = components()
        if missing := ", ".join(each.name for each in found if each.state is State.BROKEN):
            raise ApiError(503, "unavailable", _("Not ready (%(what)s): see `manage.py doctor`.") % {"what": missing})
        status = "ready" if all(each.state is State.OK for each in found) else "degraded"
        told = [{"name": each.name, "state": each.state, "detail": each.detail} for each in found]
        return Response({"status": status, "components": told})


@extend_schema(exclude=True)
class NoSuchEndpointView(PublicView):
    """Answers every other path under the API's own, so that this error too is JSON."""

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:  # noqa: ARG002
        raise NotFound(_("There is no such endpoint; every path ends with a slash."))
