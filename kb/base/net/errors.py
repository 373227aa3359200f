"""Why an address was not read, each with what to do about it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kb.base.findings import gettext_noop


class FetchCode(StrEnum):
    BAD_URL = "bad_url"
    BAD_SCHEME = "bad_scheme"
    BAD_PORT = "bad_port"
    HAS_USERINFO = "has_userinfo"
    NUMERIC_HOST = "numeric_host"
    FORBIDDEN_ADDRESS = "forbidden_address"
    UNKNOWN_HOST = "unknown_host"
    UNREACHABLE = "unreachable"
    TLS_FAILED = "tls_failed"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    BAD_ENCODING = "bad_encoding"
    BAD_TYPE = "bad_type"
    TOO_MANY_REDIRECTS = "too_many_redirects"
    OFF_SITE = "off_site"
    BROKEN_RESPONSE = "broken_response"
    GONE = "gone"
    FORBIDDEN = "forbidden"
    TOO_MANY_REQUESTS = "too_many_requests"
    BAD_STATUS = "bad_status"
    ROBOTS = "robots"
    ROBOTS_UNREADABLE = "robots_unreadable"
    NOT_A_SITEMAP = "not_a_sitemap"
    NOT_A_FEED = "not_a_feed"
    SLOW_FEED = "slow_feed"
    EMPTY_LISTING = "empty_listing"
    SLOW_PATTERN = "slow_pattern"
    DUPLICATE = "duplicate"
    SAME_TEXT = "same_text"
    ONE_TEXT = "one_text"
    MANY_GONE = "many_gone"


# Templates are translated first and formatted afterwards, so each is a constant.
MESSAGES: Final[dict[FetchCode, str]] = {
    FetchCode.BAD_URL: gettext_noop("“{url}” is not a web address. Give one such as https://example.org/page."),
    FetchCode.BAD_SCHEME: gettext_noop(
        "Addresses that begin with “{scheme}” are not read. Give one that begins with https:// or http://."
    ),
    FetchCode.BAD_PORT: gettext_noop(
        "Port {port} of {host} is none of {ports}. Use one of those, or let an administrator add “{host}:{port}” to "
        "WEB_ALLOWED_HOSTS."
    ),
    FetchCode.HAS_USERINFO: gettext_noop(
        "The address holds a user name or a password before an “@”. Take it out: only public pages are read."
    ),
    FetchCode.NUMERIC_HOST: gettext_noop(
        "“{host}” is an IP address in an unusual form. Give the name of the host, or the address as four decimal numbers."
    ),
    FetchCode.FORBIDDEN_ADDRESS: gettext_noop(
        "{host} is at {address}, which is not a public address. Give a public one; an administrator can allow an intranet "
        "in WEB_ALLOWED_HOSTS."
    ),
    FetchCode.UNKNOWN_HOST: gettext_noop("There is no host named “{host}”. Check the spelling of the address."),
    FetchCode.UNREACHABLE: gettext_noop(
        "{host} does not answer. Open the address in a browser; if it works there, this server may lack access to the web."
    ),
    FetchCode.TLS_FAILED: gettext_noop(
        "The certificate of {host} is not valid for it. Ask who runs the site to fix it, or use its http:// address."
    ),
    FetchCode.TIMEOUT: gettext_noop("{host} took longer than {seconds} seconds. Try again later."),
    FetchCode.TOO_LARGE: gettext_noop(
        "The content is larger than {megabytes} MB. Leave the address out, or let an administrator raise WEB_MAX_MB."
    ),
    FetchCode.BAD_ENCODING: gettext_noop(
        "The server packs the content as “{encoding}”, which was not asked for. Save the page and upload the file."
    ),
    FetchCode.BAD_TYPE: gettext_noop(
        "The content is of the type “{type}”, which holds no text to read. Leave the address out, or upload the file."
    ),
    FetchCode.TOO_MANY_REDIRECTS: gettext_noop(
        "The address leads on more than {count} times. Give the one that a browser shows in the end."
    ),
    FetchCode.OFF_SITE: gettext_noop(
        "The address leads on to {url}, outside of this source. Add a source of its own for it, or leave the address out."
    ),
    FetchCode.BROKEN_RESPONSE: gettext_noop("The answer of {host} is broken off or no proper HTTP. Try again later."),
    FetchCode.GONE: gettext_noop(
        "There is no such page any more (HTTP {status}). Correct the address, or leave it out."
    ),
    FetchCode.FORBIDDEN: gettext_noop(
        "The server lets only those in who have signed in (HTTP {status}). Save the page and upload the file."
    ),
    FetchCode.TOO_MANY_REQUESTS: gettext_noop(
        "{host} asks for fewer requests (HTTP {status}). The rest is read at the next run: let it come less often."
    ),
    FetchCode.BAD_STATUS: gettext_noop("The server answers with HTTP {status}. Try again later."),
    FetchCode.ROBOTS: gettext_noop(
        "The site’s robots.txt does not allow this page to be read. Ask who runs the site, or leave the address out."
    ),
    FetchCode.ROBOTS_UNREADABLE: gettext_noop(
        "The robots.txt of {host} cannot be read, so that nobody knows what may be. It is tried again at the next run."
    ),
    FetchCode.NOT_A_SITEMAP: gettext_noop(
        "The address holds no sitemap. Give that of an XML sitemap, often /sitemap.xml, or crawl the site instead."
    ),
    FetchCode.NOT_A_FEED: gettext_noop(
        "The address holds no RSS or Atom feed. Look for the feed’s address on the site, or read it as a page."
    ),
    FetchCode.SLOW_FEED: gettext_noop(
        "The feed takes more time or memory to read than a feed may. Ask who runs the site to fix it, or read its pages."
    ),
    FetchCode.EMPTY_LISTING: gettext_noop(
        "Not one address is left to read, so nothing was changed. Check the address and what it shall be like."
    ),
    FetchCode.DUPLICATE: gettext_noop(
        "The knowledge base holds the same content already, as “{title}”. Leave one of the two addresses out."
    ),
    FetchCode.SAME_TEXT: gettext_noop(
        "The page shows the same text as “{title}” now. Its document is kept for {hours} hours at least, and deleted or "
        "replaced at the first run after them that finds the same; accept the changes of the source to have it so at once."
    ),
    FetchCode.ONE_TEXT: gettext_noop(
        "{count} of {known} pages show one text now: “{excerpt}”. That may be a notice of maintenance or a login page, so the "
        "run was stopped and their documents are kept. Open the site: accept the changes if it is meant to be so; else the "
        "next run reads it again."
    ),
    FetchCode.MANY_GONE: gettext_noop(
        "{count} of {known} pages have gone or show the text of others. Their documents are kept. Open the site: accept the "
        "changes if they are to be deleted; else correct the address of the source, or wait for the next run."
    ),
    FetchCode.SLOW_PATTERN: gettext_noop(
        "The expression “{pattern}” takes too long on an address. Write it without repetitions inside repetitions."
    ),
}


class FetchError(Exception):
    """Why an address was not read, as a sentence for whoever gave it.

    Attributes:
        code: stable, the key of MESSAGES.
        params: the values of the template's fields, for a translated template.
    """

    def __init__(self, code: FetchCode, **params: str | int) -> None:
        self.code = code
        self.params: Mapping[str, str | int] = params
        super().__init__(MESSAGES[code].format(**params))
