"""Limits of requests at the door of the API: 429 with Retry-After, and RateLimit headers on every answer to a caller."""

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from kb.access.models import ApiKey
from kb.access.services.rate_limits import GENERAL, Spent, failure_spend, request_spend
from kb.base.net.client_address import client_network
from kb.web.api.authentication import user_of


class CallerThrottle(BaseThrottle):
    """Counts each request of a known caller once. A view names another kind for its POST and PUT: `rate_limit_kind`."""

    def allow_request(self, request: Request, view: Any) -> bool:
        if not request.user.is_authenticated:
            return True
        kind = getattr(view, "rate_limit_kind", GENERAL) if request.method in {"POST", "PUT"} else GENERAL
        spent = request_spend(user_of(request), _key_of(request), kind=kind)
        request.rate_limit = spent  # type: ignore[attr-defined]
        return spent is None or spent.allowed

    def wait(self) -> None:
        """The view tells how long, from what was spent."""


def spend_more(request: Request, cost: int, refusal: str) -> None:
    """Counts a request for what it costs beyond what was counted at the door.

    Args:
        request: whose caller is known.
        cost: as how many more requests it counts.
        refusal: what to tell where they are more than are left.

    Raises:
        Throttled: they are.
    """
    spent = request_spend(user_of(request), _key_of(request), cost=cost) if cost else None
    if spent is None:
        return
    request.rate_limit = spent  # type: ignore[attr-defined]
    if not spent.allowed:
        raise too_many(spent, refusal)


def _key_of(request: Request) -> ApiKey | None:
    return request.auth if isinstance(request.auth, ApiKey) else None


def too_many(spent: Spent | None, detail: str = "") -> Throttled:
    """The error for a caller who has used up an allowance."""
    return Throttled(
        wait=spent.resets_in_s if spent else None, detail=detail or _("Too many requests: wait as Retry-After says.")
    )


def count_failure(request: HttpRequest) -> None:
    """Counts a request whose caller is not known.

    Raises:
        Throttled: there were too many from its address.
    """
    spent = failure_spend(client_network(request))
    if spent is not None and not spent.allowed:
        raise too_many(spent)


def rate_limit_headers(spent: Spent) -> dict[str, str]:
    """As in draft-ietf-httpapi-ratelimit-headers: what is allowed, what is left, and for how many seconds."""
    return {
        "RateLimit-Policy": f"{spent.limit};w={spent.seconds}",
        "RateLimit-Limit": str(spent.limit),
        "RateLimit-Remaining": str(spent.remaining),
        "RateLimit-Reset": str(spent.resets_in_s),
    }
