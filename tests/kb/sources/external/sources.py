"""Live and external sources of a knowledge base, and searches of it, as the tests of both want them."""

from kb.base.shapes import as_values
from kb.models import SearchProvider, Source
from kb.search.services.search import SearchRequest, response_of, search
from kb.sources.external.providers.vertex import KIND
from tests.factories import principal
from tests.web_server import Page


def feed(web, *entries, path="/feed"):
    """Entries as (title, text)."""
    items = "".join(
        f"<item><title>{title}</title><link>{web.url(f'/{number}')}</link><description>{text}</description></item>"
        for number, (title, text) in enumerate(entries, start=1)
    )
    web.pages[path] = Page(f"<rss version='2.0'><channel>{items}</channel></rss>", type="text/xml")


def live_feed(kb, web, name="news", path="/feed", **fields):
    values = {"kind": "feed", "live": True, "url": web.url(path)}
    return Source.objects.create(knowledge_base=kb, name=name, **(values | fields))


def vertex_source(kb, service, name="site search", **fields):
    values = {"project": "library", "data_store": "site", "endpoint": service.endpoint}
    return SearchProvider.objects.create(knowledge_base=kb, name=name, kind=KIND, settings=values, **fields)


def find(user, *kbs, query="when does the archive open", **fields):
    """The outcome; without a gate, unless it is asked for."""
    overrides = {"score_threshold": 0.0, **fields.pop("overrides", {})}
    ids = [kb.pk for kb in kbs]
    asked = SearchRequest(query=query, knowledge_base_ids=ids, overrides=overrides, **{"explain": True, **fields})
    return search(principal(user), asked)


def codes(outcome):
    return [each.code.value for each in outcome.result.degraded if each.code != "hashing_embedder"]


def elsewhere(outcome):
    return [hit for hit in as_values(response_of(outcome))["results"] if hit["chunk_id"] is None]
