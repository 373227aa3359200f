from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from kb.index.filters import Filters
from kb.index.services.tokenizing import TOKENIZING
from kb.ingest.services.chunks import chunk_update
from kb.models import Chunk, ChunkPostings, Document, KnowledgeBase, Membership, RetrievalProfile
from kb.search.services.search import SearchRequest, search
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.quality.why_not.admin.page_reader import Page, url_of
from tests.kb.web.admin.pages import words

pytestmark = pytest.mark.django_db

LAST = 6


@pytest.fixture
def ask(client):
    """Opens the page for a chunk; the chunk of a test is the last one of six in each channel."""

    def get(chunk=None, /, *, language="en", using=client, **parameters):
        given = {"q": "保修期", "threshold": 0}
        if chunk is not None:
            given |= {"kb": chunk.knowledge_base_id, "chunk": chunk.pk}
        return Page(using.get(url_of(**{**given, **parameters}), headers={"accept-language": language}))

    return get


@pytest.fixture
def press(client):
    """Presses the button of a remedy on a page; the page that comes after it."""

    def post(page, remedy, *, using=client, **data):
        answer = using.post(page.url, {"remedy": remedy, **data}, headers={"accept-language": "en"}, follow=True)
        return Page(answer)

    return post


@pytest.fixture
def chunk(kb):
    for number in range(LAST - 1):
        make_document(kb, f"保修期 保修期 {number}")
    text = "安装说明书里写着许多关于电源和设备的事项，最后一页也提到保修期"
    return make_document(kb, text, title="说明书", tags=["manual"]).chunks.get()


# -- Who may open it, and what -----------------------------------------------------------------------------------------
def test_a_visitor_is_sent_to_the_login():
    response = Client().get(reverse("admin:why_not"))

    assert response.status_code == 302
    assert response.url.startswith(reverse("admin:login"))


def test_a_strangers_knowledge_base_does_not_exist(ask, foreign):
    assert ask(foreign.chunks.get()).status == 404


@pytest.mark.parametrize("parameters", [{}, {"q": None}])
def test_a_strangers_chunk_does_not_exist(ask, kb, chunk, foreign, parameters):
    page = ask(kb=kb.pk, chunk=foreign.chunks.get().pk, **parameters)

    assert "There is no chunk with the id" in page.text("no-chunk")
    assert not page.has("verdict")


# -- Which chunk -------------------------------------------------------------------------------------------------------
def test_without_anything_the_page_says_what_it_is_for(ask, kb):
    assert ask(q=None, threshold=None).has("no-query")


def test_without_a_knowledge_base_it_says_how_to_begin(ask):
    assert ask(q=None, threshold=None).has("no-bases")


def test_a_query_alone_asks_for_the_chunk(ask, kb, chunk):
    assert ask(kb=kb.pk).has("no-chunk-chosen")


def test_a_chunk_alone_is_shown_and_its_knowledge_base_chosen(ask, chunk, curator):
    make_kb(curator, "another")

    page = ask(q=None, threshold=None, chunk=chunk.pk)

    assert "说明书" in page.text("chunk")
    assert page.tree.xpath("//input[@name='kb'][@checked]/@value") == [str(chunk.knowledge_base_id)]


def test_a_chunk_is_chosen_by_a_piece_of_its_text(ask, kb, chunk):
    page = ask(kb=kb.pk, text="许多关于电源")

    assert page.has("verdict")
    assert page.tree.xpath("//input[@name='chunk']/@value") == [str(chunk.pk)]


def test_several_chunks_with_a_text_are_offered(ask, kb, chunk):
    page = ask(kb=kb.pk, text="保修期 保修期", top_k=3)

    links = page.links("choices")
    assert len(links) == LAST - 1
    assert "top_k=3" in links[0]
    assert follow(ask, links[0]).has("verdict")


def follow(ask, url):
    return ask(**parse_qs(urlsplit(url).query))


def test_a_text_that_is_nowhere_is_said_to_be_so_with_the_documents_that_are_not_ready(ask, kb, chunk):
    Document.objects.create(knowledge_base=kb, sha256="x", title="Broken", status="failed", error="It is damaged.")

    page = ask(kb=kb.pk, text="zzz qqq")

    assert "Broken" in page.text("not-there")
    assert "It is damaged." in page.text("not-there")


