import sys
from datetime import timedelta

import lxml.html
import pytest
from django.core.cache import cache
from django.urls import reverse
from django.utils import timezone

from kb.models import Document, FailedQuery, KnowledgeBase, SearchLog
from kb.search import wiring as conf
from kb.search.services.search import SearchRequest, search
from tests.factories import make_kb, principal
from tests.kb.web.admin.pages import words


@pytest.fixture(autouse=True)
def _nothing_kept():
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def missing(monkeypatch):
    """A package that cannot be imported, and a process that has not looked for it yet."""

    def remove(package):
        monkeypatch.setitem(sys.modules, package, None)
        conf._load_tokenizer.cache_clear()

    yield remove
    conf._load_tokenizer.cache_clear()


@pytest.mark.parametrize(
    ("package", "remedy"),
    [("sentence_transformers", "pip install &#x27;zhiku[models]&#x27;"), ("rank_bm25", "pip install rank-bm25 jieba")],
)
def test_the_first_page_says_what_the_server_cannot_do(client, missing, package, remedy):
    missing(package)
    page = client.get(reverse("admin:index")).content.decode()
    assert page.count('data-testid="degraded"') == 1
    assert remedy in page


def test_the_first_page_is_silent_where_all_is_there(client):
    assert 'data-testid="degraded"' not in client.get(reverse("admin:index")).content.decode()


def test_the_first_page_says_what_moves_to_another_model(client, curator):
    mine, foreign = make_kb(curator, name="mine"), make_kb(name="foreign")
    KnowledgeBase.objects.filter(pk__in=[mine.pk, foreign.pk]).update(target_embedding_model="BAAI/bge-m3")
    page = client.get(reverse("admin:index"), headers={"accept-language": "en"}).content.decode()
    (notice,) = lxml.html.fromstring(page).xpath("//*[@data-testid='moving']")
    assert "“mine” is moving to the embedding model BAAI/bge-m3" in words(notice)
    assert notice.xpath("a/@href") == [reverse("admin:kb_knowledgebase_reembedding", args=[mine.pk])]


# -- How searches go -----------------------------------------------------------------------------------------------------
@pytest.fixture
def open_page(client):
    def get():
        return client.get(reverse("admin:index"), headers={"accept-language": "en"})

    return get


@pytest.fixture
def chart(open_page):
    """A card of the page by its name: its words, and whether something is drawn."""

    def find(name):
        page = lxml.html.fromstring(open_page().content.decode())
        (card,) = page.xpath(f"//*[@data-chart='{name}']")
        return words(card), bool(card.xpath(".//canvas"))

    return find


def logged(kb, days=0, **fields):
    return SearchLog.objects.create(
        knowledge_base_ids=[kb.pk],
        query="q",
        profile="default",
        profile_version=1,
        configuration={},
        trace={},
        duration_ms=1,
        created_at=timezone.now() - timedelta(days=days),
        **{"result_count": 1, "timings": {"vector": 20, "total": 30}, **fields},
    )


def test_a_newcomer_is_told_the_first_steps_and_sees_no_empty_charts(open_page):
    page = open_page().content.decode()

    assert 'data-testid="first-steps"' in page
    assert "data-chart" not in page


def test_the_first_steps_stay_until_the_first_search(open_page, kb, document):
    page = open_page().content.decode()
    assert 'data-testid="first-steps"' in page
    assert "No search in 14 days" in page

    logged(kb)
    cache.clear()
    assert 'data-testid="first-steps"' not in open_page().content.decode()


def test_every_chart_has_a_name_for_those_who_cannot_see_it_and_its_figures_as_a_table(open_page, kb, document):
    logged(kb, degraded=[{"stage": "s", "code": "model_unavailable", "detail": "d"}])
    search(principal(kb.owner), SearchRequest(query="违约金", knowledge_base_ids=[kb.pk]))

    page = lxml.html.fromstring(open_page().content.decode())

    drawn = page.xpath("//canvas")
    assert len(drawn) == 6
    for canvas in drawn:
        (card,) = canvas.xpath("ancestor::*[@data-chart]")
        assert canvas.xpath("ancestor::*[@role='img']/@aria-label")
        assert card.xpath(".//table//tbody//td")


def test_searches_are_counted(chart, kb, document):
    for outcome in ("found", "gated", "nothing"):
        logged(kb, outcome=outcome)

    told, is_drawn = chart("searches")
    assert "3 in 14 days" in told
    assert is_drawn


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (0.5, 0.9, "Rising: 90 % in the last 7 days, 50 % in the 7 before"),
        (0.5, 0.1, "Falling: 10 % in the last 7 days, 50 % in the 7 before"),
        (0.5, 0.5, "Steady: 50 % in the last 7 days, 50 % in the 7 before"),
        (None, 0.2, "20 % in the last 7 days"),
        (0.2, None, "No search in the last 7 days"),
    ],
)
def test_the_share_without_a_result_is_compared_with_the_week_before(chart, kb, document, before, now, verdict):
    for days, share in ((8, before), (0, now)):
        for number in range(0 if share is None else 10):
            logged(kb, days, outcome="nothing" if number < 10 * share else "found")

    assert verdict in chart("without-result")[0]


def test_stages_are_timed(chart, kb, document):
    logged(kb)
    logged(kb)

    told, is_drawn = chart("stages")
    assert "half took 30.0 ms or less" in told
    assert "Vector 20.0 20.0" in told
    assert is_drawn


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("ready", "All are ready: 1"),
        ("pending", "1 document is being processed"),
        ("failed", "1 document failed: open it, and retry"),
    ],
)
def test_documents_are_told_by_status(chart, document, status, verdict):
    Document.objects.update(status=status)

    assert verdict in chart("documents")[0]


def test_degradations_are_told_in_words(chart, kb, document):
    logged(kb)
    assert "None in 14 days" in chart("degradations")[0]

    logged(kb, degraded=[{"stage": "s", "code": "llm_timeout", "detail": "d"}])
    cache.clear()
    told, _ = chart("degradations")
    assert "50 % of the searches" in told
    assert "The language model did not answer in time 1" in told


def test_failed_queries_that_wait_are_counted(open_page, kb, curator):
    for number, assignee in enumerate((curator, None)):
        FailedQuery.objects.create(
            key=f"{number}",
            knowledge_base_ids=[kb.pk],
            query="q",
            assignee=assignee,
            first_seen=timezone.now(),
            last_seen=timezone.now(),
        )

    page = open_page()

    assert (page.context["waiting_count"], page.context["mine_count"]) == (2, 1)
    assert "1 is yours" in page.content.decode()


def test_what_others_search_is_not_counted(chart, kb, document, foreign):
    logged(foreign.knowledge_base)

    assert "No search in 14 days" in chart("searches")[0]


def test_the_first_page_takes_few_queries(open_page, kb, document, django_assert_max_num_queries):
    logged(kb)

    with django_assert_max_num_queries(9):
        open_page()
