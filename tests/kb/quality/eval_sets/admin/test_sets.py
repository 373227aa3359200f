"""The pages of evaluation sets."""

import io
import zipfile

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from kb.ingest.services.documents import document_delete
from kb.models import Chunk, EvalQuery, EvalRun, EvalSet, Judgment
from kb.quality.eval_sets.services.files import judged_set
from kb.quality.eval_sets.services.sets import eval_set_named, judge, mark_unanswerable, queries_add
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.web.admin.pages import Page, words

pytestmark = pytest.mark.django_db

LIST = "/admin/kb/evalset/"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def me(kb):
    return principal(kb.owner)


@pytest.fixture
def eval_set(kb, me, document):
    """Two judged passages of one query, a query without judgments and one without an answer."""
    eval_set = eval_set_named(me, kb, "contracts")
    for chunk, grade in zip(chunks(document), (2, 0), strict=True):
        judge(me, eval_set, "违约金过高怎么办", chunk, grade)
    queries_add(me, eval_set, ["诉讼时效多久"])
    mark_unanswerable(me, eval_set, "公司的股价", True)
    return eval_set


@pytest.fixture
def viewer(kb):
    client = Client(HTTP_ACCEPT_LANGUAGE="en")
    client.force_login(make_member(kb))
    return client


@pytest.fixture
def stranger(db):
    client = Client(HTTP_ACCEPT_LANGUAGE="en")
    client.force_login(make_user())
    return client


def chunks(document):
    return list(Chunk.objects.filter(document=document).select_related("document").order_by("position"))


def set_url(eval_set, query=""):
    return reverse("admin:kb_evalset_change", args=[eval_set.pk]) + query


def query_url(query):
    return reverse("admin:kb_evalset_query", args=[query.eval_set_id, query.pk])


def delete_url(eval_set, *queries):
    chosen = "&".join(f"query={query.pk}" for query in queries)
    return reverse("admin:kb_evalset_queries_delete", args=[eval_set.pk]) + (f"?{chosen}" if chosen else "")


def said(response):
    return [str(message) for message in response.context["messages"]]


class SetPage(Page):
    def queries(self):
        return [words(item) for item in self.tree.xpath("//*[@data-query]")]

    def judgments(self):
        return {int(item.get("data-judgment")): item for item in self.tree.xpath("//*[@data-judgment]")}


# -- The list ------------------------------------------------------------------------------------------------------------
def test_the_list_counts_queries_and_shows_the_last_run(client, kb, eval_set):
    report = {"stages": {"reranked": {"recall@5": 0.75, "ndcg@10": 0.5}}}
    EvalRun.objects.create(eval_set=eval_set, profile=kb.profile, status=EvalRun.Status.DONE, report=report)
    EvalRun.objects.create(eval_set=eval_set, profile=kb.profile, status=EvalRun.Status.FAILED)
    (row,) = Page(client.get(LIST)).tree.xpath("//table[@id='result_list']/tbody/tr")
    assert "contracts legal 3 1 1 Recall@5 0.750 · NDCG@10 0.500" in words(row)


def test_the_list_has_only_visible_sets(client, eval_set, foreign):
    owner = principal(foreign.knowledge_base.owner)
    eval_set_named(owner, foreign.knowledge_base, "secret-set")
    page = client.get(LIST).content.decode()
    assert "contracts" in page
    assert "secret-set" not in page


def test_a_set_is_made_by_hand_and_leads_to_its_page(client, kb):
    response = client.post(f"{LIST}add/", {"knowledge_base": kb.pk, "name": "new"})
    assert response.url == set_url(EvalSet.objects.get(name="new"))


def test_a_set_is_made_only_where_one_may(client, foreign):
    response = client.post(f"{LIST}add/", {"knowledge_base": foreign.knowledge_base_id, "name": "new"})
    assert response.status_code == 200
    assert not EvalSet.objects.exists()