@pytest.mark.parametrize("given", ["x", "9" * 30, "", " "])
def test_what_is_no_id_chooses_no_chunk(ask, kb, chunk, given):
    assert ask(kb=kb.pk, chunk=given).has("no-chunk-chosen")


# -- The verdict -------------------------------------------------------------------------------------------------------
def test_a_chunk_that_is_found(ask, chunk):
    page = ask(chunk, top_k=10)

    assert page.text("verdict").startswith("task_alt The search finds this chunk: It is result 6.")
    assert page.lost_at == []
    assert page.remedies == []


def test_the_first_stage_that_lost_it_and_the_figures(ask, chunk):
    page = ask(chunk, top_k=2)

    assert "Lost at the stage “Top K”. It would be result 6, and the search gives 2." in page.text("verdict")
    assert page.lost_at == ["top_k"]


def test_the_channels_and_the_terms_are_tables(ask, chunk):
    page = ask(chunk, q="保修期 电话", top_k=2)

    assert "6 of 6" in page.row("places", "channel", "vector")
    assert "among the candidates" in page.row("places", "channel", "vector")
    assert "in no chunk at all" in page.row("terms", "term", "电话")
    assert "6 of 6" in page.row("terms", "term", "保修期")
    assert "说明书" in page.text("chunk-terms")


def test_all_of_it_is_there_in_chinese(ask, chunk):
    page = ask(chunk, top_k=2, language="zh-hans")

    assert page.status == 200
    assert page.lost_at == ["top_k"]


def test_a_setting_that_cannot_be_used_is_said_beside_its_field(ask, chunk):
    page = ask(chunk, top_k=0)

    assert page.status == 400
    assert page.tree.xpath("//*[@id='id_top_k_error']")
    assert not page.has("verdict")


def test_without_any_channel_the_outage_is_told(ask, chunk):
    KnowledgeBase.objects.filter(pk=chunk.knowledge_base_id).update(embedding_model="BAAI/no", tokenizer_id="older")
    RetrievalProfile.objects.create(name="bare", settings={"enable_fts": False, "lexical_fallback": False})

    page = ask(chunk, profile="bare")

    assert page.status == 503
    assert "BAAI/no" in page.text("degraded")


def test_the_search_opens_in_search_debug(ask, chunk):
    (debug, again) = ask(chunk, top_k=2, tags="manual").links("verdict")

    assert debug.startswith(reverse("admin:search_debug"))
    assert "top_k=2" in debug
    assert "tags=manual" in debug
    assert again.startswith(reverse("admin:why_not"))


def test_it_costs_few_queries_besides_the_search(ask, chunk, curator):
    chunk_update(chunk, text=chunk.text, enabled=True, questions=["多久内可以免费修理"])
    filters = Filters.parse({"tags": ["manual"]})
    request = SearchRequest(
        query="保修期", knowledge_base_ids=[chunk.knowledge_base_id], overrides={"top_k": 2}, filters=filters, log=False
    )
    page = {"top_k": 2, "tags": "manual"}
    ask(chunk, **page)

    with CaptureQueriesContext(connection) as of_search:
        search(principal(curator), request)
    with CaptureQueriesContext(connection) as of_page:
        ask(chunk, **page)

    assert len(of_page) - len(of_search) <= 11


# -- Remedies ----------------------------------------------------------------------------------------------------------
def test_a_draft_is_tried_and_what_it_changes_is_shown(ask, press, chunk):
    before = ask(chunk, top_k=2)
    assert "Results of a general search" in words_of(before, "draft:top_k") or "→ 6" in words_of(before, "draft:top_k")

    after = press(before, "draft:top_k")

    assert "was saved as a draft" in words_of_messages(after)
    assert "The search finds this chunk" in after.text("verdict")
    assert "lost at “Top K” found" in after.text("effect")
    assert "keyword-led-kb" in after.text("draft")
    assert "is not published" in after.text("draft")


def words_of(page, remedy):
    return " ".join(page.remedy(remedy).itertext())


def words_of_messages(page):
    return " ".join(page.tree.itertext())


