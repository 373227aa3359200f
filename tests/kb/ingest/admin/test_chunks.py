import pytest
from django.urls import reverse

from kb.ingest.admin.chunks import marked
from kb.ingest.services import chunks as checks
from kb.models import Chunk, KnowledgeBase, Membership
from kb.search.services.search import SearchRequest, search
from tests.factories import make_document, principal
from tests.kb.web.admin.pages import Page


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def save(client, chunk, **values):
    data = {"text": chunk.text, "initial-text": chunk.text, "enabled": "on", **values}
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

    client.post(reverse("admin:kb_chunk_change", args=[chunk.pk]), {"text": chunk.text, "initial-text": chunk.text})

    assert found(kb, "违约金") == []


def test_saving_without_a_change_writes_nothing(client, kb, document):
    before = KnowledgeBase.objects.select_related("version_row").get(pk=kb.pk).version_row.version

    save(client, document.chunks.first())

    assert KnowledgeBase.objects.select_related("version_row").get(pk=kb.pk).version_row.version == before


def test_of_two_who_edit_at_once_the_second_is_told_and_keeps_what_was_written(client, document):
    chunk = document.chunks.first()
    page = Page(client.get(reverse("admin:kb_chunk_change", args=[chunk.pk])))
    assert page.tree.xpath("//input[@name='initial-text']/@value") == [chunk.text]
    save(client, chunk, text="居住权自登记时设立。")

    second = save(client, chunk, text="居住权不得转让。")

    assert second.status_code == 200
    assert "Somebody has changed" in second.content.decode()
    assert "居住权不得转让。" in second.content.decode()
    assert Chunk.objects.get(pk=chunk.pk).text == "居住权自登记时设立。"


def test_another_field_is_saved_beside_a_text_that_somebody_else_has_changed(client, document):
    chunk = document.chunks.first()
    save(client, chunk, text="居住权自登记时设立。")

    assert save(client, chunk, questions="居住权何时设立").status_code == 302
    saved = Chunk.objects.get(pk=chunk.pk)
    assert (saved.text, saved.questions) == ("居住权自登记时设立。", ["居住权何时设立"])


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


def test_a_change_of_model_meanwhile_asks_to_try_again(client, document, monkeypatch):
    prepare = checks.prepare_chunks

    def prepare_while_the_base_moves(kb, sources):
        KnowledgeBase.objects.update(embedding_model="another")
        return prepare(kb, sources)

    monkeypatch.setattr(checks, "prepare_chunks", prepare_while_the_base_moves)

    page = save(client, document.chunks.first(), text="new")

    assert "moved to another model meanwhile, and nothing was changed: try again" in page.content.decode()


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


def act(client, document, action, positions, **more):
    ids = list(document.chunks.filter(position__in=positions).values_list("pk", flat=True))
    data = {"action": action, "_selected_action": ids, **more}
    return client.post(reverse("admin:kb_chunk_changelist"), data, follow=True)


def test_selected_chunks_are_switched_off_and_on(client, document):
    act(client, document, "disable", [0, 1])
    off = document.chunks.filter(enabled=False).count()
    act(client, document, "enable", [0])

    assert (off, document.chunks.filter(enabled=True).count()) == (2, 1)


def test_selected_neighbours_are_merged(client, document):
    page = act(client, document, "merge", [0, 1]).content.decode()

    assert "2 chunks have become one." in page
    assert document.chunks.count() == 1


def test_one_chunk_alone_is_not_merged(client, document):
    assert "Choose from 2 to" in act(client, document, "merge", [0]).content.decode()
    assert document.chunks.count() == 2


def test_selected_chunks_are_deleted_after_a_confirmation(client, document):
    asked = act(client, document, "delete_selected", [0])
    there = document.chunks.count()
    act(client, document, "delete_selected", [0], post="yes")

    assert "processed again" in asked.content.decode()
    assert (there, [chunk.position for chunk in document.chunks.all()]) == (2, [0])


