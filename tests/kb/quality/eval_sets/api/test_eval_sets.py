import io
import zipfile

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.models import EvalQuery, EvalSet, Judgment
from kb.quality.eval_sets.services.files import judged_set
from kb.quality.eval_sets.services.sets import eval_set_named, queries_add
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/eval-sets/"
QUERY = "年假有几天"


@pytest.fixture
def eval_set(kb, owner):
    eval_set = eval_set_named(factories.principal(owner), kb, "mine")
    queries_add(factories.principal(owner), eval_set, [QUERY])
    return eval_set


@pytest.fixture
def url(eval_set):
    return f"{URL}{eval_set.pk}/"


def put(client, url, chunk, grade=2, query=QUERY):
    return client.put(f"{url}judgments/", {"query": query, "chunk_id": chunk.pk, "grade": grade}, format="json")


def upload(client, kb, files, **fields):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for name, text in files.items():
            target.writestr(name, text)
    file = SimpleUploadedFile("set.zip", archive.getvalue())
    return client.post(f"{URL}import/", {"knowledge_base_id": kb.pk, "file": file, **fields}, format="multipart")


def test_a_set_is_created_renamed_listed_and_deleted(client, kb):
    made = client.post(URL, {"knowledge_base_id": kb.pk, "name": "mine"}, format="json")
    assert made.status_code == 201
    row = {
        "id": made.json()["id"],
        "knowledge_base_id": kb.pk,
        "name": "yours",
        "query_count": 0,
        "judged_count": 0,
        "unanswerable_count": 0,
        "judgment_count": 0,
        "last_run_id": None,
    }
    assert client.patch(f"{URL}{row['id']}/", {"name": "yours"}, format="json").json() == row
    assert client.get(f"{URL}{row['id']}/").json() == row
    assert client.get(URL).json()["results"] == [row]
    assert client.delete(f"{URL}{row['id']}/").status_code == 204
    assert client.get(URL).json()["results"] == []


def test_sets_are_listed_by_knowledge_base(client, owner, eval_set):
    other = factories.make_kb(owner)
    eval_set_named(factories.principal(owner), other, "other")
    rows = client.get(URL, {"knowledge_base_id": other.pk}).json()["results"]
    assert [row["name"] for row in rows] == ["other"]
    assert client.get(URL, {"knowledge_base_id": 0}).status_code == 400
    assert client.get(URL, {"knowledge_base_id": 999_999}).status_code == 404


def test_a_name_that_is_taken_is_refused(client, kb, eval_set):
    answer = client.post(URL, {"knowledge_base_id": kb.pk, "name": "mine"}, format="json")
    assert (answer.status_code, list(answer.json()["fields"])) == (400, ["name"])


def test_queries_are_added_once(client, url):
    first = client.post(f"{url}queries/", {"text": " 病假 "}, format="json")
    again = client.post(f"{url}queries/", {"text": "病假", "answerable": False}, format="json")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert (first.json()["text"], first.json()["answerable"], again.json()["answerable"]) == ("病假", True, False)


def test_queries_are_searched_and_filtered(client, url):
    client.post(f"{url}queries/", {"text": "股价", "answerable": False}, format="json")
    for given, found in (({}, [QUERY, "股价"]), ({"q": "年假"}, [QUERY]), ({"answerable": "false"}, ["股价"])):
        rows = client.get(f"{url}queries/", given).json()["results"]
        assert [row["text"] for row in rows] == found


def test_a_query_is_read_changed_and_deleted(client, url):
    query = EvalQuery.objects.get()
    row = client.patch(f"{url}queries/{query.pk}/", {"answerable": False}, format="json").json()
    assert row == client.get(f"{url}queries/{query.pk}/").json()
    assert (row["text"], row["answerable"], row["judgment_count"]) == (QUERY, False, 0)
    assert client.delete(f"{url}queries/{query.pk}/").status_code == 204
    assert not EvalQuery.objects.exists()


def test_a_query_of_another_set_is_not_there(client, kb, owner, eval_set):
    other = eval_set_named(factories.principal(owner), kb, "other")
    query = EvalQuery.objects.get()
    for method in (client.get, client.patch, client.delete):
        assert method(f"{URL}{other.pk}/queries/{query.pk}/", format="json").status_code == 404


def test_a_chunk_is_judged_and_judged_again(client, url, chunk):
    first = put(client, url, chunk, 2).json()
    again = put(client, url, chunk, 0).json()
    assert (first["grade"], again["grade"], first["id"]) == (2, 0, again["id"])
    assert (again["document_id"], again["quote"]) == (chunk.document_id, chunk.text)
    rows = client.get(f"{url}judgments/").json()["results"]
    assert rows == [again]
    assert client.get(f"{url}judgments/", {"query_id": again["query_id"] + 1}).json()["results"] == []