def test_ranks_and_scores_include_those_by_characters_and_the_relevance(ask, chunk):
    page = ask(chunk, top_k=10)

    rows = [[words(each) for each in row] for row in page.tree.xpath("//*[@data-testid='ranks']/tbody/tr")]
    found = {label: (rank, score) for label, rank, score in rows}
    assert list(found) == ["Vector", "BM25", "Characters", "Fused", "Rerank", "Order"]
    assert int(found["Characters"][0]) <= LAST
    assert float(found["Characters"][1]) > float(found["BM25"][1])
    assert found["Order"][0] == "–"
    assert float(found["Rerank"][1]) < float(found["Order"][1])


def test_the_effect_names_the_relevance_before_and_after(ask, press, chunk):
    chunk.enabled = False
    chunk.save()

    effect = press(ask(chunk, top_k=10), "enable").text("effect")

    assert "Rank by characters –" in effect
    assert "Relevance –" in effect


def test_a_chunk_is_switched_on(ask, press, chunk):
    chunk.enabled = False
    chunk.save()

    after = press(ask(chunk, top_k=10), "enable")

    assert "The search finds this chunk" in after.text("verdict")
    assert "lost at “Switched on”" in after.text("effect")


def test_a_chunk_is_indexed_again(ask, press, chunk):
    ChunkPostings.objects.filter(chunk=chunk).delete()
    chunk.embeddings.all().delete()
    before = ask(chunk, top_k=10)
    assert "manage.py reindex --kb legal --bm25" in words_of(before, "run_command")

    assert "The search finds this chunk" in press(before, "index_chunk").text("verdict")


@pytest.fixture
def narrow(db):
    """A profile under which the chunk is in no channel's candidates, unless it is asked for by a question of its own."""
    return RetrievalProfile.objects.create(name="narrow", settings={"vector_top_k": 1, "bm25_top_k": 1}).name


def test_a_question_makes_it_a_hit_as_was_said_beforehand(ask, press, chunk, narrow):
    before = ask(chunk, q="质保多久", profile=narrow)
    assert "It would be result" in words_of(before, "add_question")

    after = press(before, "add_question")

    assert "The search finds this chunk" in after.text("verdict")
    assert "lost at “Channels” found" in after.text("effect")


def test_a_question_that_changes_nothing_is_not_offered(ask, chunk):
    settings = {"vector_top_k": 1, "bm25_top_k": 1, "question_weight": 0.0}
    RetrievalProfile.objects.create(name="unasked", settings=settings)

    assert "add_question" not in ask(chunk, q="质保多久", profile="unasked").remedies


def test_what_is_left_to_a_worker_is_said_not_to_be_tried(ask, kb):
    document = Document.objects.create(knowledge_base=kb, sha256="x", title="Broken", status="failed")
    chunk = Chunk.objects.create(knowledge_base=kb, document=document, position=0, text="保修期", content_hash="x")

    assert "Not tried beforehand" in words_of(ask(chunk), "retry_document")


def test_a_question_is_added(ask, press, chunk, narrow):
    after = press(ask(chunk, q="质保多久", profile=narrow), "add_question", text="多久内可以免费修理")

    assert Chunk.objects.get(pk=chunk.pk).questions == ["多久内可以免费修理"]
    assert "The question was added." in words_of_messages(after)
    assert after.row("places", "channel", "question")


@pytest.fixture
def cut_apart(kb):
    return make_document(kb, "员工每年享有带薪年假期五天").chunks.get()


def test_a_word_is_added_after_a_question_back_and_the_page_says_that_a_worker_is_at_it(ask, press, cut_apart):
    before = ask(cut_apart, q="带薪年假", threshold=1)

    asked = press(before, "add_word", text="带薪年假")
    assert "1 chunk will be tokenised again" in asked.text("confirm")
    assert not KnowledgeBase.objects.get(pk=cut_apart.knowledge_base_id).target_tokenizer_id
    during = press(asked, "add_word", text="带薪年假", confirmed=1)
    assert "0 of 1 so far" in during.text("progress")
    TOKENIZING.follow(KnowledgeBase.objects.get(pk=cut_apart.knowledge_base_id))
    after = ask(cut_apart, q="带薪年假", threshold=1)

    assert not after.has("progress")
    assert "missing" not in after.row("terms", "term", "带薪年假")


