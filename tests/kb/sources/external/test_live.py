import threading
from concurrent.futures import wait

import pytest

from kb.base.shapes import as_values
from kb.index.filters import Filters
from kb.models import Source
from kb.search import wiring
from kb.search.services.search import SearchRequest, respond, response_of, wire
from kb.sources.services.sources import source_pause, source_resume
from retrieval.execution import Share
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.sources.external.sources import codes, elsewhere, feed, find, live_feed
from tests.web_server import ARTICLE, Page, article

pytestmark = pytest.mark.django_db


def test_an_entry_of_a_feed_is_a_result_with_its_address_and_no_chunk(owner, kb, web):
    feed(web, ("Archive closed on Monday", "The archive stays closed on Monday for repairs."), ("Cake", "A recipe."))
    live_feed(kb, web)
    outcome = find(owner, kb, query="is the archive closed on Monday")
    first = as_values(response_of(outcome))["results"][0]
    assert (first["chunk_id"], first["document_id"], first["source"]) == (None, None, web.url("/1"))
    assert first["metadata"]["external"]["source"] == "news"
    assert first["metadata"]["external"]["kind"] == "feed"
    assert first["ranks"]["web:news"] == 1
    assert codes(outcome) == []


def test_a_page_is_cut_and_its_best_part_found(owner, kb, web):
    web.pages["/"] = Page(article("Visit", ARTICLE + "Dogs must wait outside of the reading room."))
    live_feed(kb, web, kind="page", path="/", name="visit")
    outcome = find(owner, kb, query="dogs in the reading room")
    assert any("Dogs must wait" in hit["text"] for hit in elsewhere(outcome))


def test_a_source_that_is_no_live_one_is_not_read(owner, kb, web):
    feed(web, ("Archive", "The archive."))
    live_feed(kb, web, live=False)
    live_feed(kb, web, name="off", enabled=False)
    assert elsewhere(find(owner, kb)) == []
    assert web.paths == []


def test_switching_it_on_takes_effect_at_the_next_search(owner, kb, web):
    feed(web, ("Archive", "The archive opens at ten today."))
    source = live_feed(kb, web, live=False)
    assert elsewhere(find(owner, kb)) == []
    source.live = True
    source.save()
    assert len(elsewhere(find(owner, kb))) == 1


def test_a_run_of_a_source_leaves_responses_as_they_are(kb, web):
    source = live_feed(kb, web)
    before = type(kb.version_row).objects.get(knowledge_base=kb).content_version
    source.status = "running"
    source.save()
    assert type(kb.version_row).objects.get(knowledge_base=kb).content_version == before


def test_a_chunk_of_the_same_text_stands_for_both(owner, kb, web):
    feed(web, ("Other title", "The archive opens  at nine and closes at five."))
    live_feed(kb, web)
    outcome = find(owner, kb)
    assert elsewhere(outcome) == []
    first = outcome.result.hits[0]
    assert first.passage.title == "Hours"
    assert {"web:news", "bm25", "vector"} <= {each.channel for each in first.provenance}


def test_filters_leave_it_out_with_a_word(owner, kb, web):
    feed(web, ("Archive", "The archive opens at ten today."))
    live_feed(kb, web)
    outcome = find(owner, kb, filters=Filters.parse({"source_types": ["book"]}))
    assert elsewhere(outcome) == []
    assert codes(outcome) == ["external_left_out"]
    assert web.paths == []


def test_a_request_may_leave_it_out(owner, kb, web):
    feed(web, ("Archive", "The archive opens at ten today."))
    live_feed(kb, web)
    outcome = find(owner, kb, overrides={"external": False})
    assert (elsewhere(outcome), codes(outcome), web.paths) == ([], [], [])


def test_without_a_reranker_nothing_is_sent_out(owner, kb, web):
    live_feed(kb, web)
    assert codes(find(owner, kb, overrides={"use_rerank": False})) == ["external_left_out"]
    assert web.paths == []


def test_the_cap_of_the_web_counts_them(owner, kb, web):
    feed(web, *((f"Archive {number}", f"The archive opens at {number}.") for number in range(6)))
    live_feed(kb, web)
    outcome = find(owner, kb, overrides={"general_retrieval": False, "max_web": 2, "top_k": 10})
    assert len(elsewhere(outcome)) == 2


def test_a_weighted_sum_scores_it_by_keywords_and_by_cosine(owner, kb, web):
    feed(web, ("Archive", "The archive opens at ten today."))
    live_feed(kb, web)
    [hit] = elsewhere(find(owner, kb, overrides={"fusion": "weighted"}))
    assert hit["scores"]["bm25"] > 0
    assert 0 < hit["scores"]["vector"] <= 1


