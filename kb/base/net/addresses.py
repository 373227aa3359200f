"""Which addresses may be connected to: public and allowed ones; and why an address was not read."""

import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import httpx

from kb.base.findings import gettext_noop

Address = IPv4Address | IPv6Address

PORTS: Final = (80, 443, 8080, 8443)
URL_CHARACTERS: Final = 2_000
_SCHEMES: Final = {"http": 80, "https": 443}
# As browsers tell names from addresses (WHATWG URL, "ends in a number").
_NUMBER: Final = re.compile(r"\d+|0x[\da-f]*", re.IGNORECASE)
# Where clouds answer with credentials of the machine, besides the link-local addresses: Azure, Alibaba, Oracle, AWS.
_METADATA: Final = frozenset(map(ip_address, ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
# Not public, whatever the version of Python at hand says of them.
_SPECIAL: Final = tuple(
    map(ip_network, ("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15"))
)
_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))

# Templates are translated first and formatted afterwards, so each is a constant.
MESSAGES: Final[dict[str, str]] = {
    "bad_url": gettext_noop("“{url}” is not a web address. Give one such as https://example.org/page."),
    "bad_scheme": gettext_noop(
        "Addresses that begin with “{scheme}” are not read. Give one that begins with https:// or http://."
    ),
    "bad_port": gettext_noop(
        "Port {port} of {host} is none of {ports}. Use one of those, or let an administrator add “{host}:{port}” to "
        "WEB_ALLOWED_HOSTS."
    ),
    "has_userinfo": gettext_noop(
        "The address holds a user name or a password before an “@”. Take it out: a source that needs them has settings for them."
    ),
    "numeric_host": gettext_noop(
        "“{host}” is an IP address in an unusual form. Give the name of the host, or the address as four decimal numbers."
    ),
    "forbidden_address": gettext_noop(
        "{host} is not at a public address. Give a public one; an administrator can allow an intranet in WEB_ALLOWED_HOSTS."
    ),
    # For superusers: others would look names of the inner network up by it.
    "internal_address": gettext_noop(
        "{host} is at {address}, which is not a public address. Give a public one; an administrator can allow an intranet "
        "in WEB_ALLOWED_HOSTS."
    ),
    "private_model": gettext_noop(
        "{host} is at {address}, which is a private address. Let a superuser confirm it in the settings of the model."
    ),
    "metadata_address": gettext_noop(
        "{host} is at {address}, where no model can be: such addresses are a cloud’s own, or reserved. Give the address of the "
        "model’s server."
    ),
    "unknown_host": gettext_noop("There is no host named “{host}”. Check the spelling of the address."),
    "unreachable": gettext_noop(
        "{host} does not answer. Open the address in a browser; if it works there, this server may lack access to the web."
    ),
    "tls_failed": gettext_noop(
        "The certificate of {host} is not valid for it. Ask who runs the site to fix it, or use its http:// address."
    ),
    "timeout": gettext_noop("{host} took longer than {seconds} seconds. Try again later."),
    "too_large": gettext_noop(
        "The content is larger than {megabytes} MB. Leave the address out, or let an administrator raise WEB_MAX_MB."
    ),
    "bad_encoding": gettext_noop(
        "The server packs the content as “{encoding}”, which was not asked for. Save the page and upload the file."
    ),
    "bad_type": gettext_noop(
        "The content is of the type “{type}”, which holds no text to read. Leave the address out, or upload the file."
    ),
    "too_many_redirects": gettext_noop(
        "The address leads on more than {count} times. Give the one that a browser shows in the end."
    ),
    "off_site": gettext_noop(
        "The address leads on to {url}, outside of this source. Add a source of its own for it, or leave the address out."
    ),
    "broken_response": gettext_noop("The answer of {host} is broken off or no proper HTTP. Try again later."),
    "gone": gettext_noop("There is no such page any more (HTTP {status}). Correct the address, or leave it out."),
    "forbidden": gettext_noop(
        "The server lets only those in who have signed in (HTTP {status}). Save the page and upload the file."
    ),
    "too_many_requests": gettext_noop(
        "{host} asks for fewer requests (HTTP {status}). The rest is read at the next run: let it come less often."
    ),
    "bad_status": gettext_noop("The server answers with HTTP {status}. Try again later."),
    "robots": gettext_noop(
        "The site’s robots.txt does not allow this page to be read. Ask who runs the site, or leave the address out."
    ),
    "robots_unreadable": gettext_noop(
        "The robots.txt of {host} cannot be read, so that nobody knows what may be. It is tried again at the next run."
    ),
    "not_a_sitemap": gettext_noop(
        "The address holds no sitemap. Give that of an XML sitemap, often /sitemap.xml, or crawl the site instead."
    ),
    "not_a_feed": gettext_noop(
        "The address holds no RSS or Atom feed. Look for the feed’s address on the site, or read it as a page."
    ),
    "slow_feed": gettext_noop(
        "The feed takes more time or memory to read than a feed may. Ask who runs the site to fix it, or read its pages."
    ),
    "empty_listing": gettext_noop(
        "Not one address is left to read, so nothing was changed. Check the address and what it shall be like."
    ),
    "duplicate": gettext_noop(
        "The knowledge base holds the same content already, as “{title}”. Leave one of the two addresses out."
    ),
    "same_text": gettext_noop(
        "The page shows the same text as “{title}” now. Its document is kept for {hours} hours at least, and deleted or "
        "replaced at the first run after them that finds the same; accept the changes of the source to have it so at once."
    ),
    "one_text": gettext_noop(
        "{count} of {known} pages show one text now: “{excerpt}”. That may be a notice of maintenance or a login page, so the "
        "run was stopped and their documents are kept. Open the site: accept the changes if it is meant to be so; else the "
        "next run reads it again."
    ),
    "many_gone": gettext_noop(
        "{count} of {known} pages have gone or show the text of others. Their documents are kept. Open the site: accept the "
        "changes if they are to be deleted; else correct the address of the source, or wait for the next run."
    ),
    "folder_not_allowed": gettext_noop(
        "“{path}” is not below a folder that SOURCE_FOLDERS names. Give one of those, or let an administrator add it."
    ),
    "folder_missing": gettext_noop(
        "There is no folder “{path}” on the server just now. Mount its disk, if it has one of its own, or correct the path; "
        "a symbolic link is not followed. The documents are kept."
    ),
    "folder_empty": gettext_noop(
        "The folder “{path}” is empty, as one is whose disk is not mounted. The documents are kept: mount the disk, or "
        "delete the source if there is nothing left to read."
    ),
    "folder_unreadable": gettext_noop(
        "The server cannot list the folder “{path}” ({reason}). Let its user read the folder, or exclude it."
    ),
    "file_unreadable": gettext_noop(
        "The server cannot read the file ({reason}). Let its user read it, or exclude the file."
    ),
    "no_bucket": gettext_noop("{host} has no bucket “{bucket}”. Correct its name, the region or the endpoint."),
    "archived": gettext_noop(
        "The object is in an archive ({storage_class}), from which it must be restored before it can be read. Restore it, "
        "or exclude it."
    ),
    "plain_password": gettext_noop(
        "Over http:// anyone on the way to {host} can read and change what is sent. Use its https:// address, or let an "
        "administrator add “{host}” to WEB_ALLOWED_HOSTS."
    ),
    "bad_credentials": gettext_noop(
        "{host} refuses the user name, password or key ({reason}). Correct them in the settings of the source; many services "
        "want an app password or a token that may read."
    ),
    "no_folder": gettext_noop("There is no folder “{path}” at {host}. Correct it in the settings of the source."),
    "not_webdav": gettext_noop(
        "{host} answers, but not as a WebDAV folder ({reason}). Give the address for WebDAV that its settings show, for "
        "Nextcloud one such as https://cloud.example.org/remote.php/dav/files/NAME/Folder."
    ),
    "outside_folder": gettext_noop(
        "{host} lists “{href}”, which does not lie in the folder that was asked for, so nothing was changed. Ask who runs the "
        "server, or give the address of the folder as the server names it."
    ),
    "no_repository": gettext_noop(
        "There is no Git repository at {url}, or these credentials may not read it. Check both in the settings of the source."
    ),
    "empty_repository": gettext_noop(
        "{url} is no Git repository, or holds no commit. Check the address, or name a branch in the settings of the source."
    ),
    "no_branch": gettext_noop("The repository has no branch “{branch}”. Correct it in the settings of the source."),
    "repository_too_large": gettext_noop(
        "What {host} sends is larger than {megabytes} MB. Name a branch with less in it, ask who runs the server to allow partial "
        "clones (uploadpack.allowFilter), or let an administrator raise GIT_MAX_MB."
    ),
    "git_missing": gettext_noop(
        "The program {program} is missing on the server. Let an administrator install it (apt install {package})."
    ),
    "git_failed": gettext_noop("Git cannot read {host}: {reason}. Try the same address with `git ls-remote`."),
    "redirected": gettext_noop(
        "{host} leads on to another address (HTTP {status}), which is not followed. Give the one that a browser shows in the end."
    ),
    "host_key": gettext_noop(
        "{host} shows an SSH key that is none of the host keys in the settings of the source. If its key has been replaced, "
        "take the new one from whoever runs it; else somebody may be in between."
    ),
    "lfs_pointer": gettext_noop(
        "The repository holds only a pointer to this file (Git LFS), which is not followed. Store the file itself, or leave it out."
    ),
    "many_missing": gettext_noop(
        "{count} of {known} files of this source are not there any more. Their documents are kept. Look whether the place is as "
        "it should be: accept the changes if they are to be deleted; else correct the source, or wait for the next run."
    ),
    "too_many_items": gettext_noop(
        "The place has more than {most} files. Give a folder within it, or leave some out; nothing was changed."
    ),
    "folder_too_large": gettext_noop(
        "The list of what is in the folder “{path}” is larger than {megabytes} MB. Spread its files over several folders, or give "
        "a folder within it."
    ),
    "slow_listing": gettext_noop(
        "The place could not be listed within {hours} hours; nothing was changed. Give a folder within it, or ask who runs it why "
        "it answers slowly."
    ),
    "changed_while_read": gettext_noop(
        "The file changed while it was read. What was read is kept; the next run reads what it has become."
    ),
    "same_version": gettext_noop(
        "The place gives this file the version that it had before, and other content. The new content was taken; a check of "
        "all files by their content is made now and then."
    ),
    "slow_pattern": gettext_noop(
        "The expression “{pattern}” takes too long on an address. Write it without repetitions inside repetitions."
    ),
}


