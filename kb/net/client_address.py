"""Whose request it is, for throttling: the address of the client, not that of a proxy before this server."""

import ipaddress

from django.conf import settings
from django.http import HttpRequest


def client_address(request: HttpRequest) -> str:
    """The client's address; see `caller_address`."""
    return caller_address(request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", ""))


def caller_address(peer: str, forwarded_for: str) -> str:
    """Where a request is from.

    With TRUSTED_PROXIES = n it is the n-th from the right of X-Forwarded-For, which the outermost of one's own proxies
    has written; what stands left of it is the client's own claim. Without proxies the header is not read.

    Args:
        peer: the address at the other end of the connection.
        forwarded_for: the header X-Forwarded-For; blank: none.

    Returns:
        One spelling of the address; blank where it is none.
    """
    proxies: int = settings.TRUSTED_PROXIES
    hops = [hop for hop in map(str.strip, forwarded_for.split(",")) if hop]
    return _address(hops[-proxies] if len(hops) >= proxies > 0 else peer)


def _address(text: str) -> str:
    """One spelling of an address; empty where it is none. Some proxies add a port."""
    host = text.rpartition("]")[0].lstrip("[") if text.startswith("[") else text
    if host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return ""
