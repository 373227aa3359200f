"""The results of a search as its page shows them: what is a result, what just missed it, and the rest."""

import pytest
from django.urls import reverse

from kb.models import KnowledgeBase, SearchLog, User
from retrieval import selection
from tests.factories import make_document, make_kb
from tests.kb.quality.debug.admin.debug_page import Page, outcome_of, words

pytestmark = pytest.mark.django_db

MOST_BYTES = 300_000


@pytest.fixture
def manual(curator):
    """A knowledge base with 25 chunks of a usual length that all share words with the query."""
    kb = make_kb(curator, "Manual")
    sentence = "阀门每六个月检查一次，发现渗漏应当立即更换密封圈并记录在维修日志中。"
    make_document(kb, *[f"第 {number} 台水泵的维护：{sentence * 12}" for number in range(25)], title="水泵维护手册")
    return kb


def ids(hits):
    return [int(each.get("data-chunk-id")) for each in hits]


def test_every_candidate_stands_in_one_of_three_lists(open_debug, curator, flights):
    result = outcome_of(curator, flights, q="flight")

    page = Page(open_debug(kb=flights.pk, q="flight"))

    assert ids(page.hits("results")) == [hit.passage.chunk_id for hit in result.hits]
    assert [words(each.xpath(".//*[@data-rt-rank]")[0]) for each in page.hits("results")] == list("12345")
    assert sorted(ids(page.hits())) == sorted(each.chunk_id for each in result.candidates)
    assert page.one("//*[@data-testid='others']").get("open") is None


def test_near_misses_stand_below_the_cut(open_debug, curator, handbook, monkeypatch):
    hits = outcome_of(curator, handbook, q="late flight 报销", score_threshold=0).hits
    first, second, _third = sorted(hits, key=lambda hit: -hit.score)
    cut = round((first.score + second.score) / 2, 3)
    monkeypatch.setattr(selection, "overlap_cut", lambda _chunks: cut)

    page = Page(open_debug(kb=handbook.pk, q="late flight 报销"))

    assert ids(page.hits("results")) == [first.passage.chunk_id]
    assert ids(page.hits("near"))[0] == second.passage.chunk_id
    assert page.one("//*[@data-rt-cut]").get("data-at") == f"{cut:g}"
    scores = [float(each.get("data-score")) for each in page.hits("results") + page.hits("near")[:1]]
    assert scores == pytest.approx([first.score, second.score], abs=1e-6)


def test_sums_over_ranks_have_no_cut(open_debug, curator, handbook, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "rerankers": ()}
    KnowledgeBase.objects.filter(pk=handbook.pk).update(embedding_model="/no/such/model")
    assert outcome_of(curator, handbook, q="flight").score_scale == "rrf"

    page = Page(open_debug(kb=handbook.pk, q="flight"))

    assert page.hits("results")
    assert not page.has("cut")
    assert not page.tree.xpath("//li[@data-score]")


def test_with_25_candidates_the_page_stays_small(open_debug, manual):
    response = open_debug(kb=manual.pk, q="水泵阀门渗漏怎么维护", top_k=5)

    assert len(Page(response).hits()) == 25
    assert len(response.content) < MOST_BYTES


def test_what_no_search_here_has_is_no_warning(open_debug, handbook):
    assert not Page(open_debug(kb=handbook.pk, q="flight")).has("warnings")


def test_what_this_search_lacks_beyond_that_is_one_chip(open_debug, handbook):
    KnowledgeBase.objects.filter(pk=handbook.pk).update(tokenizer_id="older")

    page = Page(open_debug(kb=handbook.pk, q="flight"))

    chip = page.one("//*[@data-testid='warnings']/summary")
    assert words(chip).startswith("⚠")
    assert "the keyword index is out of date" in page.text("warnings")
    assert "vectors compare words" not in page.text("warnings")


def test_the_process_is_a_view_of_the_same_search_and_not_part_of_the_results(client, open_debug, handbook):
    results = Page(open_debug(kb=handbook.pk, q="flight", top_k=2))
    assert not results.has("candidates")

    process = Page(client.get(results.one("//*[@data-testid='process']").get("href")))

    assert process.rows()
    assert process.value("top_k") == "2"


def test_a_title_leads_to_the_passage_in_its_document(client, open_debug, handbook):
    hit = Page(open_debug(kb=handbook.pk, q="flight")).hits("results")[0]

    (link,) = hit.xpath(".//*[@class='rt-title']/a/@href")
    assert client.get(link, follow=True).status_code == 200


# -- The knowledge base ------------------------------------------------------------------------------------------------


def test_the_knowledge_base_that_was_searched_last_is_chosen_on_the_next_page(client, open_debug, curator, handbook):
    make_kb(curator, "Another")
    open_debug(kb=handbook.pk, q="flight")

    for name in ("search_debug", "why_not", "compare"):
        page = Page(client.get(reverse(f"admin:{name}")))
        assert page.tree.xpath("//input[@name='kb'][@checked]/@value") == [str(handbook.pk)], name


def test_one_that_is_closed_by_now_is_not_chosen(client, curator, handbook):
    make_kb(curator)
    User.objects.filter(pk=curator.pk).update(last_knowledge_base=make_kb())

    page = Page(client.get(reverse("admin:search_debug")))

    assert page.status == 200
    assert not page.tree.xpath("//input[@name='kb'][@checked]")


def test_the_page_of_a_knowledge_base_keeps_to_it(client, curator, handbook):
    other = make_kb(curator, "Another")
    make_document(other, "A flight elsewhere.")
    url = reverse("admin:kb_knowledgebase_test", args=[handbook.pk])

    page = Page(client.get(url, {"q": "flight", "kb": other.pk}))

    assert len(page.hits()) == 3
    assert not page.tree.xpath("//input[@name='kb'][@type='checkbox']")
    assert SearchLog.objects.get().knowledge_base_ids == [handbook.pk]


def test_a_draft_on_the_page_of_a_knowledge_base_leads_back_to_it(client, handbook):
    url = reverse("admin:kb_knowledgebase_test", args=[handbook.pk])

    response = client.post(f"{url}?q=flight&top_k=2", {"draft-name": "tuned", "draft-place": handbook.pk})

    assert response.status_code == 302
    assert response.url.startswith(f"{url}?q=flight&profile=")
    assert Page(client.get(response.url)).text("profile") == "tuned v1"