class FetchError(Exception):
    """Why an address was not read: a stable code of MESSAGES, and the values of its template, for translations."""

    def __init__(self, code: str, **params: str | int) -> None:
        self.code = code
        self.params: Mapping[str, str | int] = params
        super().__init__(MESSAGES[code].format(**params))


@dataclass(frozen=True, slots=True)
class AllowList:
    """What may be read although it is not public, or at another port.

    Attributes:
        hosts: with their port; None: any. They may be at private and loopback addresses, at no other special ones.
        networks: whose addresses may all be connected to, at any port.
        any_private: private and loopback addresses, at any port; no other special ones.
    """

    hosts: frozenset[tuple[str, int | None]] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    any_private: bool = False

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

    def names(self, host: str, port: int) -> bool:
        """Whether the operator has named this host, or its address where it is one; no name is resolved."""
        if not self.hosts.isdisjoint({(host.lower(), None), (host.lower(), port)}):
            return True
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(plain(address) in network or address in network for network in self.networks)

    def covers(self, host: str, port: int, address: Address) -> bool:
        if any(plain(address) in network or address in network for network in self.networks):
            return True
        is_named = self.any_private or not self.hosts.isdisjoint({(host.lower(), None), (host.lower(), port)})
        return is_named and not _is_out_of_bounds(plain(address))


