import lxml.html
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from kb.graph.admin.rows import base_graph_state, document_graph_state
from kb.graph.services.entities import entity_update
from kb.graph.services.writing import graph_request
from kb.models import Entity, GraphExtraction, GraphFact, Origin
from tests.factories import make_kb, make_member, names_of
from tests.kb.web.admin.pages import Page

LIST = "admin:kb_entity_changelist"
CHANGE = "admin:kb_entity_change"
IMPORT = "admin:kb_entity_import"
READINGS = "admin:kb_graphextraction_changelist"


@pytest.fixture(autouse=True)
def _english(client, english):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def ibm(kb, document):
    entity = entity_update(Entity(knowledge_base=kb), name="国际商业机器公司", kind="组织", aliases=["IBM"])
    city = entity_update(Entity(knowledge_base=kb), name="阿蒙克")
    for predicate, object_ in [("总部", city.name), ("成立于", "1911 年")]:
        GraphFact.objects.create(
            knowledge_base=kb,
            subject=entity.name,
            predicate=predicate,
            object=object_,
            origin=Origin.LLM,
            source_chunk=document.chunks.first(),
        )
    return entity


def form(**values):
    return {"name": "a", "kind": "", "aliases": "", "description": "", **values}


def test_the_list_tells_names_and_facts_in_few_queries(client, ibm, django_assert_max_num_queries):
    client.get(reverse(LIST))

    with django_assert_max_num_queries(10):
        page = client.get(reverse(LIST), {"q": "ibm"}).content.decode()

    assert "国际商业机器公司" in page
    assert '<td class="field-facts' in page
    assert "阿蒙克" not in page


def test_an_empty_list_says_what_to_do(client, kb):
    assert "chat model" in Page(client.get(reverse(LIST))).text("empty")


def test_an_entity_is_added_with_its_names(client, kb):
    client.post(reverse("admin:kb_entity_add"), form(knowledge_base=kb.pk, name="IBM", aliases="蓝色巨人\nBig Blue\n"))

    assert names_of(Entity.objects.get()) == ["IBM", "蓝色巨人", "Big Blue"]


def test_a_name_of_another_entity_is_refused_with_what_to_do(client, ibm, kb):
    response = client.post(reverse("admin:kb_entity_add"), form(knowledge_base=kb.pk, name="x", aliases="ibm"))

    assert response.status_code == 200
    assert "merge the two" in response.content.decode()


def test_a_changed_name_changes_the_facts(client, ibm):
    client.post(reverse(CHANGE, args=[ibm.pk]), form(name="IBM 公司", aliases="IBM"))

    assert set(GraphFact.objects.values_list("subject", flat=True)) == {"IBM 公司"}


def test_the_page_draws_the_neighbours_and_tells_the_facts(client, ibm, document, django_assert_max_num_queries):
    client.get(reverse(LIST))

    with django_assert_max_num_queries(16):
        page = Page(client.get(reverse(CHANGE, args=[ibm.pk])))

    city = Entity.objects.get(name="阿蒙克")
    for kind in ("wide", "narrow"):
        links = page.tree.xpath(f"//*[@data-testid='picture-{kind}']//a")
        assert [link.get("aria-label") for link in links] == ["阿蒙克: → 总部", "1911 年: → 成立于"]
        assert links[0].get("href") == reverse(CHANGE, args=[city.pk])
    assert reverse("admin:kb_chunk_change", args=[document.chunks.first().pk]) in page.tree.xpath(
        "//*[@data-testid='facts']//td//a/@href"
    )


def test_more_neighbours_than_are_drawn_are_counted(client, ibm, kb):
    for number in range(45):
        GraphFact.objects.create(knowledge_base=kb, subject="IBM", predicate="产品", object=f"产品 {number}")

    page = Page(client.get(reverse(CHANGE, args=[ibm.pk])))

    assert page.text("not-drawn") == "7 more are in the table only."


def test_an_entity_alone_has_a_page(client, kb):
    entity = entity_update(Entity(knowledge_base=kb), name="IBM")

    assert Page(client.get(reverse(CHANGE, args=[entity.pk]))).has("no-facts")


def test_a_name_of_markup_is_shown_as_text(client, kb):
    entity = entity_update(Entity(knowledge_base=kb), name="<script>alert(1)</script>")
    GraphFact.objects.create(knowledge_base=kb, subject=entity.name, predicate="<b>", object="</svg><i>")

    page = client.get(reverse(CHANGE, args=[entity.pk])).content.decode()

    assert "<script>alert" not in page
    assert "</svg><i>" not in page


def test_another_entity_is_searched_for_shown_and_merged(client, ibm, kb):
    other = entity_update(Entity(knowledge_base=kb), name="Big Blue")
    url = reverse("admin:kb_entity_merge", args=[ibm.pk])

    assert "Big Blue" in Page(client.get(url, {"q": "BLUE"})).text("offered")
    assert "Names that move: Big Blue" in Page(client.get(url, {"with": other.pk})).text("plan")
    assert Entity.objects.filter(pk=other.pk).exists()
    client.post(url, {"with": other.pk})
    assert names_of(ibm) == ["国际商业机器公司", "IBM", "Big Blue"]


