from urllib.parse import parse_qs, urlencode, urlparse

import pytest
from django.test import Client
from django.urls import reverse

from kb.models import SearchLog
from tests.factories import make_document, make_kb, make_user
from tests.kb.quality.debug.admin.debug_page import Page
from tests.kb.quality.runs.eval_runs import draft
from tests.kb.web.admin.pages import words

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb(curator):
    kb = make_kb(curator, "Handbook", language="en")
    make_document(kb, "Annual leave, annual leave.", title="Leave")
    make_document(kb, "In summer " + "any department grants what its rules call " * 4 + "annual leave.", title="Rules")
    make_document(kb, "summer summer summer", title="Sun")
    return kb


@pytest.fixture
def open_page(client):
    def get(*, language="en", **parameters):
        url = f"{reverse('admin:compare')}?{urlencode(parameters, doseq=True)}"
        return client.get(url, headers={"accept-language": language})

    return get


@pytest.fixture
def compare(open_page, kb):
    """The page of one query in the knowledge base, without a gate on either side."""

    def get(**parameters):
        return Page(
            open_page(**{"q": "annual leave summer", "kb": kb.pk, "a_threshold": 0, "b_threshold": 0, **parameters})
        )

    return get


def cards(page, letter):
    """Title, place on this side, and what is said of the other one."""
    found = page.tree.xpath(f"//*[@data-testid='side-{letter}']//li[@data-chunk-id]")
    return [
        (words(card.xpath(".//a")[0]), card.get("data-rank"), words(card.xpath(".//*[contains(@class,'cp-move')]")[0]))
        for card in found
    ]


def test_a_visitor_is_sent_to_the_login():
    assert Client().get(reverse("admin:compare")).status_code == 302


def test_a_user_who_is_not_staff_is_sent_to_the_login(client):
    client.force_login(make_user(staff=False))

    assert client.get(reverse("admin:compare")).status_code == 302


def test_another_users_knowledge_base_does_not_exist(open_page, kb):
    assert open_page(q="leave", kb=make_kb(name="Secret").pk).status_code == 404


def test_without_a_query_it_says_what_it_is_for(open_page, kb):
    page = Page(open_page())

    assert page.has("no-query")
    assert not page.has("summary")


def test_without_a_knowledge_base_it_says_what_to_do(open_page):
    assert Page(open_page()).has("no-bases")


def test_both_sides_show_the_places_of_every_result(compare):
    page = compare(b_rerank="off")

    assert cards(page, "A") == [
        ("Leave", "1", "= at the same place in B"),
        ("Rules", "2", "B: 3 at rank 3 in B"),
        ("Sun", "3", "B: 2 at rank 2 in B"),
    ]
    assert cards(page, "B") == [
        ("Leave", "1", "= at the same place in A"),
        ("Sun", "2", "▲1 up 1 place from rank 3 in A"),
        ("Rules", "3", "▼1 down 1 place from rank 2 in A"),
    ]
    assert page.text("summary").startswith("2 in another place, 0 only in A, 0 only in B.")


def test_each_result_has_its_label(compare):
    labels = [words(each) for each in compare().tree.xpath("//*[contains(@class,'sd-relevance')]")]

    assert len(labels) == 6
    assert set(labels) <= {"high relevance", "medium relevance", "low relevance"}


def test_a_result_of_one_side_alone_says_what_lost_it_on_the_other(compare):
    page = compare(b_top_k=1)

    assert cards(page, "A")[1] == ("Rules", "2", "only A not among the results of B")
    assert "not among the results of B: Below the last result" in page.text("side-A")


def test_names_the_settings_that_differ_in_words(compare):
    assert "Fusion RRF double_arrow weighted sum" in compare(b_fusion="weighted").text("changes")


def test_the_same_sides_are_said_to_be_the_same(compare):
    page = compare()

    assert "Both sides give the same results in the same order." in page.text("summary")
    assert "Both sides are the same" in page.text("same-sides")


def test_a_side_may_be_a_draft(compare, kb):
    version = draft(kb.profile, top_k=1)

    page = compare(b_profile=f"{version.name}@{version.version}")

    assert f"{version.name} v{version.version}" in page.text("side-B")
    assert len(cards(page, "B")) == 1


def test_the_form_shows_what_the_url_holds(compare):
    page = compare(a_fusion="weighted", b_vector_weight="0.3")

    assert page.chosen("a_fusion") == "weighted"
    assert page.chosen("b_fusion") == ""
    assert page.value("b_vector_weight") == "0.3"
    assert page.value("q") == "annual leave summer"


def test_an_empty_field_shows_what_its_side_inherits(compare, kb):
    version = draft(kb.profile, vector_weight=0.33)

    page = compare(b_profile=f"{version.name}@{version.version}")

    assert page.placeholder("b_vector_weight") == "0.33"
    assert page.placeholder("a_vector_weight") != "0.33"


def test_the_sides_can_be_exchanged(compare):
    page = compare(b_fusion="weighted")

    url = page.one("//*[@data-testid='summary']//a[contains(., 'Swap')]/@href")
    given = parse_qs(urlparse(url).query)
    assert given["a_fusion"] == ["weighted"]
    assert "b_fusion" not in given
    assert given["q"] == ["annual leave summer"]


def test_links_lead_to_the_same_sides_on_a_whole_set(compare):
    page = compare(b_fusion="weighted")

    url = urlparse(page.one("//*[@data-testid='summary']//a[contains(., 'whole set')]/@href"))
    assert url.path == reverse("admin:compare_start")
    assert parse_qs(url.query)["b_fusion"] == ["weighted"]


def test_each_side_links_to_search_debug_with_its_settings(compare):
    page = compare(b_fusion="weighted")

    url = urlparse(page.one("//*[@data-testid='side-B']//a[. = 'Retrieval test']/@href"))
    assert url.path == reverse("admin:search_debug")
    assert parse_qs(url.query)["fusion"] == ["weighted"]


def test_a_setting_out_of_range_is_told_at_its_side(open_page, kb):
    page = Page(response := open_page(q="leave", kb=kb.pk, b_threshold="7"))

    assert response.status_code == 400
    assert page.one("//*[@id='id_b_threshold_error']") is not None
    assert not page.tree.xpath("//*[@id='id_a_threshold_error']")


def test_settings_that_do_not_go_together_are_told_at_their_side(open_page, kb):
    given = {"b_vector_weight": "0", "b_keyword_weight": "0"}
    page = Page(response := open_page(q="leave", kb=kb.pk, **given))

    assert response.status_code == 400
    assert page.errors() == ["Both weights are 0: give at least one channel a weight."]


def test_a_query_without_a_knowledge_base_asks_for_one(open_page, kb):
    make_kb(kb.owner, "Other")
    page = Page(open_page(q="leave"))

    assert page.errors() == ["Choose at least one knowledge base."]


def test_neither_search_is_logged(compare):
    compare()

    assert not SearchLog.objects.exists()


def test_the_page_takes_few_queries_besides_the_searches(open_page, kb, django_assert_max_num_queries):
    for number in range(5):
        make_kb(kb.owner, f"more {number}")
    with django_assert_max_num_queries(9):
        open_page()


def test_the_page_is_in_chinese_too(open_page, kb):
    response = open_page(language="zh-hans", q="leave", kb=kb.pk)

    assert response.status_code == 200
    assert 'lang="zh-hans"' in response.content.decode()