# -- One set -------------------------------------------------------------------------------------------------------------
def test_the_page_shows_what_the_set_holds(client, eval_set):
    page = SetPage(client.get(set_url(eval_set)))
    assert (page.text("queries"), page.text("unanswerable")) == ("3", "1")
    assert page.text("judged") == "1 2 judgments"
    first, second, third = page.queries()
    assert "违约金过高怎么办" in first
    assert "1 relevant of 2 judgments" in first
    assert "no judgments" in second
    assert "no answer" in third


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("?q=时效", ["诉讼时效多久"]),
        ("?show=judged", ["违约金过高怎么办"]),
        ("?show=unanswerable", ["公司的股价"]),
        ("?show=unjudged", ["诉讼时效多久"]),
        ("?show=judged&q=股价", []),
        ("?show=nonsense", ["违约金过高怎么办", "诉讼时效多久", "公司的股价"]),
    ],
)
def test_queries_are_searched_and_filtered(client, eval_set, query, found):
    page = SetPage(client.get(set_url(eval_set, query)))
    assert [item.split()[0] for item in page.queries()] == found
    assert page.has("nothing") is (not found)


def test_a_search_without_a_match_says_so(client, eval_set):
    assert SetPage(client.get(set_url(eval_set, "?q=nothing"))).has("nothing")


def test_pages_of_many_queries_keep_the_filter(client, me, eval_set):
    queries_add(me, eval_set, [f"问题 {number}" for number in range(60)])
    page = SetPage(client.get(set_url(eval_set, "?q=问题")))
    assert len(page.queries()) == 50
    (link,) = page.tree.xpath("//a[@rel='next']/@href")
    assert len(SetPage(client.get(set_url(eval_set, link))).queries()) == 10


def test_pages_take_few_queries_however_large_the_set(client, kb, eval_set, django_assert_max_num_queries):
    queries = EvalQuery.objects.bulk_create(
        EvalQuery(eval_set=eval_set, external_id=f"x{number}", text=f"问题 {number}") for number in range(4_000)
    )
    documents = [make_document(kb, f"第{number}条") for number in range(3)]
    Judgment.objects.bulk_create(
        Judgment(query=query, document=document, source="notes.txt", grade=1)
        for query in queries[:1_000]
        for document in documents
    )
    for url in (LIST, set_url(eval_set, "?show=judged"), query_url(queries[0]), f"{LIST}import/"):
        with django_assert_max_num_queries(9):
            assert client.get(url).status_code == 200


def test_lines_are_added_as_queries(client, eval_set):
    response = client.post(
        set_url(eval_set), {"action": "add", "queries": "新问题\r\n诉讼时效多久\r\n\r\n"}, follow=True
    )
    assert said(response) == ["1 query was added. 1 line was there already."]
    assert EvalQuery.objects.filter(text="新问题").exists()


def test_what_is_too_long_is_said_and_the_lines_stay_in_the_form(client, eval_set):
    response = client.post(set_url(eval_set), {"action": "add", "queries": "y" * 2_001})
    assert response.status_code == 200
    assert "y" * 2_001 in response.content.decode()
    assert len(said(response)) == 1


def test_a_set_is_renamed(client, eval_set):
    client.post(set_url(eval_set), {"action": "rename", "name": "agreements"})
    eval_set.refresh_from_db()
    assert eval_set.name == "agreements"


def test_the_page_leads_to_evaluation_search_debug_and_deletion(client, kb, eval_set):
    links = SetPage(client.get(set_url(eval_set))).tree.xpath("//a/@href")
    assert f"{reverse('admin:kb_evalrun_add')}?eval_set={eval_set.pk}" in links
    assert reverse("admin:kb_evalset_judge", args=[eval_set.pk]) in links
    assert reverse("admin:kb_evalset_delete", args=[eval_set.pk]) in links


def test_judging_in_search_debug_goes_on_in_this_set(client, kb, eval_set):
    query = EvalQuery.objects.get(text="诉讼时效多久")
    (link,) = SetPage(client.get(query_url(query))).tree.xpath("//a[contains(@href, '/judge/')]/@href")
    response = client.get(link, follow=True)
    assert response.request["PATH_INFO"] == reverse("admin:search_debug")
    page = Page(response)
    assert page.tree.xpath("//form[@id='judge-form']//option[@selected]/text()") == ["contracts"]
    assert page.tree.xpath("//input[@name='q']/@value") == [query.text]
    there = client.get(reverse("admin:kb_evalset_judge", args=[eval_set.pk])).url
    assert there == f"{reverse('admin:search_debug')}?kb={kb.pk}"


def test_a_set_is_deleted_with_what_belongs_to_it(client, kb, eval_set):
    url = reverse("admin:kb_evalset_delete", args=[eval_set.pk])
    EvalRun.objects.create(eval_set=eval_set, profile=kb.profile)
    assert dict(client.get(url).context["model_count"]) == {
        "evaluation queries": 3,
        "judgments": 2,
        "evaluation runs": 1,
    }
    client.post(url, {"post": "yes"})
    assert not EvalSet.objects.exists()


