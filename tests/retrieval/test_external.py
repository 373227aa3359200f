"""Searches elsewhere as channels: what comes from there is held within bounds before anything shows it."""

import time

import pytest

from retrieval.errors import DegradationCode
from retrieval.external import MOST_TEXT, MOST_TITLE, ExternalChannel
from retrieval.types import Analysis, ExternalHit


class Answers:
    kind, name = "fake", "News"

    def __init__(self, *hits):
        self.hits = hits

    def search(self, analysis, k, deadline):
        return self.hits


def passages(*hits):
    channel = ExternalChannel("external", 1, Answers(*hits), weight=1.0, most=10)
    return list(channel.search(Analysis(text="q"), 10, time.monotonic() + 1).passages.values())


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "JAVA\tSCRIPT:alert(1)", "data:text/html,x", "//evil", "https://a b", "x" * 3_000, ""],
)
def test_an_address_that_is_none_is_left_out(url):
    [passage] = passages(ExternalHit(url, "Title", "Text"))
    assert (passage.source, passage.origin.url, passage.metadata["external"]["url"]) == ("", "", "")


@pytest.mark.parametrize("url", ["https://example.org/a?b=c#d", "http://例.org/", "gs://bucket/file.pdf"])
def test_an_address_is_kept_as_it_is(url):
    [passage] = passages(ExternalHit(url, "Title", "Text"))
    assert passage.source == passage.origin.url == url


def test_what_a_service_answers_is_bounded():
    [passage] = passages(ExternalHit("", "t" * 10_000, "x" * 1_000_000, id="i" * 10_000, published="p" * 10_000))
    assert (len(passage.title), len(passage.text)) == (MOST_TITLE, MOST_TEXT)
    assert max(len(passage.origin.id), len(passage.origin.published)) <= 2_000


def test_a_source_that_is_late_says_so_by_its_stage():
    late = ExternalChannel("web", 1, Answers(), weight=1.0, most=10).lateness(Analysis(text="q"))
    assert (late.stage, late.code) == ("web", DegradationCode.EXTERNAL_TIMEOUT)