@pytest.mark.parametrize(
    ("page", "code"),
    [
        (Page("x" * 100, type="text/xml", hang_after=10), "external_timeout"),
        (Page("no feed"), "external_not_configured"),
        (Page("", status=404), "external_not_configured"),
        (Page("", status=403), "external_refused"),
        (Page("", status=429), "external_quota"),
        (Page("", status=500), "external_unavailable"),
    ],
)
def test_every_fault_is_told_and_costs_only_its_results(owner, kb, web, page, code):
    web.pages["/feed"] = page
    live_feed(kb, web)
    outcome = find(owner, kb, overrides={} if page.hang_after is None else {"external_timeout_ms": 400})
    assert codes(outcome) == [code]
    assert outcome.result.hits[0].passage.title == "Hours"
    assert "news" in next(each.detail for each in outcome.result.degraded if each.code == code)


def test_an_address_inside_is_refused(owner, kb, web, settings):
    settings.WEB_ALLOWED_HOSTS = []
    live_feed(kb, web)
    assert codes(find(owner, kb)) == ["external_not_configured"]
    assert web.paths == []


def test_only_who_may_see_the_knowledge_base_asks_its_sources(owner, kb, web):
    feed(web, ("Archive", "The archive opens at ten today."))
    live_feed(kb, web)
    stranger = make_user()
    other = make_kb(stranger, "other", language="en")
    make_document(other, "The archive of another house.")
    assert elsewhere(find(stranger, other)) == []
    assert web.paths == []


def test_the_search_log_can_be_read_and_replayed_without_it(owner, kb, web):
    from kb.search.services.replay import replay

    feed(web, ("Archive", "The archive opens at ten today."))
    live_feed(kb, web)
    outcome = find(owner, kb)
    again = replay(principal(owner), outcome.trace_id)
    assert again.without_external
    assert {result.change.value for result in again.results} <= {"same", "moved", "rescored"}
    assert [each for each in again.configuration if each.name == "external"] == []
    assert web.paths == ["/feed"]


def test_its_response_is_kept_for_a_minute_only(owner, kb, web, monkeypatch):
    from kb.search.services import search as hot_queries

    feed(web, ("Archive", "The archive opens at ten today."))
    live_feed(kb, web)
    kept = []
    cache = hot_queries.hot_queries()
    monkeypatch.setattr(cache, "put", lambda _key, _response, most_s: kept.append(most_s))
    respond(principal(owner), SearchRequest(query="archive", knowledge_base_ids=[kb.pk]))
    assert kept == [60.0]


def test_an_evaluation_asks_nobody(owner, kb, web):
    from kb.search.services.search import wire

    live_feed(kb, web)
    wiring = wire(principal(owner), SearchRequest(query="", knowledge_base_ids=[kb.pk]))
    assert not wiring.uses_external_sources


def test_a_source_that_failed_repeatedly_is_left_alone(owner, kb, web):
    web.pages["/feed"] = Page("", status=500)
    live_feed(kb, web)
    for _ in range(5):
        assert codes(find(owner, kb)) == ["external_unavailable"]
    assert len(web.paths) == 3


def test_what_is_measured_asks_nobody_even_if_it_is_told_to(owner, kb, web):
    feed(web, ("Archive", "The archive opens at ten today."))
    live_feed(kb, web)
    request = SearchRequest(query="", knowledge_base_ids=[kb.pk], overrides={"external": True})
    wiring = wire(principal(owner), request)
    wiring.pipeline.run("when does the archive open", wiring.config)
    assert (wiring.uses_external_sources, wiring.config.external, web.paths) == (False, False, [])


def test_a_paused_source_is_not_asked(owner, kb, web):
    feed(web, ("Archive", "The archive opens at ten today."))
    source = live_feed(kb, web)
    assert len(elsewhere(find(owner, kb))) == 1
    source_pause(source)
    assert elsewhere(find(owner, kb)) == []
    source_resume(source)
    assert len(elsewhere(find(owner, kb))) == 1


def test_a_source_for_which_others_wait_already_is_left_out_at_once(owner, kb, web):
    feed(web, ("Archive", "The archive opens at ten today."))
    source, released = live_feed(kb, web), threading.Event()
    others = [wiring._share(wiring.WEB, source.pk).submit(released.wait) for _ in range(wiring.THREADS_A_SOURCE)]
    outcome = find(owner, kb)
    assert (codes(outcome), elsewhere(outcome)) == (["external_busy"], [])
    released.set()
    wait(others)
    assert len(elsewhere(find(owner, kb))) == 1


def test_a_slow_source_leaves_room_for_another(owner, kb, web, monkeypatch):
    feed(web, ("Archive", "The archive opens at ten today."))
    live_feed(kb, web, name="slow")
    live_feed(kb, web, name="news", max_pages=3)
    slow = Source.objects.get(name="slow")
    monkeypatch.setattr(wiring, "_share", lambda _stage, pk: Share(wiring._threads(), int(pk != slow.pk)))
    outcome = find(owner, kb)
    assert codes(outcome) == ["external_busy"]
    assert len(elsewhere(outcome)) == 1