def test_chosen_sets_are_deleted(client, eval_set):
    client.post(LIST, {"action": "delete_selected", "_selected_action": [eval_set.pk], "post": "yes"})
    assert not EvalSet.objects.exists()


# -- One query -----------------------------------------------------------------------------------------------------------
def test_a_query_shows_its_judgments_with_their_chunks(client, document, eval_set):
    query = EvalQuery.objects.get(text="违约金过高怎么办")
    page = SetPage(client.get(query_url(query)))
    first, second = page.judgments().values()
    assert "违约金过高的，可以请求减少。" in words(first)
    assert reverse("admin:kb_chunk_change", args=[chunks(document)[0].pk]) in first.xpath(".//a/@href")
    grades = [item.xpath(".//option[@selected]/@value") for item in (first, second)]
    assert grades == [["2"], ["0"]]
    assert not page.has("lost")


def test_a_judgment_without_its_document_or_passage_says_so(client, kb, document, eval_set):
    url = query_url(EvalQuery.objects.get(text="违约金过高怎么办"))
    Chunk.objects.filter(document=document, position=0).update(text="完全不同的另外一段文字。")
    lost = SetPage(client.get(url)).tree.xpath("//*[@data-testid='lost']")
    assert ["no longer has this passage" in words(item) for item in lost] == [True]
    document_delete(document)
    assert len(SetPage(client.get(url)).tree.xpath("//*[@data-testid='lost']")) == 2
    make_document(kb, "违约金过高的，可以请求减少。", title="other")
    assert len(SetPage(client.get(url)).tree.xpath("//*[@data-testid='lost']")) == 1


def test_grades_are_changed_and_taken_back(client, eval_set):
    query = EvalQuery.objects.get(text="违约金过高怎么办")
    first, second = Judgment.objects.filter(query=query).order_by("pk")
    fields = {"action": "judgments", f"grade-{first.pk}": "1", f"grade-{second.pk}": "none", "grade-x": "1"}
    response = client.post(query_url(query), fields, follow=True)
    assert said(response) == ["2 judgments were changed."]
    assert dict(Judgment.objects.values_list("pk", "grade")) == {first.pk: 1}


def test_a_query_is_changed(client, eval_set):
    query = EvalQuery.objects.get(text="诉讼时效多久")
    client.post(query_url(query), {"action": "query", "text": "时效多久"})
    query.refresh_from_db()
    assert (query.text, query.answerable) == ("时效多久", False)


def test_a_judged_query_cannot_lose_its_answer(client, eval_set):
    query = EvalQuery.objects.get(text="违约金过高怎么办")
    response = client.post(query_url(query), {"action": "query", "text": query.text})
    assert len(said(response)) == 1
    query.refresh_from_db()
    assert query.answerable


def test_queries_are_deleted_after_a_question(client, eval_set):
    kept, *chosen = EvalQuery.objects.order_by("-pk")
    page = SetPage(client.get(delete_url(eval_set, *chosen)))
    assert "2 judgments go with" in page.text("confirm")
    assert EvalQuery.objects.count() == 3
    response = client.post(delete_url(eval_set), {"query": [query.pk for query in chosen]}, follow=True)
    assert said(response) == ["2 queries were deleted."]
    assert list(EvalQuery.objects.all()) == [kept]


def test_deleting_nothing_leads_back(client, eval_set):
    assert client.get(delete_url(eval_set)).url == set_url(eval_set)


def test_a_query_of_another_set_is_not_there(client, me, kb, eval_set):
    other = eval_set_named(me, kb, "other")
    query = EvalQuery.objects.filter(eval_set=eval_set).first()
    url = reverse("admin:kb_evalset_query", args=[other.pk, query.pk])
    assert client.get(url).status_code == 404


