"""The client as the installation is configured."""

from functools import lru_cache

from django.conf import settings

from kb.base.net.addresses import AllowList, Guard
from kb.base.net.client import Politeness, WebClient


@lru_cache(maxsize=4)
def _politeness(seconds: float) -> Politeness:
    """One for the process, so that two sources of a host share it."""
    return Politeness(seconds)


def web_client() -> WebClient:
    """A client by WEB_ALLOWED_HOSTS, WEB_USER_AGENT, WEB_DELAY_SECONDS, WEB_MAX_MB and WEB_SECONDS."""
    return WebClient(
        guard=Guard(AllowList.parse(settings.WEB_ALLOWED_HOSTS)),
        politeness=_politeness(settings.WEB_DELAY_SECONDS),
        user_agent=settings.WEB_USER_AGENT,
        max_bytes=settings.WEB_MAX_BYTES,
        seconds=settings.WEB_SECONDS,
    )