def test_a_judgment_is_taken_back(client, url, chunk):
    judged = put(client, url, chunk).json()
    assert client.delete(f"{url}judgments/{judged['id']}/").status_code == 204
    assert client.delete(f"{url}judgments/{judged['id']}/").status_code == 404
    assert EvalQuery.objects.count() == 1


@pytest.mark.parametrize("change", [{"grade": 4}, {"grade": "2"}, {"query": " "}, {"chunk_id": "x"}, {"more": 1}])
def test_what_is_no_judgment_is_refused(client, url, chunk, change):
    fields = {"query": QUERY, "chunk_id": chunk.pk, "grade": 2, **change}
    answer = client.put(f"{url}judgments/", fields, format="json")
    assert (answer.status_code, list(answer.json()["fields"])) == (400, list(change))


def test_a_chunk_of_another_knowledge_base_is_refused(client, owner, url):
    document = factories.make_document(factories.make_kb(owner), "text")
    assert put(client, url, document.chunks.get()).json()["code"] == "other_knowledge_base"


def test_a_strangers_chunk_is_not_there(client, url):
    document = factories.make_document(factories.make_kb(), "text")
    assert put(client, url, document.chunks.get()).status_code == 404
    assert not Judgment.objects.exists()


@pytest.mark.parametrize("layout", ["beir", "trec"])
def test_an_export_is_imported(client, kb, url, chunk, eval_set, layout):
    put(client, url, chunk)
    answer = client.get(f"{url}export/", {"layout": layout, "documents": "true"})
    archive = zipfile.ZipFile(io.BytesIO(b"".join(answer.streaming_content)))
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/zip")
    assert "corpus.jsonl" in archive.namelist()
    files = {name: archive.read(name) for name in archive.namelist()}
    done = upload(client, kb, files, name="copy")
    assert (done.status_code, done.json()["queries"], done.json()["judgments"], done.json()["missing"]) == (
        201,
        1,
        1,
        0,
    )
    copy = EvalSet.objects.get(pk=done.json()["eval_set_id"])
    assert (judged_set(copy).queries, judged_set(copy).judgments) == (
        judged_set(eval_set).queries,
        judged_set(eval_set).judgments,
    )


def test_an_import_says_what_is_wrong(client, kb, eval_set):
    bad = upload(client, kb, {"topics.tsv": "no tab", "qrels.txt": ""})
    assert (bad.status_code, bad.json()["code"]) == (400, "bad_set_file")
    assert "topics.tsv:1" in bad.json()["detail"]
    taken = upload(client, kb, {"topics.tsv": "1\tx", "qrels.txt": ""}, name="mine")
    assert (taken.status_code, taken.json()["code"]) == (400, "name_taken")
    assert upload(client, kb, {"topics.tsv": "1\tx", "qrels.txt": ""}, name="mine", replace="true").status_code == 201


def test_an_unknown_layout_is_refused(client, url):
    assert client.get(f"{url}export/", {"layout": "csv"}).status_code == 400


def test_who_may_not_write_is_refused(client_of, kb, url, chunk):
    viewer = client_of(factories.make_member(kb))
    query = EvalQuery.objects.get()
    calls = [
        put(viewer, url, chunk),
        viewer.patch(url, {"name": "x"}, format="json"),
        viewer.delete(url),
        viewer.post(f"{url}queries/", {"text": "x"}, format="json"),
        viewer.patch(f"{url}queries/{query.pk}/", {"text": "x"}, format="json"),
        viewer.delete(f"{url}queries/{query.pk}/"),
        viewer.post(URL, {"knowledge_base_id": kb.pk, "name": "x"}, format="json"),
        upload(viewer, kb, {"topics.tsv": "1\tx", "qrels.txt": ""}),
    ]
    assert {answer.status_code for answer in calls} == {403}
    assert viewer.get(f"{url}queries/").status_code == 200
    export = viewer.get(f"{url}export/")
    assert export.status_code == 200
    export.close()


def test_for_a_stranger_nothing_is_there(client_of, kb, url, chunk):
    stranger = client_of(factories.make_user())
    query = EvalQuery.objects.get()
    calls = [
        stranger.get(url),
        stranger.get(f"{url}queries/"),
        stranger.get(f"{url}queries/{query.pk}/"),
        stranger.get(f"{url}judgments/"),
        stranger.get(f"{url}export/"),
        put(stranger, url, chunk),
        stranger.delete(url),
        upload(stranger, kb, {"topics.tsv": "1\tx", "qrels.txt": ""}),
    ]
    assert {answer.status_code for answer in calls} == {404}
    assert stranger.get(URL).json()["results"] == []


def test_lists_take_few_queries(client, url, chunk, django_assert_max_num_queries):
    for number in range(5):
        put(client, url, chunk, query=f"问题 {number}")
    for each in (URL, f"{url}queries/", f"{url}judgments/"):
        with django_assert_max_num_queries(9):
            assert client.get(each).status_code == 200
