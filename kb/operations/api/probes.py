"""For load balancers and supervisors: no caller, no details."""

from dataclasses import asdict

from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view, inline_serializer
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from kb.operations.services.health.readiness import Readiness, components, overall
from kb.web.api.errors import Unavailable
from kb.web.api.schema import PROBLEMS
from kb.web.api.views import ApiView

STATUS = inline_serializer("Status", {"status": serializers.CharField()})
COMPONENT = inline_serializer(
    "Component",
    {
        "name": serializers.CharField(),
        "state": serializers.CharField(help_text="`ok`, `degraded` or `not_ready`"),
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
        state = overall(found)
        if state is Readiness.NOT_READY:
            missing = ", ".join(each.name for each in found if each.state is Readiness.NOT_READY)
            raise Unavailable(_("Not ready (%(what)s): see `manage.py doctor`.") % {"what": missing})
        status = "ready" if state is Readiness.OK else "degraded"
        return Response({"status": status, "components": [asdict(each) for each in found]})


@extend_schema(exclude=True)
class NoSuchEndpointView(PublicView):
    """Answers every other path under the API's own, so that this error too is JSON."""

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:  # noqa: ARG002
        raise NotFound(_("There is no such endpoint; every path ends with a slash."))