# -- Files ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["beir", "trec"])
def test_a_download_is_taken_in_again(client, kb, eval_set, layout):
    response = client.get(reverse("admin:kb_evalset_export", args=[eval_set.pk]), {"layout": layout, "documents": "1"})
    archive = b"".join(response.streaming_content)
    assert f"contracts.{layout}.zip" in response.headers["Content-Disposition"]
    assert "corpus.jsonl" in zipfile.ZipFile(io.BytesIO(archive)).namelist()
    upload = SimpleUploadedFile("set.zip", archive, content_type="application/zip")
    done = client.post(f"{LIST}import/", {"knowledge_base": kb.pk, "file": upload, "name": "copy"}, follow=True)
    assert said(done) == ["The set “copy” was imported: queries 3, judgments 2."]
    original, copy = judged_set(eval_set), judged_set(EvalSet.objects.get(name="copy"))
    assert (copy.queries, sorted(copy.judgments, key=str)) == (original.queries, sorted(original.judgments, key=str))


def test_a_download_leaves_the_documents_out_unless_they_are_asked_for(client, eval_set):
    response = client.get(reverse("admin:kb_evalset_export", args=[eval_set.pk]))
    names = zipfile.ZipFile(io.BytesIO(b"".join(response.streaming_content))).namelist()
    assert "queries.jsonl" in names
    assert "corpus.jsonl" not in names


@pytest.mark.parametrize(
    ("files", "field"), [({"queries.jsonl": "{"}, "file"), ({"topics.tsv": "1\tx", "qrels.txt": "1 0 d 1"}, "replace")]
)
def test_an_import_that_fails_says_so_at_its_field(client, kb, eval_set, files, field):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for name, text in files.items():
            target.writestr(name, text)
    upload = SimpleUploadedFile("contracts.zip", archive.getvalue())
    response = client.post(f"{LIST}import/", {"knowledge_base": kb.pk, "file": upload})
    assert list(response.context["form"].errors) == [field]
    assert EvalQuery.objects.count() == 3


def test_judgments_of_missing_documents_are_told_of(client, kb):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("topics.tsv", "1\tx")
        target.writestr("qrels.txt", "1 0 d 1")
    upload = SimpleUploadedFile("set.zip", archive.getvalue())
    response = client.post(f"{LIST}import/", {"knowledge_base": kb.pk, "file": upload}, follow=True)
    assert len(said(response)) == 2


def test_the_import_form_is_filled_in_by_a_link(client, kb, eval_set):
    form = client.get(f"{LIST}import/", {"kb": kb.pk, "name": "contracts"}).context["form"]
    assert (form["knowledge_base"].value(), form["name"].value()) == (kb.pk, "contracts")


def test_without_a_knowledge_base_to_change_the_import_says_so(stranger):
    assert Page(stranger.get(f"{LIST}import/")).has("no-bases")


# -- Rights --------------------------------------------------------------------------------------------------------------
def test_a_viewer_reads_and_changes_nothing(viewer, eval_set):
    query = EvalQuery.objects.get(text="违约金过高怎么办")
    page = SetPage(viewer.get(set_url(eval_set)))
    assert not page.has("add")
    assert not page.tree.xpath("//input[@name='query']")
    assert not SetPage(viewer.get(query_url(query))).tree.xpath("//select[starts-with(@name, 'grade')]")
    assert viewer.post(set_url(eval_set), {"action": "add", "queries": "x"}).status_code == 403
    assert viewer.post(query_url(query), {"action": "query", "text": "x"}).status_code == 403
    assert viewer.get(delete_url(eval_set, query)).status_code == 403
    assert viewer.post(delete_url(eval_set), {"query": query.pk}).status_code == 403
    assert viewer.post(reverse("admin:kb_evalset_delete", args=[eval_set.pk]), {"post": "yes"}).status_code == 403
    assert EvalQuery.objects.count() == 3


def test_for_a_stranger_the_set_does_not_exist(stranger, eval_set):
    query = EvalQuery.objects.first()
    export = reverse("admin:kb_evalset_export", args=[eval_set.pk])
    judging = reverse("admin:kb_evalset_judge", args=[eval_set.pk])
    for url in (set_url(eval_set), query_url(query), delete_url(eval_set, query), export, judging):
        assert stranger.get(url).status_code == 404


def test_the_import_takes_no_knowledge_base_of_others(client, foreign):
    upload = SimpleUploadedFile("set.zip", b"x")
    response = client.post(f"{LIST}import/", {"knowledge_base": foreign.knowledge_base_id, "file": upload})
    assert "knowledge_base" in response.context["form"].errors


def test_a_link_fills_the_knowledge_base_in(client, curator):
    make_kb(curator)
    second = make_kb(curator)
    form = client.get(f"{LIST}add/", {"kb": second.pk}).context["adminform"].form
    assert str(form["knowledge_base"].value()) == str(second.pk)
