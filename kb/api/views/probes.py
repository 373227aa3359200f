"""For load balancers and supervisors: no caller, no details."""

from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view, inline_serializer
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.errors import Unavailable
from kb.api.schema import PROBLEMS
from kb.api.views.base import ApiView
from kb.services.health.findings import State
from kb.services.health.health import migrations, postgresql, redis_broker

STATUS = inline_serializer("Status", {"status": serializers.CharField()})


class PublicView(ApiView):
    authentication_classes = []
    permission_classes = [AllowAny]


@extend_schema_view(get=extend_schema(summary="Whether the process is alive", auth=[], responses={200: STATUS}))
class HealthView(PublicView):
    def get(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return Response({"status": "ok"})


@extend_schema_view(
    get=extend_schema(
        summary="Whether the process can serve: database, its migrations, Redis",
        auth=[],
        responses={200: OpenApiResponse(STATUS), 503: PROBLEMS[503]},
    )
)
class ReadyView(PublicView):
    def get(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        # In this order: the migrations can only be read where the database answers.
        for check in (postgresql, migrations, redis_broker):
            finding = check()
            if finding.state is not State.OK:
                raise Unavailable(_("Not ready (%(what)s): see `manage.py doctor`.") % {"what": finding.name})
        return Response({"status": "ready"})


@extend_schema(exclude=True)
class NoSuchEndpointView(PublicView):
    """Answers every other path under the API's own, so that this error too is JSON."""

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:  # noqa: ARG002
        raise NotFound(_("There is no such endpoint; every path ends with a slash."))
