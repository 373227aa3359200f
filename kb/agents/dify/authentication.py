import re

from django.utils.translation import gettext_lazy as _
from rest_framework.request import Request

from kb.access.models.accounts import ApiKey, User
from kb.agents.dify.errors import MalformedAuthorization
from kb.web.api.authentication import ApiKeyAuthentication

_HEADER = re.compile(r"bearer +\S+", re.IGNORECASE)


class DifyAuthentication(ApiKeyAuthentication):
    """An API key and nothing else; Dify tells a header that it cannot read from a key that does not open."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        if not _HEADER.fullmatch(request.headers.get("Authorization", "").strip()):
            raise MalformedAuthorization(
                _("Invalid Authorization header: send “Bearer ”, with a space, and an API key of this server.")
            )
        return super().authenticate(request)
