"""Sources that are made and run, and what their sites serve."""

from datetime import timedelta

from django.db.models import F

from kb.models import SourceItem
from kb.sources.services.sources import source_create, source_request
from kb.sources.services.working import run_source
from tests.web_server import Page, client_for


def create(kb, web, kind, path="/", **fields):
    return source_create(knowledge_base=kb, user=kb.owner, name="site", kind=kind, url=web.url(path), **fields)


def run(source, web, **fields):
    """A whole run, from the request for it to its end."""
    source_request(source)
    while run_source(source.pk, client=client_for(web, **fields)):
        pass
    source.refresh_from_db()
    return source


def states(source):
    return {page.url.rpartition("/")[2]: page.state for page in source.items.all()}


def sitemap(web, *paths):
    urls = "".join(f"<url><loc>{web.url(path)}</loc></url>" for path in paths)
    body = f'<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{urls}</urlset>'
    return Page(body, type="application/xml")


def feed(web, *items):
    body = "".join(items)
    return Page(
        f'<rss version="2.0" xmlns:content="http://purl.org/rss/1.0/modules/content/"><channel><title>News</title>{body}'
        "</channel></rss>",
        type="application/rss+xml",
    )


def entry(web, path, title, *, content="", summary="", date="Mon, 02 Nov 2026 08:00:00 GMT"):
    whole = f"<content:encoded><![CDATA[{content}]]></content:encoded>" if content else ""
    return (
        f"<item><title>{title}</title><link>{web.url(path)}</link><description>{summary}</description>{whole}"
        f"<pubDate>{date}</pubDate></item>"
    )


def a_day_later(source):
    """Lets the day pass after which pages that are gone, or show the text of others, lose their documents."""
    SourceItem.objects.filter(source=source).update(gone_at=F("gone_at") - timedelta(hours=25))
