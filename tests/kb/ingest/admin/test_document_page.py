"""The page of one document: its original beside its chunks, what is done with these in place, and another file for it."""

import pytest
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document, Membership
from tests.factories import make_document, make_kb, make_member
from tests.kb.ingest.parser.documents import make_pdf
from tests.kb.web.admin.pages import Page


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def add(kb, data, name):
    data = data.encode() if isinstance(data, str) else data
    document = document_add(knowledge_base=kb, file=ContentFile(data), name=name, user=kb.owner)
    index_document(document.pk)
    document.refresh_from_db()
    return document


@pytest.fixture
def manual(kb):
    return add(kb, make_pdf(["The pump stands in the hall."], ["The valve stands in the yard."]), "manual.pdf")


def url(name, row, query=""):
    return reverse(f"admin:kb_{name}", args=[row.pk]) + query


def opened(client, document, query=""):
    return Page(client.get(url("document_change", document, query)))


def original(client, document, query=""):
    response = client.get(url("document_original", document, query))
    assert response.status_code == 200
    return response.content.decode()


def texts(document):
    return list(Chunk.objects.filter(document=document).order_by("position").values_list("text", flat=True))


def work(client, chunk, **values):
    return client.post(url("chunk_work", chunk), values)


class TestPage:
    def test_it_shows_the_chunks_and_asks_for_the_original(self, client, manual):
        page = opened(client, manual)
        assert [each.get("data-chunk") for each in page.tree.find_class("kd-chunk")] == [
            str(chunk.pk) for chunk in manual.chunks.order_by("position")
        ]
        (pane,) = page.tree.xpath("//*[@id='kd-original']")
        assert pane.get("hx-get") == url("document_original", manual)
        (details,) = page.tree.xpath("//details[@id='details']")
        assert details.get("open") is None

    def test_metadata_are_blank_where_there_are_none(self, client, manual):
        def shown():
            return opened(client, manual).tree.xpath("string(//textarea[@name='metadata'])").strip()

        assert shown() == ""
        data = {"title": "x", "source_type": "book", "tags": "", "metadata": ""}
        assert client.post(url("document_change", manual), data).status_code == 302
        manual.refresh_from_db()
        assert manual.metadata == {}
        Document.objects.filter(pk=manual.pk).update(metadata={"year": 2024})
        assert "2024" in shown()

    def test_a_form_with_errors_is_open(self, client, manual):
        data = {"title": "x", "source_type": "book", "tags": "", "metadata": "[1]"}
        page = Page(client.post(url("document_change", manual), data))
        (details,) = page.tree.xpath("//details[@id='details']")
        assert details.get("open") is not None

    def test_a_failed_document_offers_another_file_first(self, client, kb):
        failed = add(kb, make_pdf(["x"])[:300], "broken.pdf")
        page = opened(client, failed)
        links = [each.get("href") for each in page.tree.xpath("//div[@class='kd-top']//a")]
        assert links[0] == url("document_replace", failed)
        assert "damaged" in page.tree.text_content()

    def test_a_link_to_a_chunk_opens_there(self, client, kb):
        document = make_document(kb, *[f"text {number}" for number in range(70)])
        chunk = document.chunks.get(position=65)
        response = client.get(url("chunk_place", chunk), follow=True)
        page = Page(response)
        assert response.redirect_chain[0][0] == url("document_change", document, f"?chunk={chunk.pk}")
        shown = [int(each.get("data-chunk")) for each in page.tree.find_class("kd-chunk")]
        assert shown == [each.pk for each in document.chunks.order_by("position")[60:]]
        (pane,) = page.tree.xpath("//*[@id='kd-original']")
        assert pane.get("hx-get").endswith(f"?chunk={chunk.pk}")

    def test_a_chunk_that_is_gone_is_said(self, client, document, kb):
        other = make_document(kb, "elsewhere").chunks.get()
        assert opened(client, document, f"?chunk={other.pk}").has("chunk-gone")
        assert opened(client, document, "?chunk=999999999").has("chunk-gone")

    def test_thousands_of_chunks_come_in_portions(self, client, kb):
        document = make_document(kb, *[f"text {number}" for number in range(70)])
        portion = client.get(url("document_chunks", document, "?from=30&side=after")).content.decode()
        assert portion.count("<article") == 30
        assert "from=60" in portion
        assert "side=before" not in portion

    def test_a_viewer_sees_and_cannot_change(self, client, kb, manual):
        viewer = make_member(kb)
        client.force_login(viewer)
        page = opened(client, manual)
        assert page.tree.find_class("kd-chunk")
        assert not page.tree.xpath("//*[@data-testid='edit']")
        assert not page.tree.xpath(f"//a[@href='{url('document_replace', manual)}']")
        chunk = manual.chunks.first()
        assert work(client, chunk, do="disable").status_code == 403
        assert client.get(url("document_replace", manual)).status_code == 403
        assert client.get(url("chunk_card", chunk)).status_code == 200

    @pytest.mark.parametrize("name", ["document_original", "document_page", "document_chunks", "document_replace"])
    def test_a_stranger_finds_nothing(self, client, foreign, name):
        assert client.get(url(name, foreign)).status_code == 404

    @pytest.mark.parametrize("name", ["chunk_place", "chunk_card", "chunk_work"])
    def test_a_stranger_finds_no_chunk(self, client, foreign, name):
        assert client.get(url(name, foreign.chunks.get())).status_code == 404


