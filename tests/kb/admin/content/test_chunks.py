import pytest
from django.urls import reverse

from kb.models import Chunk, KnowledgeBase
from kb.services.chunk_work import checks
from kb.services.search import SearchRequest, search
from tests.factories import principal


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def save(client, chunk, **values):
    data = {"text": chunk.text, "enabled": "on", **values}
    return client.post(reverse("admin:kb_chunk_change", args=[chunk.pk]), data)


def found(kb, query):
    outcome = search(principal(kb.owner), SearchRequest(query=query, knowledge_base_ids=[kb.pk], explain=True))
    return [hit.passage.chunk_id for hit in outcome.result.hits if "bm25" in hit.ranks]


def test_an_edited_chunk_is_found_by_its_new_words_only(client, kb, document):
    chunk = document.chunks.first()
    assert found(kb, "违约金") == [chunk.pk]

    response = save(client, chunk, text="居住权自登记时设立。")

    assert response.status_code == 302
    assert found(kb, "居住权") == [chunk.pk]
    assert found(kb, "违约金") == []


def test_a_disabled_chunk_is_not_found(client, kb, document):
    chunk = document.chunks.first()

    client.post(reverse("admin:kb_chunk_change", args=[chunk.pk]), {"text": chunk.text})

    assert found(kb, "违约金") == []


def test_saving_without_a_change_writes_nothing(client, kb, document):
    before = KnowledgeBase.objects.select_related("version_row").get(pk=kb.pk).version_row.version

    save(client, document.chunks.first())

    assert KnowledgeBase.objects.select_related("version_row").get(pk=kb.pk).version_row.version == before


def test_an_empty_text_is_refused(client, document):
    chunk = document.chunks.first()

    assert save(client, chunk, text="  ").status_code == 200
    assert Chunk.objects.get(pk=chunk.pk).text == chunk.text


def test_a_model_out_of_reach_is_said_beside_the_text(client, kb, document, settings):
    settings.EMBEDDING_BASE_URL = ""
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="openai:gone")
    chunk = document.chunks.first()

    page = save(client, chunk, text="new")

    assert page.status_code == 200
    assert "EMBEDDING_BASE_URL" in str(page.context["errors"])
    assert Chunk.objects.get(pk=chunk.pk).text == chunk.text


def test_a_change_of_model_meanwhile_asks_to_save_again(client, document, monkeypatch):
    prepare = checks.prepare_chunks

    def prepare_while_the_base_moves(kb, sources):
        KnowledgeBase.objects.update(embedding_model="another")
        return prepare(kb, sources)

    monkeypatch.setattr(checks, "prepare_chunks", prepare_while_the_base_moves)

    page = save(client, document.chunks.first(), text="new")

    assert "moved to another embedding model meanwhile" in page.content.decode()


def test_the_page_shows_the_neighbours(client, document):
    first, second = document.chunks.order_by("position")

    page = client.get(reverse("admin:kb_chunk_change", args=[first.pk])).content.decode()

    assert reverse("admin:kb_chunk_change", args=[second.pk]) in page
    assert second.text in page


def test_chunks_are_not_added_by_hand(client, document):
    assert client.get(reverse("admin:kb_chunk_add")).status_code == 403


def test_a_deleted_chunk_is_not_found(client, kb, document):
    chunk = document.chunks.first()

    client.post(reverse("admin:kb_chunk_delete", args=[chunk.pk]), {"post": "yes"})

    assert found(kb, "违约金") == []


def test_the_browser_searches_in_the_text_of_one_document(client, document):
    url = reverse("admin:kb_chunk_changelist")

    rows = client.get(url, {"document__id__exact": document.pk, "q": "时效"}).context["cl"].result_list

    assert [row.position for row in rows] == [1]


def test_questions_are_edited_one_a_line_and_find_the_chunk(client, kb, document):
    chunk = document.chunks.first()

    save(client, chunk, questions="赔多少算太多？\n\n  能少付吗？ ")

    chunk.refresh_from_db()
    assert chunk.questions == ["赔多少算太多？", "能少付吗？"]
    outcome = search(principal(kb.owner), SearchRequest(query="能少付吗？", knowledge_base_ids=[kb.pk], explain=True))
    assert [c.chunk_id for c in outcome.result.candidates if c.ranks.get("question") == 1] == [chunk.pk]


def test_questions_of_a_chunk_stand_one_a_line(client, document):
    chunk = document.chunks.first()
    save(client, chunk, questions="赔多少？\n能少付吗？")

    page = client.get(reverse("admin:kb_chunk_change", args=[chunk.pk])).content.decode()

    assert "赔多少？\n能少付吗？</textarea>" in page


def test_questions_that_were_not_touched_stay(client, document):
    chunk = document.chunks.first()
    save(client, chunk, questions="赔多少？")

    save(client, chunk, text="新的正文。", questions="赔多少？")

    chunk.refresh_from_db()
    assert (chunk.text, chunk.questions) == ("新的正文。", ["赔多少？"])


def test_keywords_are_edited_one_a_line_and_cleared_ones_are_extracted_again(client, kb, document):
    KnowledgeBase.objects.filter(pk=kb.pk).update(keyword_vectors=True)
    chunk = document.chunks.first()

    save(client, chunk, keywords="罚金\n\n 减免 ")
    chunk.refresh_from_db()
    given = (chunk.keywords, chunk.own_keywords)
    save(client, chunk, keywords="")

    chunk.refresh_from_db()
    assert given == (["罚金", "减免"], True)
    assert not chunk.own_keywords
    assert "违约金" in chunk.keywords
