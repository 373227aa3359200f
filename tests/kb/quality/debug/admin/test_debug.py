from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.urls import reverse

from kb.models import Chunk, EvalSet, SearchLog
from kb.profiles.services import create_version
from kb.quality.eval_sets.services.sets import judge
from kb.search.services.search import SearchRequest, search
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.quality.debug.admin.debug_page import Page, outcome_of

pytestmark = pytest.mark.django_db


# -- Who may open it, and what --------------------------------------------------------------------------------------


def test_a_visitor_is_sent_to_the_login():
    response = Client().get(reverse("admin:search_debug"))

    assert response.status_code == 302
    assert response.url.startswith(reverse("admin:login"))


def test_a_user_who_is_not_staff_is_sent_to_the_login(client):
    client.force_login(make_user(staff=False))

    assert client.get(reverse("admin:search_debug")).status_code == 302


def test_the_address_is_short_and_stable():
    assert reverse("admin:search_debug") == "/admin/search-debug/"


@pytest.mark.parametrize("ids", [["other"], ["own", "other"]])
def test_another_users_knowledge_base_does_not_exist(open_debug, handbook, ids):
    other = make_kb(name="Secret")
    named = {"own": handbook.pk, "other": other.pk}

    assert open_debug(kb=[named[each] for each in ids], q="flight").status_code == 404
    assert open_debug(kb=[named[each] for each in ids]).status_code == 404


@pytest.mark.parametrize("kb_id", ["999999", "99999999999999999999999", "abc", "-1", "", " 1"])
def test_an_id_of_no_knowledge_base_is_not_found(open_debug, handbook, kb_id):
    assert open_debug(kb=kb_id, q="flight").status_code == 404


def test_another_users_knowledge_base_is_not_listed(open_debug, handbook):
    make_kb(name="Secret")

    response = open_debug()

    assert "Handbook" in response.content.decode()
    assert "Secret" not in response.content.decode()


def test_a_member_searches_a_shared_knowledge_base(client, handbook):
    client.force_login(make_member(handbook))

    page = Page(client.get(reverse("admin:search_debug"), {"kb": handbook.pk, "q": "flight"}))

    assert page.status == 200
    assert page.hits("results")


# -- Without a search -----------------------------------------------------------------------------------------------


def test_without_a_knowledge_base_the_page_leads_to_a_new_one(open_debug):
    page = Page(open_debug())

    assert page.has("no-bases")
    assert page.tree.xpath(f"//a[@href='{reverse('admin:kb_knowledgebase_add')}']")
    assert not page.tree.xpath("//form[@role='search']")


def test_without_a_query_the_page_explains_itself_with_an_example_that_finds_something(client, open_debug, handbook):
    page = Page(open_debug())
    example = page.one("//a[contains(@class,'sd-example')]")

    assert page.has("no-query")
    assert not page.has("results")
    assert page.one("//*[@id='id_q']").get("autofocus") is not None
    found = Page(client.get(reverse("admin:search_debug") + example.get("href")))
    assert int(found.text("result-count")) > 0
    assert found.value("q") == example.text_content()


def test_the_only_knowledge_base_is_chosen_at_first(open_debug, handbook):
    assert Page(open_debug()).one("//input[@name='kb']").get("checked") is not None


def test_of_several_knowledge_bases_none_is_chosen_at_first(open_debug, curator, handbook):
    make_kb(curator)

    assert not Page(open_debug()).tree.xpath("//input[@name='kb'][@checked]")


def test_a_knowledge_base_without_chunks_is_named_with_a_way_to_fill_it(open_debug, curator):
    empty = make_kb(curator, "New base")

    page = Page(open_debug(kb=empty.pk, q="flight"))

    assert "New base" in page.text("empty-base")
    assert page.tree.xpath(
        f"//*[@data-testid='empty-base']//a[@href='{reverse('admin:kb_document_upload')}?kb={empty.pk}']"
    )
    assert page.text("result-count") == "0"
    assert page.has("no-results")


def test_nothing_is_searched_or_logged_without_a_query(open_debug, handbook):
    open_debug(kb=handbook.pk, q="   ")

    assert not SearchLog.objects.exists()


# -- Several knowledge bases, languages, cost -----------------------------------------------------------------------


def test_several_knowledge_bases_are_named_and_searched_in_the_order_of_the_url(open_debug, curator, handbook):
    second = make_kb(curator, "Second")
    make_document(second, "A flight to Berlin.")

    page = Page(open_debug(kb=[second.pk, handbook.pk], q="flight", view="process"))

    assert page.tree.xpath("//tr[@data-kb-id]/@data-kb-id") == [str(second.pk), str(handbook.pk)]
    assert len(page.tree.xpath("//*[@data-testid='cache-tier']")) == 2
    named = page.tree.xpath("//tr[@data-chunk-id]//*[contains(@class,'sd-kb')]/text()")
    assert set(named) == {"Second", "Handbook"}
    result = outcome_of(curator, second, handbook, q="flight")
    assert list(page.column("rank")) == [candidate.chunk_id for candidate in result.candidates]


