"""Headers that bound what a page may do: one content security policy for each kind of page."""

from collections.abc import Mapping
from typing import Any

from csp.constants import HEADER, NONCE, NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from csp.middleware import CSPMiddleware, PolicyParts
from csp.utils import build_policy
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

Policy = Mapping[str, Any]

# Of JSON, files and whatever else is no page: a browser that shows it all the same runs and loads nothing. The text of the
# header, since the API sends it with each of its responses.
NOTHING = build_policy(
    config={
        "default-src": [NONE],
        "base-uri": [NONE],
        "form-action": [NONE],
        "frame-ancestors": [NONE],
        "sandbox": True,
    }
)
# Of the API's documentation, and what the admin's pages start from.
PAGE: Policy = {
    "default-src": [NONE],
    "base-uri": [NONE],
    "connect-src": [SELF],
    "font-src": [SELF],
    "form-action": [SELF],
    "frame-ancestors": [NONE],
    "img-src": [SELF, "data:"],
    "script-src": [SELF, NONCE],
    "style-src": [SELF],
}
ADMIN: Policy = {
    **PAGE,
    # The theme's attributes (x-on:click="open = !open") are evaluated by Alpine, whose build for strict policies cannot
    # read all of them: no arrow functions, no localStorage. No script of an attribute or of the page itself runs.
    "script-src": [SELF, NONCE, UNSAFE_EVAL],
    # The theme writes its colours into a <style>, and pages the length of a bar into an attribute; nothing but this
    # server can be reached from a style.
    "style-src": [SELF, UNSAFE_INLINE],
}
# None of these is asked for, so none is there for a script that should not be.
PERMISSIONS = ", ".join(
    f"{feature}=()"
    for feature in (
        "accelerometer",
        "browsing-topics",
        "camera",
        "display-capture",
        "geolocation",
        "gyroscope",
        "magnetometer",
        "microphone",
        "midi",
        "payment",
        "serial",
        "usb",
        "xr-spatial-tracking",
    )
)


class SecurityHeaders(CSPMiddleware):
    """Chooses the policy by the response: a page of the admin, another page, or no page."""

    def get_policy_parts(
        self,
        request: HttpRequest,
        response: HttpResponseBase,
        report_only: bool = False,  # noqa: FBT001, FBT002 - the library's interface
    ) -> PolicyParts:
        parts = super().get_policy_parts(request, response, report_only)
        if not report_only and parts.config is None:
            parts.config = dict(ADMIN if request.path_info.startswith(reverse("admin:index")) else PAGE)
        return parts

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        is_page = response.headers.get("Content-Type", "").startswith("text/html") and isinstance(
            response, HttpResponse
        )
        if not is_page:
            response.headers.setdefault(HEADER, NOTHING)
            return response
        answer: HttpResponseBase = super().process_response(request, response)
        return answer