Owner = Callable[[], str]


def nobody() -> str:
    return ""


def open_to(owner: Owner, entries: Iterable[str]) -> list[str]:
    """The places of entries such as PLACE, and PLACE@OWNER for what is open to the knowledge bases of that user alone."""
    # The name of a user may hold a further sign.
    parted = (entry.strip().partition("@") for entry in entries)
    return [place for place, _at, name in parted if not name or name == owner()]


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
        raise FetchError("bad_url", url=shown) from error
    if parsed.scheme and parsed.scheme not in _SCHEMES:
        raise FetchError("bad_scheme", scheme=parsed.scheme)
    if not parsed.host or not parsed.scheme or len(url) > URL_CHARACTERS or "\\" in url:
        raise FetchError("bad_url", url=shown)
    if parsed.userinfo:
        raise FetchError("has_userinfo")
    host = parsed.raw_host.decode("ascii")
    if ":" not in host and _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        try:
            ip_address(host)
        except ValueError as error:
            raise FetchError("numeric_host", host=host) from error
    return parsed


def port_of(url: httpx.URL) -> int:
    return url.port or _SCHEMES[url.scheme]


def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host by the system's resolver; raises OSError where it has none."""
    return list(dict.fromkeys(str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


@dataclass(frozen=True, slots=True)
class Guard:
    """Says which addresses may be connected to: public ones at `ports`, and what is allowed besides."""

    allowed: AllowList = field(default_factory=AllowList)
    resolver: Callable[[str, int], Sequence[str]] = resolve
    ports: Sequence[int] = PORTS

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses to connect to, resolved once; whoever connects uses these and asks nobody again.

        Raises FetchError where the host has none, or one of them is not to be connected to.
        """
        try:
            found = [ip_address(each) for each in self.resolver(host, port)]
        except (OSError, UnicodeError) as error:
            raise FetchError("unknown_host", host=host) from error
        if not found:
            raise FetchError("unknown_host", host=host)
        for address in found:
            if self.allowed.covers(host, port, address):
                continue
            if not is_public(address):
                raise FetchError("forbidden_address", host=host, address=str(address))
            if port not in self.ports:
                raise FetchError("bad_port", host=host, port=port, ports=", ".join(map(str, self.ports)))
        return [str(address) for address in found]
