"""What a source would take, before it is saved."""

from itertools import islice

from kb.base.net.addresses import FetchError
from kb.sources.connectors.listing import web_client
from kb.sources.connectors.registry import connector_of, owner_of
from kb.sources.connectors.web.preview import LISTED, Preview, PreviewItem, web_preview
from kb.sources.models import Source


def source_preview(source: Source) -> Preview:
    """The first items of a source, saved or not; raises Rejected where its kind has no place to read from."""
    if source.kind in Source.WEB:
        return web_preview(source, web_client(owner_of(source)))
    found: list[PreviewItem] = []
    try:
        with connector_of(source) as connector:
            found.extend(
                PreviewItem(key=item.key, url=item.url, title=item.title, size=item.size)
                for item in islice(connector.items(), LISTED + 1)
            )
    except FetchError as error:
        return Preview(tuple(found[:LISTED]), error=error)
    return Preview(tuple(found[:LISTED]), has_more=len(found) > LISTED)
