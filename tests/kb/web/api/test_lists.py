"""Filters, orders and pages, which every list of the API has in the same way."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from kb.api import urlpatterns
from kb.ingest.api.documents import DocumentFilters
from kb.models import Conversation, Document, IngestBatch
from kb.web.api.views import ListFilters
from tests import factories

pytestmark = pytest.mark.django_db

KNOWLEDGE_BASES = "/api/v1/knowledge-bases/"
LISTS = ListFilters.__subclasses__()


@pytest.fixture
def url(kb):
    return f"/api/v1/knowledge-bases/{kb.pk}/documents/"


def _all_pages(client, url, **parameters):
    """The rows of every page, and how many pages there were."""
    page, rows, count = client.get(url, parameters).json(), [], 1
    rows += page["results"]
    while page["next"]:
        page = client.get(page["next"]).json()
        rows += page["results"]
        count += 1
    return rows, count, page


def _documents(kb, count):
    rows = [
        Document(knowledge_base=kb, title=f"t{n}", source=f"s{n % 3}", sha256=f"{n:064d}", status="ready", tags=[])
        for n in range(count)
    ]
    return Document.objects.bulk_create(rows)


def _ids(rows):
    return [row["id"] for row in rows]


@pytest.mark.parametrize("ordering", DocumentFilters.orders)
def test_every_row_comes_once_in_any_order_also_where_many_are_equal(client, kb, url, ordering):
    documents = _documents(kb, 11)
    Document.objects.update(created_at=timezone.now(), updated_at=timezone.now())

    rows, count, _last = _all_pages(client, url, ordering=ordering, page_size=3)

    field, descending = ordering.removeprefix("-"), ordering.startswith("-")
    wanted = sorted(documents, key=lambda each: (each.source if field == "source" else 0, each.pk), reverse=descending)
    assert (_ids(rows), count) == ([each.pk for each in wanted], 4)


def test_the_way_back_is_the_way_there(client, kb, url):
    _documents(kb, 7)
    first = client.get(url, {"page_size": 3, "ordering": "source"}).json()
    second = client.get(first["next"]).json()
    third = client.get(second["next"]).json()

    back = client.get(third["previous"]).json()
    start = client.get(back["previous"]).json()

    assert back["results"] == second["results"]
    assert start["results"] == first["results"]
    assert (start["previous"], third["next"]) == (None, None)
    assert client.get(start["next"]).json()["results"] == second["results"]


def test_rows_that_come_or_go_meanwhile_move_no_other(client, kb, url):
    documents = _documents(kb, 6)
    first = client.get(url, {"page_size": 2}).json()
    assert _ids(first["results"]) == [documents[5].pk, documents[4].pk]

    factories.make_document(kb, "newer")
    documents[4].delete()

    assert _ids(client.get(first["next"]).json()["results"]) == [documents[3].pk, documents[2].pk]


def test_conversations_whose_keys_are_no_numbers_are_paged_alike(client, kb, owner):
    made = [Conversation.objects.create(user=owner, knowledge_base_ids=[kb.pk]) for _ in range(5)]
    Conversation.objects.update(updated_at=timezone.now())

    rows, count, _last = _all_pages(client, "/api/v1/conversations/", page_size=2)

    assert sorted(_ids(rows)) == sorted(str(each.pk) for each in made)
    assert count == 3


def test_a_cursor_serves_no_other_list_and_no_other_order(client, kb, url):
    _documents(kb, 3)
    page = client.get(url, {"page_size": 1}).json()
    cursor = re.search(r"cursor=([^&]+)", page["next"])[1]

    for address, parameters in ((KNOWLEDGE_BASES, {}), (url, {"ordering": "source"}), (url, {"cursor": cursor[:-2]})):
        response = client.get(address, {"cursor": cursor} | parameters)
        assert (response.status_code, [*response.json()["fields"]]) == (400, ["cursor"])


def test_an_unknown_parameter_is_400_and_names_the_valid_ones(client, url):
    fields = client.get(url, {"page": 2, "colour": "red"}).json()["fields"]

    assert fields.keys() == {"page", "colour"}
    assert "cursor" in fields["page"][0]
    assert "status" in fields["colour"][0]


def test_an_unknown_order_is_400_and_names_the_valid_ones(client, url):
    response = client.get(url, {"ordering": "sha256"})

    assert response.status_code == 400
    assert "-created_at" in response.json()["fields"]["ordering"][0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "done"),
        ("status", ""),
        ("batch_id", "one"),
        ("batch_id", "0"),
        ("batch_id", str(2**63)),
        ("created_after", "yesterday"),
        ("q", "x" * 501),
        ("source_type", ["book", "web"]),
    ],
)
def test_a_value_that_a_filter_does_not_take_is_400(client, url, name, value):
    response = client.get(url, {name: value})

    assert (response.status_code, [*response.json()["fields"]]) == (400, [name])


@pytest.mark.parametrize(
    ("parameters", "titles"),
    [
        ({"status": "failed"}, ["lost"]),
        ({"q": "MANUAL"}, ["Manual"]),
        ({"q": "pdf"}, ["Manual"]),
        ({"tag": "hr"}, ["Manual"]),
        ({"tag": "h"}, []),
        ({"source": "manual.pdf"}, ["Manual"]),
        ({"sha256": "0" * 64}, ["lost"]),
        ({"source_type": "web"}, ["lost"]),
        ({"created_before": "2020-01-01"}, ["old"]),
        ({"created_after": "2020-01-01", "status": "ready"}, ["Manual"]),
        ({"updated_after": "2999-01-01T00:00:00Z"}, []),
        ({"q": "\0"}, ["Manual", "lost", "old"]),
    ],
)
def test_documents_are_narrowed(client, kb, url, parameters, titles):
    Document.objects.bulk_create(
        [
            Document(
                knowledge_base=kb, title="Manual", source="manual.pdf", sha256="1" * 64, status="ready", tags=["hr"]
            ),
            Document(knowledge_base=kb, title="lost", source="x", sha256="0" * 64, status="failed", source_type="web"),
            Document(knowledge_base=kb, title="old", source="y", sha256="2" * 64, status="pending"),
        ]
    )
    Document.objects.filter(title="old").update(created_at=timezone.now() - timedelta(days=9_000))

    rows = client.get(url, parameters).json()["results"]

    assert sorted(row["title"] for row in rows) == titles


def test_documents_of_an_upload(client, kb, url):
    batch = IngestBatch.objects.create(knowledge_base=kb, name="upload")
    inside, _outside = _documents(kb, 2)
    Document.objects.filter(pk=inside.pk).update(batch=batch)

    assert _ids(client.get(url, {"batch_id": batch.pk}).json()["results"]) == [inside.pk]


def test_chunks_are_narrowed(client, document):
    first, second = document.chunks.order_by("position")
    document.chunks.filter(pk=first.pk).update(enabled=False, cut_text="as it was")
    url = f"/api/v1/documents/{document.pk}/chunks/"

    def found(**parameters):
        return _ids(client.get(url, parameters).json()["results"])

    assert (found(enabled="true"), found(enabled="false")) == ([second.pk], [first.pk])
    assert (found(is_edited="true"), found(is_edited="false")) == ([first.pk], [second.pk])
    assert found(q="work from HOME") == [second.pk]
    assert found(ordering="-position") == [second.pk, first.pk]


def test_a_filter_by_an_object_that_the_caller_may_not_see_is_404(client):
    foreign = factories.make_kb()

    for address in ("eval-sets/", "eval-runs/", "sources/", "profiles/"):
        response = client.get(f"/api/v1/{address}", {"knowledge_base_id": foreign.pk})
        assert response.status_code == 404, address


def test_knowledge_bases_by_the_callers_role(client, client_of, kb, owner):
    other = factories.make_kb(factories.make_user(), "shared")
    factories.make_member(other, user=owner)

    def names(role):
        return [row["name"] for row in client.get(KNOWLEDGE_BASES, {"role": role}).json()["results"]]

    assert (names("owner"), names("viewer"), names("editor")) == (["handbook"], ["shared"], [])


@pytest.mark.parametrize("each", LISTS, ids=lambda each: each.__name__)
def test_every_list_describes_what_it_takes(each):
    described = {parameter.name: parameter for parameter in each.parameters()}

    assert described.keys() == {*each.base_filters, "ordering"}
    assert described["ordering"].type["enum"] == list(each.orders)


def test_the_lists_are_those_of_the_routes(client_of, kb):
    """A list without filters would take any parameter and say nothing."""
    superuser = client_of(factories.make_user(superuser=True))
    plain = [str(each.pattern) for each in urlpatterns if "<" not in str(each.pattern)]
    bodies = {path: superuser.get(f"/api/v1/{path}") for path in plain if path not in {"", "docs/", "schema/"}}
    lists = [path for path, answer in bodies.items() if answer.status_code == 200 and b'"results"' in answer.content]

    assert {"knowledge-bases/", "conversations/", "eval-runs/", "profiles/"} <= set(lists)
    for path in lists:
        assert superuser.get(f"/api/v1/{path}", {"colour": "red"}).status_code == 400, path


def test_no_list_counts_its_rows(client, kb, url, django_assert_max_num_queries):
    _documents(kb, 5)

    with django_assert_max_num_queries(4) as asked:  # session, user, knowledge base, rows
        client.get(url, {"page_size": 2})

    assert not [each for each in asked.captured_queries if 'COUNT(*) AS "__count"' in each["sql"]]