def test_a_viewer_changes_nothing(client, curator, foreign):
    Membership.objects.create(knowledge_base=foreign.knowledge_base, user=curator, role="viewer")
    chunk = foreign.chunks.get()

    act(client, foreign, "disable", [0])

    assert Chunk.objects.get(pk=chunk.pk).enabled
    assert client.get(reverse("admin:kb_chunk_split", args=[chunk.pk])).status_code == 403
    assert client.post(reverse("admin:kb_chunk_merge", args=[chunk.pk])).status_code == 403
    duplicates = reverse("admin:kb_chunk_duplicates") + f"?kb={foreign.knowledge_base_id}"
    assert client.post(duplicates, {"action": "delete", "chunk": [chunk.pk]}).status_code == 403


def test_what_a_stranger_may_not_see_is_not_there(client, foreign):
    chunk = foreign.chunks.get()

    assert client.get(reverse("admin:kb_chunk_split", args=[chunk.pk])).status_code == 404
    assert client.get(reverse("admin:kb_chunk_alike", args=[chunk.pk])).status_code == 404
    assert client.post(reverse("admin:kb_chunk_merge", args=[chunk.pk])).status_code == 404
    assert client.get(reverse("admin:kb_chunk_duplicates") + f"?kb={foreign.knowledge_base_id}").status_code == 404


def test_the_page_of_a_chunk_asks_for_its_near_duplicates(client, kb):
    chunk = make_document(kb, "The warranty of the thermostat lasts two years from the day of purchase.").chunks.get()
    other = make_document(kb, "The warranty of the thermostat lasts two years from the day of purchase!").chunks.get()
    page = Page(client.get(reverse("admin:kb_chunk_change", args=[chunk.pk])))

    (address,) = page.tree.xpath("//@hx-get[contains(., 'alike')]")

    assert reverse("admin:kb_chunk_change", args=[other.pk]) in client.get(address).content.decode()


@pytest.mark.parametrize(("position", "side"), [(0, "next"), (1, "previous")])
def test_a_chunk_is_merged_with_its_neighbour(client, document, position, side):
    chunk = document.chunks.get(position=position)

    client.post(reverse("admin:kb_chunk_merge", args=[chunk.pk]), {"with": side})

    assert [each.text for each in document.chunks.all()] == ["违约金过高的，可以请求减少。\n诉讼时效期间为三年。"]


def test_a_chunk_is_split_where_a_box_is_ticked(client, kb):
    document = make_document(kb, "第一句。第二句。第三句。")
    chunk = document.chunks.get()
    url = reverse("admin:kb_chunk_split", args=[chunk.pk])
    boxes = client.get(url).context["pieces"]

    client.post(url, {"at": [boxes[2]["start"]], "hash": chunk.content_hash})

    assert [each.text for each in document.chunks.order_by("position")] == ["第一句。第二句。", "第三句。"]


@pytest.mark.parametrize(("at", "key", "told"), [([], None, "Choose at least one"), ([4], "old", "changed meanwhile")])
def test_what_cannot_be_split_is_said(client, kb, at, key, told):
    chunk = make_document(kb, "第一句。第二句。").chunks.get()

    page = client.post(reverse("admin:kb_chunk_split", args=[chunk.pk]), {"at": at, "hash": key or chunk.content_hash})

    assert told in page.content.decode()
    assert chunk.document.chunks.count() == 1


@pytest.mark.parametrize(("action", "left"), [("disable", (2, 1)), ("delete", (1, 1))])
def test_near_duplicates_are_listed_and_dealt_with(client, kb, action, left):
    document = make_document(kb, "违约金过高的，可以请求减少。", "违约金过高的，可以请求减少。")
    url = reverse("admin:kb_chunk_duplicates") + f"?kb={kb.pk}"
    [group] = client.get(url).context["groups"]

    client.post(url, {"action": action, "chunk": [other["chunk"].pk for other in group["others"]]})

    assert (document.chunks.count(), document.chunks.filter(enabled=True).count()) == left
    assert client.get(url).context["groups"] == []


def test_words_that_differ_are_marked():
    assert marked("甲乙丙", "甲丁丙") == [(False, "甲"), (True, "丁"), (False, "丙"), (False, "")]


@pytest.mark.parametrize(("query", "found"), [("changed=text", 1), ("changed=cut", 0), ("questions=no", 2)])
def test_chunks_are_filtered_by_what_was_done_to_them(client, document, query, found):
    save(client, document.chunks.first(), text="改了。")

    page = client.get(reverse("admin:kb_chunk_changelist") + f"?{query}")

    assert page.context["cl"].result_count == found