class TestOriginal:
    def test_pages_are_places_that_are_drawn_when_they_come_into_view(self, client, manual):
        page = original(client, manual)
        assert page.count('class="kd-page"') == 2
        assert "<img" not in page

    def test_of_many_pages_a_portion_is_listed_that_holds_the_chunk(self, client, kb):
        document = add(
            kb, make_pdf(*[[f"Page {number} speaks of pump {number}."] for number in range(1, 251)]), "a.pdf"
        )
        first = original(client, document)
        assert first.count('class="kd-page"') == 100
        assert "page=101" in first
        chunk = document.chunks.get(page=230)
        there = original(client, document, f"?chunk={chunk.pk}")
        assert 'data-page="230"' in there
        assert 'data-page="100"' not in there
        assert "page=101" in there

    def test_a_page_has_the_boxes_of_its_chunks(self, client, manual):
        page = client.get(url("document_page", manual, "?n=2")).content.decode()
        chunk = manual.chunks.get(page=2)
        assert f'src="/api/v1/documents/{manual.pk}/pages/2/?width=1280"' in page
        assert f'class="kd-place" data-chunk="{chunk.pk}"' in page
        assert f'data-chunk="{manual.chunks.get(page=1).pk}"' not in page

    def test_chunks_without_boxes_are_at_their_page(self, client, manual):
        Chunk.objects.filter(document=manual).update(regions=[])
        page = client.get(url("document_page", manual, "?n=1")).content.decode()
        assert "kd-place" not in page
        assert f'class="kd-mark" data-chunk="{manual.chunks.get(page=1).pk}"' in page

    def test_a_page_that_fails_says_so(self, client, manual):
        assert "there is no page 9" in client.get(url("document_page", manual, "?n=9")).content.decode()

    def test_a_file_that_cannot_be_read_says_so_and_can_be_had(self, client, kb):
        failed = add(kb, make_pdf(["x"])[:300], "broken.pdf")
        page = original(client, failed)
        assert "damaged" in page
        assert url("document_download", failed) in page

    def test_text_is_marked_with_its_chunks_and_holds_nothing_that_acts(self, client, kb):
        page = (
            "<html><body><h1>Rules</h1><p onclick='x()'>Leave takes five days & more. <a href='https://example.com/a?b=1&c=2'>form</a>"
            "<a href='javascript:alert(1)'>bad</a><script>alert(1)</script><img src='http://evil.example/t.gif' alt='\"><b>chart'></p></body></html>"
        )
        document = add(kb, page, "rules.html")
        shown = original(client, document)
        chunk = document.chunks.get()
        assert f'data-chunks="{chunk.pk}"' in shown
        assert f'class="kd-mark" data-chunk="{chunk.pk}"' in shown
        assert (
            '<a href="https://example.com/a?b=1&amp;c=2" rel="noopener nofollow noreferrer" target="_blank">' in shown
        )
        assert "Leave takes five days &amp; more." in shown
        assert "&quot;&gt;&lt;b&gt;chart" in shown
        for never in ("<script", "javascript:", "evil.example", "<img", "onclick"):
            assert never not in shown

    def test_a_sheet_is_a_table_whose_rows_lead_to_chunks(self, client, kb):
        document = add(kb, "Model,Price\n<b>A</b>,10\nB,20\n", "a.csv")
        shown = original(client, document)
        assert '<th scope="col">Model</th>' in shown
        assert "&lt;b&gt;A&lt;/b&gt;" in shown
        assert shown.count("<tr data-chunks=") == 2

    def test_times_and_parts(self, client, kb):
        spoken = add(kb, "1\n00:01:05,000 --> 00:01:07,000\nHello there.\n", "a.srt")
        assert '<span class="kd-time">1:05</span>' in original(client, spoken)
        long = add(kb, "\n\n".join(f"Paragraph {number} speaks of oil." * 40 for number in range(60)), "a.txt")
        first = original(client, long)
        assert "part=1&amp;side=after" in first
        assert "?part=" not in original(client, long, "?part=0&side=before")

    def test_a_document_without_a_file_says_so(self, client, document):
        assert "no-original" in original(client, document)


