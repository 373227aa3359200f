"""Whose request it is, for throttling: the address of the client, not that of a proxy before this server."""

import ipaddress
from typing import Final

from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port

_FORWARDED: Final = frozenset(
    {"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"}
)


def client_address(request: HttpRequest) -> str:
    return caller_address(request.META.get("REMOTE_ADDR", ""), request.headers.get("X-Forwarded-For", ""))


def client_network(request: HttpRequest) -> str:
    return network_of(client_address(request))


def network_of(address: str) -> str:
    """The address, or for IPv6 the first one of its /64: whoever has one address there has all of them."""
    return str(ipaddress.ip_network((address, 64), strict=False).network_address) if ":" in address else address


def is_local(request: HttpRequest) -> bool:
    """Whether a program of this machine asks, and no proxy: that would show by a forwarded address or a host name."""
    host = split_domain_port(request.get_host())[0].strip("[]")
    return (
        _is_loopback(request.META.get("REMOTE_ADDR", ""))
        and (host == "localhost" or _is_loopback(host))
        and not _FORWARDED & request.headers.keys()
    )


def _is_loopback(address: str) -> bool:
    found = _address(address)
    return bool(found) and ipaddress.ip_address(found).is_loopback


def caller_address(peer: str, forwarded_for: str) -> str:
    """Where a request is from, in one spelling of the address; blank where it is none.

    With TRUSTED_PROXIES = n it is the n-th from the right of X-Forwarded-For, which the outermost of one's own proxies has
    written; what stands left of it is the client's own claim. Without proxies the header is not read.
    """
    proxies: int = settings.TRUSTED_PROXIES
    hops = [hop for hop in map(str.strip, forwarded_for.split(",")) if hop]
    return _address(hops[-proxies] if len(hops) >= proxies > 0 else peer)


def _address(text: str) -> str:
    """One spelling of an address, that of IPv4 also where IPv6 holds it; empty where it is none. Some proxies add a port."""
    host = text.rpartition("]")[0].lstrip("[") if text.startswith("[") else text
    if host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)
