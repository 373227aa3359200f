import uuid
from urllib.parse import parse_qs

import lxml.html
import pytest
from django.urls import reverse

from kb.index.filters import Filters
from kb.models import SearchLog
from kb.search.services.search import SearchRequest, search
from tests.factories import make_document, make_kb, make_user, principal

LIST = "admin:kb_searchlog_changelist"


@pytest.fixture
def logged(kb, document):
    search(principal(kb.owner), SearchRequest(query="违约金 & 赔偿", knowledge_base_ids=[kb.pk], explain=True))
    return SearchLog.objects.get()


def test_a_row_leads_to_search_debug_with_its_query(client, kb, logged):
    page = client.get(reverse(LIST)).content.decode()

    link = f"{reverse('admin:search_debug')}?kb={kb.pk}&amp;q=%E8%BF%9D%E7%BA%A6%E9%87%91+%26+%E8%B5%94%E5%81%BF"
    assert link in page
    assert "legal" in page


def test_the_page_of_an_entry_is_its_search(client, kb, logged):
    response = client.get(reverse("admin:kb_searchlog_change", args=[logged.pk]))

    assert response.url.startswith(f"{reverse('admin:search_debug')}?kb={kb.pk}&q=")


def test_the_page_of_an_entry_has_the_settings_that_were_asked_for(client, kb, document):
    asked = SearchRequest(
        query="违约金",
        knowledge_base_ids=[kb.pk],
        profile="default",
        overrides={"top_k": 3, "use_rerank": False, "score_threshold": 0, "fusion": "weighted"},
        filters=Filters(tags=("a", "b"), source_types=("book",)),
        latency_budget_ms=5_000,
        explain=True,
    )
    search(principal(kb.owner), asked)

    response = client.get(reverse("admin:kb_searchlog_change", args=[SearchLog.objects.get().pk]))

    given = parse_qs(response.url.partition("?")[2])
    assert given == {
        "kb": [str(kb.pk)],
        "q": ["违约金"],
        "profile": ["default"],
        "top_k": ["3"],
        "rerank": ["off"],
        "threshold": ["0"],
        "fusion": ["weighted"],
        "tags": ["a, b"],
        "source_type": ["book"],
        "budget": ["5000"],
    }
    assert client.get(response.url).status_code == 200


def test_an_entry_of_an_earlier_release_leads_to_its_query(client, kb, logged):
    SearchLog.objects.update(trace={})

    response = client.get(reverse("admin:kb_searchlog_change", args=[logged.pk]))

    assert set(parse_qs(response.url.partition("?")[2])) == {"kb", "q"}


def test_what_a_search_could_not_do_is_said_in_words(client, logged):
    codes = ("hashing_embedder", "embedder_failed", "embedder_failed", "moon_phase")
    SearchLog.objects.update(degraded=[{"stage": "s", "code": code, "detail": "d"} for code in codes])

    page = client.get(reverse(LIST), headers={"accept-language": "en"}).content.decode()

    assert page.count("the model gave no usable vector") == 1
    assert "Moon phase" in page
    assert "vectors compare words, not meaning" not in page


def test_what_every_search_lacks_here_is_no_degradation_of_one(client, logged):
    SearchLog.objects.update(degraded=[{"stage": "s", "code": "hashing_embedder", "detail": "d"}])

    assert not client.get(reverse(LIST), {"degraded": "yes"}).context["cl"].result_list
    assert [row.pk for row in client.get(reverse(LIST), {"degraded": "no"}).context["cl"].result_list] == [logged.pk]


@pytest.fixture
def three(logged):
    """One search that found something, with a fault and thumbs down; two that found nothing, or nothing relevant."""
    logged.query, logged.degraded = "found", [{"stage": "s", "code": "c", "detail": "d"}]
    logged.feedback = SearchLog.Feedback.BAD
    logged.save()
    for outcome in ("nothing", "gated"):
        logged.pk, logged.query, logged.outcome = uuid.uuid4(), outcome, outcome
        logged.result_count, logged.degraded, logged.feedback = 0, [], None
        logged.save(force_insert=True)


@pytest.mark.parametrize(
    ("chosen", "queries"),
    [
        ({}, {"found", "nothing", "gated"}),
        ({"outcome": "found"}, {"found"}),
        ({"outcome": "nothing"}, {"nothing"}),
        ({"outcome": "gated"}, {"gated"}),
        ({"outcome": "moon"}, {"found", "nothing", "gated"}),
        ({"degraded": "yes"}, {"found"}),
        ({"degraded": "no"}, {"nothing", "gated"}),
        ({"feedback": "-1"}, {"found"}),
        ({"feedback": "1"}, set()),
        ({"feedback": "none"}, {"nothing", "gated"}),
    ],
)
def test_the_log_is_filtered_by_what_came_of_a_search(client, three, chosen, queries):
    rows = client.get(reverse(LIST), chosen).context["cl"].result_list

    assert {row.query for row in rows} == queries


def test_the_log_tells_what_came_of_a_search_and_what_was_said_of_it(client, three):
    page = client.get(reverse(LIST), {"outcome": "found"}, headers={"accept-language": "en"}).content.decode()

    table = " ".join(lxml.html.fromstring(page).xpath("//*[@id='result_list']")[0].text_content().split())
    assert "not helpful" in table
    assert "found" in table


def test_a_query_that_is_not_kept_is_told_as_such(client, kb, document, settings):
    settings.SEARCH_LOG_QUERIES = False
    search(principal(kb.owner), SearchRequest(query="违约金", knowledge_base_ids=[kb.pk], explain=True))

    page = client.get(reverse(LIST), headers={"accept-language": "en"}).content.decode()

    assert "not kept" in page
    assert client.get(reverse("admin:kb_searchlog_change", args=[SearchLog.objects.get().pk])).status_code == 302


def test_a_stranger_s_search_does_not_exist(client, foreign):
    kb = foreign.knowledge_base
    search(principal(kb.owner), SearchRequest(query="hidden-query", knowledge_base_ids=[kb.pk], explain=True))

    assert "hidden-query" not in client.get(reverse(LIST)).content.decode()
    assert client.get(reverse("admin:kb_searchlog_change", args=[SearchLog.objects.get().pk])).status_code == 404


def test_the_log_is_filtered_by_knowledge_base(client, curator, kb, logged):
    other = make_kb(curator)
    make_document(other, "text")

    own = client.get(reverse(LIST), {"kb": kb.pk}).context["cl"].result_list
    others = client.get(reverse(LIST), {"kb": other.pk}).context["cl"].result_list

    assert [row.pk for row in own] == [logged.pk]
    assert not others


@pytest.mark.parametrize("page", ["add", "delete"])
def test_nobody_writes_the_log(client, logged, page):
    client.force_login(make_user(superuser=True))
    url = reverse(f"admin:kb_searchlog_{page}", args=[logged.pk] if page == "delete" else [])

    assert client.post(url, {"post": "yes"}).status_code == 403


def test_many_rows_take_few_queries(client, curator, logged, django_assert_max_num_queries):
    for number in range(6):
        kb = make_kb(curator)
        search(principal(curator), SearchRequest(query=f"{number}", knowledge_base_ids=[kb.pk], explain=True))

    with django_assert_max_num_queries(12):
        client.get(reverse(LIST))
