"""A run of a source reads its pages in one parser's child, as well as if each had one of its own."""

import os
import signal
from dataclasses import replace

import psutil
import pytest

from kb.ingest.parser import sandbox
from kb.ingest.parser.sandbox import WarmParser
from kb.sources.connectors import markup
from kb.sources.connectors.web import reading
from kb.sources.connectors.web.pages import PageRun
from kb.sources.services.sources import source_request
from kb.sources.services.working import run_source
from tests.kb.sources.connectors.web.sources import create, entry, feed, run, sitemap, states
from tests.web_server import Page, article, client_for

pytestmark = [pytest.mark.django_db, pytest.mark.sandbox]


def children():
    return {each.pid for each in psutil.Process().children()}


@pytest.fixture
def started(monkeypatch):
    """The children that pages were given to, one entry for each page, and `None` for each that had a child of its own."""
    seen = []
    before = children()
    real_ask, real_job = WarmParser._ask, sandbox.run_job

    def ask(parser, *arguments):
        answer = real_ask(parser, *arguments)
        seen.append(parser._child.pid)
        return answer

    def own(*arguments, **keywords):
        seen.append(None)
        return real_job(*arguments, **keywords)

    monkeypatch.setattr(WarmParser, "_ask", ask)
    for module in (markup, sandbox):
        monkeypatch.setattr(module, "run_job", own)
    yield seen
    assert children() == before


@pytest.fixture
def site(kb, web):
    paths = [f"/{name}" for name in "abc"]
    for path in paths:
        web.pages[path] = Page(article(f"Title {path}", f"The page {path} says this. " * 20))
    web.pages["/sitemap.xml"] = sitemap(web, *paths)
    return create(kb, web, "sitemap", "/sitemap.xml")


def test_the_pages_of_a_site_share_a_child_that_ends_with_the_run(site, web, started):
    assert run(site, web).counts == {"added": 3}
    assert len(started) == 3
    assert len(set(started) - {None}) == 1


def test_a_run_that_is_interrupted_leaves_no_child(site, web, started, monkeypatch):
    def broken(*_arguments):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(PageRun, "keep", broken)
    assert run(site, web).status == "failed"
    assert len(started) == 1


def test_a_slice_of_a_run_leaves_no_child(site, web, started):
    before = children()
    source_request(site)
    assert run_source(site.pk, client=client_for(web), slice_s=0)
    assert (len(started), children()) == (1, before)


def test_a_page_that_breaks_the_child_leaves_the_others_readable(site, web, started, monkeypatch):
    real = WarmParser._ask

    def ask(parser, job, path, arguments):
        if arguments["url"].endswith("/b"):
            os.kill(parser._child.pid, signal.SIGKILL)
        return real(parser, job, path, arguments)

    monkeypatch.setattr(WarmParser, "_ask", ask)
    assert run(site, web).counts == {"added": 3}
    first, own, last = started
    assert own is None
    assert first != last


def test_a_page_without_text_fails_with_its_sentence_among_others_that_are_read(site, web):
    web.pages["/b"] = Page("<html><body></body></html>")
    assert run(site, web).counts == {"added": 2, "failed": 1}
    assert states(site) == {"a": "kept", "b": "failed", "c": "kept"}
    assert site.items.get(state="failed").error_code == "empty_file"


def test_a_slow_page_has_the_full_time_in_a_child_of_its_own(site, web, started, monkeypatch, settings):
    settings.PARSE_SECONDS = 77
    real, given = markup.run_job, []

    def ask(parser, job, path, arguments):
        if not arguments["url"].endswith("/b"):
            return real_ask(parser, job, path, arguments)
        warm, parser._warm = parser._warm, replace(parser._warm, seconds=0.01)
        parser._child.send_signal(signal.SIGSTOP)
        try:
            return real_ask(parser, job, path, arguments)
        finally:
            parser._warm = warm

    def own(*arguments, limits, **keywords):
        given.append(limits.seconds)
        return real(*arguments, limits=limits, **keywords)

    real_ask = WarmParser._ask
    monkeypatch.setattr(WarmParser, "_ask", ask)
    monkeypatch.setattr(markup, "run_job", own)
    assert run(site, web).counts == {"added": 3}
    assert given == [77]


def test_a_page_that_is_too_slow_for_the_full_time_fails_with_its_sentence(site, web, monkeypatch, settings):
    settings.PARSE_SECONDS = 0.001
    assert run(site, web).counts == {"failed": 3}
    assert set(site.items.values_list("error_code", flat=True)) == {"timeout"}


def test_pages_of_different_sites_that_a_feed_leads_to_share_no_child(kb, web, started):
    reader = reading.Reader(PageRun.claim(create(kb, web, "feed", "/feed").pk), client_for(web))
    parser = reader._parser_of("http://a.example/1")
    fetched = markup.Fetched("http://a.example/1", content=article("A").encode(), media_type="text/html")
    for url in ("http://a.example/1", "http://a.example/2", "http://b.example/1", "http://a.example/3"):
        markup.content_of_page(replace(fetched, url=url), sandbox.Limits(), reader._parser_of(url))
    parser.close()
    first, second, third, fourth = started
    assert first == second
    assert len({first, third, fourth}) == 3


def test_a_document_of_a_site_has_a_child_of_its_own(site, web, started):
    web.pages["/b"] = Page(b"%PDF-1.7\n" + b"\0" * 5_000, type="application/pdf")
    assert run(site, web).counts == {"added": 2, "failed": 1}
    assert site.items.get(state="failed").error_code == "damaged_file"
    assert started[1] is None


def test_entries_of_a_feed_share_a_child(kb, web, started):
    texts = [f"<p>About {word}. {word * 30}</p>" for word in ("ships", "trains", "roads")]
    web.pages["/feed"] = feed(web, *(entry(web, f"/{at}", text[9:14], content=text) for at, text in enumerate(texts)))
    assert run(create(kb, web, "feed", "/feed"), web).counts == {"added": 3}
    assert len(set(started)) == 1
