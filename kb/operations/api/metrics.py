import secrets

from django.conf import settings
from django.http import HttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import AllowAny
from rest_framework.request import Request

from kb.base.net.client_address import is_local
from kb.operations.services.monitoring import exposition
from kb.web.api.authentication import SCHEME
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