def test_a_word_that_cannot_be_used_is_refused_with_the_reason(ask, press, cut_apart):
    after = press(ask(cut_apart, q="带薪年假", threshold=1), "add_word", text="长" * 60, confirmed=1)

    assert "the word is too long" in words_of_messages(after)
    assert not KnowledgeBase.objects.get(pk=cut_apart.knowledge_base_id).target_tokenizer_id


def test_a_failed_document_is_put_back_after_a_question_back(ask, press, kb):
    document = Document.objects.create(knowledge_base=kb, sha256="x", title="Broken", status="failed")
    chunk = Chunk.objects.create(knowledge_base=kb, document=document, position=0, text="保修期", content_hash="x")
    before = ask(chunk)

    asked = press(before, "retry_document")
    assert "Index the chunks of “Broken” again?" in asked.text("confirm")
    press(asked, "retry_document", confirmed=1)

    assert Document.objects.get(pk=document.pk).status == "pending"


def test_a_filter_is_taken_out_by_a_link_that_compares(ask, chunk):
    before = ask(chunk, tags="other", top_k=10)
    (url,) = before.remedy("change_request:tags").xpath(".//a/@href")

    after = follow(ask, url)

    assert "The search finds this chunk" in after.text("verdict")
    assert "lost at “Filters” found" in after.text("effect")


def test_the_chunk_that_stands_for_it_is_a_link(ask, kb):
    first, double = (make_document(kb, "保修期为两年", source="same.txt").chunks.get() for _ in range(2))

    (url,) = ask(double).remedy("show_double").xpath(".//a/@href")

    assert f"chunk={first.pk}" in url


def test_a_viewer_gets_no_buttons_and_may_not_press_them(ask, press, chunk, narrow):
    viewer = Client()
    viewer.force_login(make_member(chunk.knowledge_base, Membership.Role.VIEWER))

    shallow, page = ask(chunk, q="质保多久", profile=narrow, using=viewer), ask(chunk, top_k=2, using=viewer)

    assert page.remedies == shallow.remedies == []
    assert press(shallow, "add_question", using=viewer).status == 403
    assert press(page, "draft:top_k", using=viewer).status == 403
    assert Chunk.objects.get(pk=chunk.pk).questions == []


def test_a_remedy_that_is_not_needed_any_longer_changes_nothing(ask, press, chunk):
    page = press(ask(chunk, top_k=10), "enable")

    assert "not needed any longer" in words_of_messages(page)


@pytest.mark.parametrize("parameters", [{"chunk": None}, {"q": None}, {"top_k": 0}])
def test_a_remedy_for_no_search_or_no_chunk_does_not_exist(client, chunk, parameters):
    given = {"q": "保修期", "kb": chunk.knowledge_base_id, "chunk": chunk.pk, **parameters}

    assert client.post(url_of(**given), {"remedy": "enable"}).status_code == 404


@pytest.mark.parametrize("token", ["x", "a:b:c", ""])
def test_a_comparison_that_nobody_has_signed_is_not_shown(ask, chunk, token):
    page = ask(chunk, top_k=10, before=token)

    assert page.has("verdict")
    assert not page.has("effect")


def test_a_superuser_drafts_the_shared_profile_only_where_they_say_so(ask, press, chunk, curator):
    make_kb(curator, "Neighbour")
    boss = Client()
    boss.force_login(make_user(superuser=True))
    before = ask(chunk, top_k=2, using=boss)
    assert "it changes 1 other knowledge base too: Neighbour." in before.text("shared")

    own = press(before, "draft:top_k", using=boss)
    shared = press(before, "draft:top_k", using=boss, shared="1")

    assert f"keyword-led-kb{chunk.knowledge_base_id} v1" in own.text("draft")
    assert "keyword-led v2" in shared.text("draft")


def test_who_may_not_change_a_shared_profile_is_not_offered_it(ask, press, chunk):
    before = ask(chunk, top_k=2)

    after = press(before, "draft:top_k", shared="1")

    assert not before.has("shared")
    assert f"keyword-led-kb{chunk.knowledge_base_id} v1" in after.text("draft")