class TestChunks:
    def test_a_text_is_edited_in_its_place(self, client, manual):
        chunk = manual.chunks.get(position=0)
        form = client.get(url("chunk_work", chunk, "?form=edit")).content.decode()
        assert 'name="text"' in form
        card = work(client, chunk, do="edit", text="The pump stands\r\noutside.", hash=chunk.content_hash)
        assert "Saved." in card.content.decode()
        assert texts(manual)[0] == "The pump stands\noutside."

    def test_an_edit_of_what_another_has_changed_is_kept_in_the_form(self, client, manual):
        chunk = manual.chunks.get(position=0)
        work(client, chunk, do="edit", text="First.", hash=chunk.content_hash)
        card = work(client, chunk, do="edit", text="Second.", hash=chunk.content_hash).content.decode()
        assert "Somebody has changed" in card
        assert "Second.</textarea>" in card
        assert texts(manual)[0] == "First."

    def test_an_empty_text_is_refused_in_its_place(self, client, manual):
        chunk = manual.chunks.get(position=0)
        card = work(client, chunk, do="edit", text=" ", hash=chunk.content_hash).content.decode()
        assert "A chunk needs text" in card
        assert 'role="alert"' in card

    def test_questions_are_added_to_those_it_has(self, client, manual):
        chunk = manual.chunks.get(position=0)
        work(client, chunk, do="question", question="Where is the pump?")
        card = work(client, chunk, do="question", question="Which hall?\r\n\r\nIs it inside?").content.decode()
        chunk.refresh_from_db()
        assert chunk.questions == ["Where is the pump?", "Which hall?", "Is it inside?"]
        assert "Is it inside?" in card

    def test_it_is_switched_off_and_on(self, client, manual):
        chunk = manual.chunks.get(position=0)
        assert "No search finds it now." in work(client, chunk, do="disable").content.decode()
        assert not Chunk.objects.get(pk=chunk.pk).enabled
        work(client, chunk, do="enable")
        assert Chunk.objects.get(pk=chunk.pk).enabled

    def test_splitting_and_merging_show_all_cards_again(self, client, kb):
        document = make_document(kb, "One sentence. Another one.", "The end.")
        chunk = document.chunks.get(position=0)
        answer = work(client, chunk, do="split", at=["14"], hash=chunk.content_hash)
        assert texts(document) == ["One sentence.", "Another one.", "The end."]
        assert (answer["HX-Retarget"], answer["HX-Trigger"]) == ("#kd-chunks", "zhiku:renumbered")
        assert answer.content.decode().count("<article") == 3
        work(client, Chunk.objects.get(pk=chunk.pk), do="merge")
        assert texts(document) == ["One sentence.\nAnother one.", "The end."]

    def test_the_last_one_has_no_next_to_merge_with_and_a_split_needs_a_place(self, client, kb):
        document = make_document(kb, "One sentence. Another one.")
        chunk = document.chunks.get()
        assert "Choose from 2" in work(client, chunk, do="merge").content.decode()
        assert "Choose at least one place" in work(client, chunk, do="split", hash=chunk.content_hash).content.decode()
        assert "Somebody has changed" in work(client, chunk, do="split", at=["14"], hash="x").content.decode()
        assert texts(document) == ["One sentence. Another one."]

    def test_the_page_of_a_chunk_leads_to_its_place(self, client, document):
        chunk = document.chunks.first()
        assert url("chunk_place", chunk) in client.get(url("chunk_change", chunk)).content.decode()


class TestReplace:
    def replace(self, client, document, name, data):
        return client.post(url("document_replace", document), {"file": SimpleUploadedFile(name, data)})

    def test_a_broken_file_is_replaced_and_read(self, client, kb):
        failed = add(kb, make_pdf(["x"])[:300], "broken.pdf")
        page = Page(client.get(url("document_replace", failed)))
        assert "damaged" in page.text("failure")
        assert self.replace(client, failed, "better.txt", b"The pump stands in the hall.").status_code == 302
        failed.refresh_from_db()
        assert (failed.status, failed.source, failed.error_code) == ("pending", "better.txt", "")
        index_document(failed.pk)
        assert texts(failed) == ["The pump stands in the hall."]

    @pytest.mark.parametrize(
        ("name", "data", "words"),
        [
            ("a.exe", b"words", "is a program"),
            ("a.zip", b"PK\x05\x06" + bytes(18), "An archive is many documents"),
            ("same.txt", b"Known words.", "is in this knowledge base already"),
        ],
    )
    def test_a_refused_file_says_why_and_changes_nothing(self, client, kb, manual, name, data, words):
        add(kb, "Known words.", "known.txt")
        page = self.replace(client, manual, name, data)
        assert page.status_code == 200
        assert words in page.content.decode()
        manual.refresh_from_db()
        assert (manual.source, manual.status) == ("manual.pdf", "ready")

    def test_no_file_is_said(self, client, manual):
        assert "Choose a file." in client.post(url("document_replace", manual)).content.decode()

    def test_an_editor_may_and_a_viewer_may_not(self, client, kb, manual):
        client.force_login(make_member(kb))
        assert self.replace(client, manual, "a.txt", b"x y z").status_code == 403
        client.force_login(make_member(kb, Membership.Role.EDITOR))
        assert self.replace(client, manual, "a.txt", b"x y z").status_code == 302


def test_a_document_of_another_base_has_no_page(client, curator):
    hidden = make_document(make_kb(), "text")
    assert client.get(url("document_change", hidden)).status_code == 404
