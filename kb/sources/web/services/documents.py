"""A page of the web as a document that is read once, without a source."""

from typing import Any

from django.conf import settings
from django.core.files.base import ContentFile
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.base.errors import Rejected
from kb.base.net.backend import Deadline
from kb.base.net.client import Ask, WebClient
from kb.base.net.errors import MESSAGES as FETCH_MESSAGES
from kb.base.net.errors import FetchError
from kb.base.net.settings import web_client
from kb.content.models.documents import Document
from kb.ingest.parser.parsed import MESSAGES as PARSE_MESSAGES
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits
from kb.sources.connectors.content import READABLE, content_of_page
from kb.sources.connectors.robots import Robots

SECONDS = 30.0


def page_read(
    *,
    url: str,
    title: str = "",
    metadata: dict[str, Any] | None = None,
    client: WebClient | None = None,
    **details: Any,
) -> dict[str, Any]:
    """Reads a page now, so that it can be taken in as a file like any other.

    Args:
        url: of the page.
        title: blank: the page's.
        metadata: beside the address and when it was read and published.
        client: None: as the installation is configured.
        details: further ones of `document_add`.

    Returns:
        What `document_add` takes beside the knowledge base and the user.

    Raises:
        Rejected: it cannot be read, or must not be.
    """
    deadline = Deadline(SECONDS)
    client = client or web_client()
    try:
        robots = Robots(client, deadline)
        fetched = client.fetch(url, Ask(types=READABLE, before_hop=robots.check, deadline=deadline))
        limits = Limits(memory_bytes=settings.PARSE_MEMORY_BYTES, seconds=deadline.remaining(url))
        content = content_of_page(fetched, limits)
    except FetchError as error:
        raise Rejected("url_refused", _(FETCH_MESSAGES[error.code]).format(**error.params)) from error
    except ParseError as error:
        raise Rejected("url_refused", _(PARSE_MESSAGES[error.code]).format(**error.params)) from error
    found = {"url": url, "fetched_at": timezone.now().isoformat(timespec="seconds")}
    if content.published:
        found["published"] = content.published.isoformat(timespec="seconds")
    return {
        "source_type": Document.SourceType.WEB,
        **details,
        "file": ContentFile(content.data),
        "name": content.name,
        "title": title or content.title,
        "metadata": {**(metadata or {}), **found},
    }
