"""Which addresses may be connected to: public ones, and those that an administrator has allowed."""

import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import httpx

from kb.base.net.errors import FetchCode, FetchError

Address = IPv4Address | IPv6Address

PORTS: Final = (80, 443, 8080, 8443)
URL_CHARACTERS: Final = 2_000
_SCHEMES: Final = {"http": 80, "https": 443}
# As browsers tell names from addresses (WHATWG URL, "ends in a number").
_NUMBER: Final = re.compile(r"\d+|0x[\da-f]*", re.IGNORECASE)
# Public by their numbers, and yet of the provider that a server runs at.
_METADATA: Final = frozenset({ip_address("168.63.129.16")})
# Not public, whatever the version of Python at hand says of them.
_SPECIAL: Final = tuple(
    map(ip_network, ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15"))
)
_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))


@dataclass(frozen=True, slots=True)
class AllowList:
    """What may be read although it is not public, or at another port.

    Attributes:
        hosts: names with their port; None: any. They may be at private and loopback addresses, at no other special ones.
        networks: whose addresses may all be connected to, at any port.
    """

    hosts: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "AllowList":
        """Reads "intranet.example.org", "intranet.example.org:8000", "10.1.0.0/16", "127.0.0.1"; else ValueError."""
        hosts, networks = set(), []
        for entry in filter(None, (each.strip().lower() for each in entries)):
            try:
                networks.append(ip_network(entry, strict=False))
            except ValueError:
                host, _, port = entry.partition(":")
                hosts.add((host, int(port) if port else None))
        return cls(frozenset(hosts), tuple(networks))

    def covers(self, host: str, port: int, address: Address) -> bool:
        if any(plain(address) in network or address in network for network in self.networks):
            return True
        is_named = not self.hosts.isdisjoint({(host.lower(), None), (host.lower(), port)})
        return is_named and not _is_out_of_bounds(plain(address))


def plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, where it does."""
    if isinstance(address, IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
    if inner is None and any(address in network for network in _NAT64):
        inner = IPv4Address(int(address) & 0xFFFF_FFFF)
    return inner or address


def is_public(address: Address) -> bool:
    address = plain(address)
    return address.is_global and not _is_out_of_bounds(address) and not any(address in each for each in _SPECIAL)


def _is_out_of_bounds(address: Address) -> bool:
    """Never meant by the name of a host, on an intranet either."""
    return (
        address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or (address.is_reserved and not address.is_loopback)  # ::1 counts as reserved
        or getattr(address, "is_site_local", False)
        or address in _METADATA
    )


def parse_url(url: str) -> httpx.URL:
    """A web address; raises FetchError where its form is not allowed. Where the host is, is not looked at here."""
    shown = url[:200]
    try:
        parsed = httpx.URL(url.strip())
    except (httpx.InvalidURL, ValueError) as error:
        raise FetchError(FetchCode.BAD_URL, url=shown) from error
    if parsed.scheme and parsed.scheme not in _SCHEMES:
        raise FetchError(FetchCode.BAD_SCHEME, scheme=parsed.scheme)
    if not parsed.host or not parsed.scheme or len(url) > URL_CHARACTERS or "\\" in url:
        raise FetchError(FetchCode.BAD_URL, url=shown)
    if parsed.userinfo:
        raise FetchError(FetchCode.HAS_USERINFO)
    host = parsed.raw_host.decode("ascii")
    if ":" not in host and _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        try:
            ip_address(host)
        except ValueError as error:
            raise FetchError(FetchCode.NUMERIC_HOST, host=host) from error
    return parsed


def port_of(url: httpx.URL) -> int:
    return url.port or _SCHEMES[url.scheme]


def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host by the system's resolver; raises OSError where it has none."""
    return list(dict.fromkeys(str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


@dataclass(frozen=True, slots=True)
class Guard:
    allowed: AllowList = field(default_factory=AllowList)
    resolver: Callable[[str, int], Sequence[str]] = resolve

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses to connect to, resolved once; whoever connects uses these and asks nobody again.

        Raises:
            FetchError: the host has none, or one of them is not to be connected to.
        """
        try:
            found = [ip_address(each) for each in self.resolver(host, port)]
        except (OSError, UnicodeError) as error:
            raise FetchError(FetchCode.UNKNOWN_HOST, host=host) from error
        if not found:
            raise FetchError(FetchCode.UNKNOWN_HOST, host=host)
        for address in found:
            if self.allowed.covers(host, port, address):
                continue
            if not is_public(address):
                raise FetchError(FetchCode.FORBIDDEN_ADDRESS, host=host, address=str(address))
            if port not in PORTS:
                raise FetchError(FetchCode.BAD_PORT, host=host, port=port, ports=", ".join(map(str, PORTS)))
        return [str(address) for address in found]