def test_an_entity_of_another_base_is_not_offered(client, ibm, curator):
    foreign = entity_update(Entity(knowledge_base=make_kb(curator)), name="Big Blue")
    url = reverse("admin:kb_entity_merge", args=[ibm.pk])

    assert "Big Blue" not in Page(client.get(url, {"q": "Big"})).text("offered")
    client.post(url, {"with": foreign.pk})
    assert Entity.objects.filter(pk=foreign.pk).exists()


def test_a_name_is_split_off_with_the_chosen_facts(client, ibm):
    fact = GraphFact.objects.get(predicate="总部")
    url = reverse("admin:kb_entity_split", args=[ibm.pk])

    assert client.get(url).status_code == 200
    client.post(url, {"alias": "IBM", "fact": [fact.pk]})

    fact.refresh_from_db()
    assert fact.subject == "IBM"
    assert Entity.objects.filter(name="IBM").exists()


def test_a_viewer_sees_an_entity_but_cannot_change_it(client, kb, ibm):
    client.force_login(make_member(kb))

    assert client.get(reverse(CHANGE, args=[ibm.pk])).status_code == 200
    for name in ("merge", "split"):
        assert client.get(reverse(f"admin:kb_entity_{name}", args=[ibm.pk])).status_code == 403


def test_an_entity_of_a_stranger_does_not_exist(client, foreign):
    entity = entity_update(Entity(knowledge_base=foreign.knowledge_base), name="IBM")

    for name in ("change", "merge", "split"):
        assert client.get(reverse(f"admin:kb_entity_{name}", args=[entity.pk])).status_code == 404


def test_a_deleted_entity_leaves_its_facts(client, ibm):
    client.post(reverse("admin:kb_entity_delete", args=[ibm.pk]), {"post": "yes"})

    assert not Entity.objects.filter(pk=ibm.pk).exists()
    assert GraphFact.objects.count() == 2


def test_a_file_is_shown_before_it_is_imported(client, kb):
    file = SimpleUploadedFile("entities.csv", "名称,别名\n阿里巴巴,Alibaba\n".encode("gb18030"))

    page = Page(client.post(reverse(IMPORT), {"knowledge_base": kb.pk, "table": "entities", "file": file}))
    assert not Entity.objects.exists()
    (text,) = page.tree.xpath("//textarea[@name='text']")
    values = {"knowledge_base": kb.pk, "table": "entities", "text": text.text, "confirm": "1"}
    client.post(reverse(IMPORT), values)

    assert "阿里巴巴" in page.text("plan")
    assert names_of(Entity.objects.get()) == ["阿里巴巴", "Alibaba"]


def test_the_page_of_files_offers_the_download(client, kb, foreign):
    page = Page(client.get(reverse(IMPORT)))

    assert page.tree.xpath("//form[@method='get']//select[@name='kb']/option/@value") == [str(kb.pk)]


def test_a_file_that_cannot_be_read_is_told_of(client, kb):
    file = SimpleUploadedFile("entities.csv", b"colour\nred\n")

    page = client.post(reverse(IMPORT), {"knowledge_base": kb.pk, "table": "entities", "file": file})

    assert "has to name the columns" in page.content.decode()


def test_the_export_is_a_download_of_what_is_visible(client, ibm, kb, foreign):
    url = reverse("admin:kb_entity_export")

    response = client.get(url, {"kb": kb.pk, "table": "entities"})

    assert "国际商业机器公司,组织,,IBM" in b"".join(response.streaming_content).decode()
    assert client.get(url, {"kb": foreign.knowledge_base.pk, "table": "entities"}).status_code == 404
    assert client.get(url, {"kb": kb.pk, "table": "x"}).status_code == 404


def test_a_failed_reading_is_told_and_read_again(client, document):
    extraction = graph_request(document)
    GraphExtraction.objects.update(status="failed", error="the server is down", skipped_count=3)

    page = client.get(reverse(READINGS)).content.decode()
    client.post(reverse(READINGS), {"action": "read_again", "_selected_action": [extraction.pk]})

    assert "the server is down" in page
    assert "3 passages were not read" in page
    assert GraphExtraction.objects.get().status == "waiting"


def test_the_pages_of_a_document_and_its_base_can_tell_a_failure(client, document, kb):
    assert document_graph_state(document) == base_graph_state(kb) == ""
    graph_request(document)
    GraphExtraction.objects.update(status="waiting", attempts=2, error="the <server> is down")

    assert "the &lt;server&gt; is down" in document_graph_state(document)
    assert "Attempt 2 failed" in document_graph_state(document)
    link = base_graph_state(kb)
    assert "1 document could not be read" in link
    assert client.get(lxml.html.fromstring(link).get("href")).status_code == 200
