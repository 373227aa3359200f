import pytest
from django.urls import reverse

from kb.models import SearchLog
from kb.services.search import SearchRequest, search
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
