"""What an evaluation run measured of its queries: the misses, and the table of all."""

import csv
from urllib.parse import parse_qs, urlsplit

import pytest
from django.urls import reverse

from kb.models import Judgment
from tests.factories import make_document
from tests.kb.quality.runs.admin.run_pages import done, judged_set, links, listed, missed, page_of, url
from tests.kb.quality.runs.eval_runs import answered, unanswered
from tests.kb.web.admin.pages import Page, words


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def eval_set(kb, document):
    return judged_set(kb, document)


# -- Misses --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def with_misses(eval_set):
    queries = [
        answered("hit"),
        missed("q0", "rerank", text="违约金过高怎么办", query=eval_set.queries.get(external_id="q0")),
        missed("lost1", "channels"),
        missed("lost2", "channels"),
        unanswered("none", 0.9),
    ]
    return done(eval_set, queries, overrides={"fusion": "weighted"})


def test_misses_are_grouped_by_the_stage_that_lost_them_in_the_order_of_the_pipeline(client, with_misses):
    page = page_of(client, with_misses)

    choices = {each.get("data-lost"): words(each.xpath("b")[0]) for each in page.tree.xpath("//nav//a[@data-lost]")}
    assert choices == {"": "3", "channels": "2", "rerank": "1"}
    assert [words(each) for each in page.tree.xpath("//*[@data-testid='misses']//h3")] == [
        "No channel found it",
        "The reranker ranked it too low",
    ]


def test_the_misses_of_one_stage_can_be_seen_alone(client, with_misses):
    page = page_of(client, with_misses, "?lost=rerank")

    assert page.tree.xpath("//li[contains(@class, 'er-miss')]/@data-lost") == ["rerank"]


def test_a_miss_links_to_search_debug_under_the_same_settings(client, kb, with_misses):
    page = page_of(client, with_misses, "?lost=rerank")

    href = next(each for each in links(page, "misses") if each.startswith(reverse("admin:search_debug")))
    asked = {name: values[0] for name, values in parse_qs(urlsplit(href).query).items()}
    assert asked == {
        "kb": str(kb.pk),
        "q": "违约金过高怎么办",
        "profile": f"{kb.profile.name}@{kb.profile.version}",
        "fusion": "weighted",
    }


def test_a_miss_links_to_why_not_found_only_where_a_relevant_chunk_is_known(client, kb, document, with_misses):
    page = page_of(client, with_misses)

    (href,) = [each for each in links(page, "misses") if each.startswith(reverse("admin:why_not"))]
    assert {name: values[0] for name, values in parse_qs(urlsplit(href).query).items()} == {
        "kb": str(kb.pk),
        "q": "违约金过高怎么办",
        "chunk": str(document.chunks.get(position=0).pk),
        "profile": f"{kb.profile.name}@{kb.profile.version}",
        "fusion": "weighted",
    }


def test_a_relevant_chunk_is_found_again_after_another_chunking(client, kb, document, with_misses):
    document.delete()
    again = make_document(kb, "序言。违约金过高的，可以请求减少。", title="Contracts")

    page = page_of(client, with_misses)

    (href,) = [each for each in links(page, "misses") if each.startswith(reverse("admin:why_not"))]
    assert parse_qs(urlsplit(href).query)["chunk"] == [str(again.chunks.get().pk)]


def test_a_document_judged_as_a_whole_leads_to_its_first_chunk(client, document, with_misses):
    Judgment.objects.update(quote="", quote_hash="")

    page = page_of(client, with_misses)

    (href,) = [each for each in links(page, "misses") if each.startswith(reverse("admin:why_not"))]
    assert parse_qs(urlsplit(href).query)["chunk"] == [str(document.chunks.get(position=0).pk)]


def test_a_run_without_misses_says_so(client, eval_set):
    assert "None: every query" in page_of(client, done(eval_set, [answered("hit")])).text("misses")


# -- The table of queries --------------------------------------------------------------------------------------------------
@pytest.fixture
def mixed(eval_set):
    fused_better = answered("worse", 0.2, latency_ms=9.0)
    fused_better["figures"]["fused"]["ndcg@10"] = 0.9
    return done(
        eval_set,
        [
            answered("good", 1.0, judged=[(0.8, 2)], latency_ms=1.0),
            fused_better,
            missed("bad", "gate", text="a needle"),
            unanswered("quiet", 0.1),
            unanswered("loud", 0.7),
        ],
    )


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["good", "worse", "bad", "quiet", "loud"]),
        ({"q": "needle"}, ["bad"]),
        ({"q": "wors"}, ["worse"]),
        ({"show": "found"}, ["good", "worse"]),
        ({"show": "missed"}, ["bad"]),
        ({"show": "unanswerable"}, ["quiet", "loud"]),
        ({"show": "false"}, ["loud"]),
        ({"o": "ndcg@10"}, ["bad", "worse", "good", "quiet", "loud"]),
        ({"o": "-ndcg@10"}, ["good", "worse", "bad", "quiet", "loud"]),
        ({"o": "-best_score"}, ["good", "loud", "quiet", "worse", "bad"]),
        ({"o": "-latency_ms"}, ["worse", "bad", "quiet", "loud", "good"]),
        ({"o": "change", "show": "found"}, ["worse", "good"]),
        ({"o": "-ndcg@10", "stage": "fused", "show": "found"}, ["worse", "good"]),
        (
            {"o": "no such", "stage": "no such", "show": "no such", "page": "x"},
            ["good", "worse", "bad", "quiet", "loud"],
        ),
    ],
)
def test_queries_are_searched_filtered_and_sorted(client, mixed, query, found):
    assert listed(client, mixed, **query) == found


def test_a_row_of_the_table_shows_ranks_figures_and_change(client, mixed):
    page = Page(client.get(url("queries", mixed.pk), {"q": "worse"}))

    row = words(page.tree.xpath("//tr[@data-query='worse']")[0])
    assert "0.200" in row
    assert "−0.700 lost" in row  # noqa: RUF001 - the sign as it is shown


def test_a_search_without_a_match_offers_all(client, mixed):
    page = Page(client.get(url("queries", mixed.pk), {"q": "nothing like it"}))

    assert "Show all" in page.text("nothing")


def test_the_queries_are_downloaded_as_they_are_shown(client, mixed):
    answer = client.get(url("csv", mixed.pk), {"show": "found", "o": "ndcg@10"})

    text = b"".join(answer.streaming_content).decode("utf-8-sig")
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["id"] for row in rows] == ["worse", "good"]
    assert rows[0]["fused ndcg@10"] == "0.9"
    assert rows[1]["best_score"] == "0.8"
    assert f"evaluation-run-{mixed.pk}.csv" in answer.headers["Content-Disposition"]


def test_a_query_in_the_file_is_no_formula(client, eval_set):
    run = done(eval_set, [answered("q0", text="=1+1")])

    text = b"".join(client.get(url("csv", run.pk)).streaming_content).decode()

    assert "'=1+1" in text
