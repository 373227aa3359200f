import json
from datetime import timedelta

import lxml.html
import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from kb.models import SearchLog
from tests.factories import make_kb, make_user
from tests.kb.quality.debug.admin.debug_page import Page, words

pytestmark = pytest.mark.django_db


@pytest.fixture
def history(client):
    def get():
        response = client.get(reverse("admin:search_debug_history"), headers={"accept-language": "en"})
        assert response.status_code == 200
        return lxml.html.fromstring(f"<div>{response.content.decode()}</div>")

    return get


def queries(tree):
    return tree.xpath("//li/a/text()")


def log(user, kb, query, minutes_ago=0, **asked):
    return SearchLog.objects.create(
        user=user,
        knowledge_base_ids=[kb.pk],
        query=query,
        profile="default",
        profile_version=1,
        configuration={},
        trace={"request": asked} if asked else {},
        result_count=3,
        duration_ms=1,
        created_at=timezone.now() - timedelta(minutes=minutes_ago),
    )


def test_the_page_asks_for_the_list_only_when_it_is_unfolded(open_debug, handbook):
    folded = Page(open_debug()).one("//*[@data-testid='history']")

    assert folded.get("hx-get") == reverse("admin:search_debug_history")
    assert folded.get("open") is None


def test_each_search_is_listed_once_the_newest_first_with_a_link_that_runs_it_again(
    client, open_debug, history, handbook
):
    for parameters in ({"q": "flight"}, {"q": "hotels", "top_k": 2, "profile": "balanced@1"}, {"q": "flight"}):
        open_debug(kb=handbook.pk, **parameters)

    tree = history()

    assert queries(tree) == ["flight", "hotels"]
    assert "Handbook · keyword-led v1" in words(tree.xpath("//li")[0])
    again = Page(client.get(tree.xpath("//li/a/@href")[1]))
    assert (again.value("q"), again.value("top_k"), again.chosen("profile")) == ("hotels", "2", "balanced@1")


def test_other_users_searches_are_not_listed(history, handbook):
    log(make_user(), handbook, "secret")

    assert queries(history()) == []


def test_searches_in_knowledge_bases_that_are_closed_now_are_left_out(history, curator, handbook):
    log(curator, make_kb(), "closed")
    log(curator, handbook, "open")

    assert queries(history()) == ["open"]


def test_searches_whose_words_the_log_does_not_keep_are_left_out_and_the_list_says_so(history, curator, handbook):
    log(curator, handbook, "")

    tree = history()

    assert queries(tree) == []
    assert "does not keep their words" in words(tree)


def test_twenty_are_listed_at_most(history, curator, handbook):
    for number in range(25):
        log(curator, handbook, f"query {number}", minutes_ago=number)

    assert queries(history()) == [f"query {number}" for number in range(20)]


def test_a_visitor_is_sent_to_the_login(client, db):
    client.logout()

    assert client.get(reverse("admin:search_debug_history")).status_code == 302


def test_the_list_reads_few_rows_of_a_long_log_in_few_queries(
    history, curator, long_log, django_assert_max_num_queries
):
    with django_assert_max_num_queries(5) as counted:
        found = queries(history())

    assert found[:2] == ["query 10", "query 20"]
    (statement,) = (each["sql"] for each in counted.captured_queries if "kb_searchlog" in each["sql"])
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
        plan = cursor.fetchone()[0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    assert "Seq Scan" not in json.dumps(plan)
    assert rows_read(plan[0]["Plan"]) < 2_000


def rows_read(plan):
    read = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return max([read, *map(rows_read, plan.get("Plans", []))])