def test_a_single_knowledge_base_is_not_repeated_in_each_row(open_debug, handbook):
    assert not Page(open_debug(kb=handbook.pk, q="flight")).tree.xpath("//*[contains(@class,'sd-kb')]")


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_page_speaks_the_language_of_its_reader(open_debug, handbook, language):
    page = Page(open_debug(kb=handbook.pk, q="差旅 flight", language=language))

    assert page.tree.get("lang") == language
    assert len(page.hits()) == 3
    assert page.value("q") == "差旅 flight"


def test_the_page_asks_nothing_from_outside(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight"))

    sources = page.tree.xpath("//script/@src | //link/@href | //img/@src")
    assert sources
    assert all(source.startswith("/") for source in sources)


def test_the_page_costs_under_ten_queries_beside_the_search_however_long_the_log(
    client, open_debug, curator, handbook, flights, long_log, django_assert_max_num_queries
):
    parameters = {"kb": [handbook.pk, flights.pk], "q": "flight", "top_k": 2, "profile": "default"}
    make_document(handbook, "The same flight.", "The same flight.")
    judged = EvalSet.objects.create(knowledge_base=handbook, name="curated")
    judge(principal(curator), judged, "flight", Chunk.objects.get(text__contains="rebook", knowledge_base=handbook), 2)
    open_debug(**parameters)
    request = SearchRequest(
        query="flight",
        knowledge_base_ids=parameters["kb"],
        profile="default",
        overrides={"top_k": 2},
        explain=True,
    )
    with django_assert_max_num_queries(100) as counted:
        search(principal(curator), request)
    of_the_search = len(counted)

    with django_assert_max_num_queries(of_the_search + 11):
        page = Page(open_debug(**parameters))
    with django_assert_max_num_queries(of_the_search + 11):
        process = Page(open_debug(**parameters, view="process"))

    assert page.has("judge")
    assert page.has("draft")
    assert process.tree.xpath("//tr[@data-stage='dedupe']//*[@data-testid='drops']")


def test_the_number_of_queries_does_not_grow_with_what_is_on_offer(
    open_debug, curator, handbook, django_assert_num_queries
):
    open_debug()  # the process learns of its installation
    with django_assert_num_queries(6):
        open_debug()
    for number in range(12):
        kb = make_kb(curator)
        make_document(kb, "A flight.")
        create_version(principal(curator), f"own {number}", {}, knowledge_base=kb)

    with django_assert_num_queries(6):
        open_debug()


# -- What one may do with what was found ----------------------------------------------------------------------------


def test_each_row_can_be_judged_by_who_may_edit_the_knowledge_base(client, open_debug, handbook):
    def buttons():
        return Page(open_debug(kb=handbook.pk, q="flight")).tree.xpath("//*[@data-testid='judge']")

    assert len(buttons()) == 3
    client.force_login(make_member(handbook))
    assert not buttons()


def test_judgments_of_the_query_are_shown(open_debug, curator, handbook):
    chunk = Chunk.objects.get(text__contains="flight")
    judge(principal(curator), EvalSet.objects.create(knowledge_base=handbook, name="curated"), "flight", chunk, 2)

    page = Page(open_debug(kb=handbook.pk, q="flight"))

    pressed = page.tree.xpath("//*[@data-testid='judge']//button[@aria-pressed='true']")
    assert [button.get("value") for button in pressed] == [f"{chunk.pk}:none"]


def test_each_row_that_was_cut_leads_to_the_reason_under_the_same_settings(open_debug, flights):
    page = Page(open_debug(kb=flights.pk, q="flight", top_k=2, threshold=0))

    cut = page.hits("others")
    assert len(cut) == 28
    links = [row.xpath(".//*[@data-testid='why-not']/@href")[0] for row in cut]
    assert len(page.tree.xpath("//*[@data-testid='why-not']")) == len(cut)
    for row, link in zip(cut, links, strict=True):
        assert link.startswith(reverse("admin:why_not"))
        assert parse_qs(urlsplit(link).query) == {
            "kb": [str(flights.pk)],
            "q": ["flight"],
            "top_k": ["2"],
            "threshold": ["0"],
            "chunk": [row.get("data-chunk-id")],
        }


def test_one_can_ask_for_a_passage_that_no_channel_found(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight", tags="no-such-tag"))

    (link,) = page.tree.xpath("//*[@data-testid='ask-why']/@href")
    assert parse_qs(urlsplit(link).query)["q"] == ["flight"]


def test_the_search_can_be_compared_with_another_profile(client, open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight", profile="balanced", top_k=2))

    (link,) = page.tree.xpath("//*[@data-testid='compare']/@href")
    assert link.startswith(reverse("admin:compare"))
    assert parse_qs(urlsplit(link).query) == {
        "kb": [str(handbook.pk)],
        "q": ["flight"],
        "a_profile": ["balanced"],
        "a_top_k": ["2"],
    }
    assert client.get(link).status_code == 200


@pytest.mark.parametrize("name", ["search_debug", "why_not", "compare"])
def test_without_a_query_its_field_is_in_focus_and_beside_results_it_is_not(client, handbook, name):
    def has_focus(**asked):
        page = Page(client.get(reverse(f"admin:{name}"), {"kb": handbook.pk, **asked}))
        return page.one("//*[@name='q']").get("autofocus") is not None

    assert has_focus()
    assert not has_focus(q="flight")
