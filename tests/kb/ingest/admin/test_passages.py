"""A passage in its document: on its pages, or in the text around it."""

import lxml.html
import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.urls import reverse

from kb.ingest.services.chunks import chunk_update
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk
from tests.factories import make_document, make_member
from tests.kb.ingest.parser.documents import make_pdf
from tests.kb.web.admin.pages import words

pytestmark = pytest.mark.django_db


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


@pytest.fixture
def rules(kb):
    sections = (f"## Rule {number}\n\nRule {number} is **kept** by all." for number in range(200))
    return add(kb, "# Rules\n\n" + "\n\n".join(sections), "rules.md")


def of_document(document, text):
    return document.chunks.get(text__contains=text)


def url(name, chunk, query=""):
    return reverse(f"admin:kb_chunk_{name}", args=[chunk.pk]) + query


def shown(client, address):
    response = client.get(address)
    assert response.status_code == 200
    return lxml.html.fragment_fromstring(response.content.decode(), create_parent="div")


def marked(tree):
    return " ".join(words(each) for each in tree.xpath(".//mark | .//*[@data-chunks]"))


class TestWhole:
    def test_a_passage_is_marked_between_its_neighbours(self, client, kb):
        document = make_document(kb, *(f"Passage {number} says something." for number in range(6)), title="Handbook")
        chunk = document.chunks.get(position=3)
        Chunk.objects.filter(pk=chunk.pk).update(heading_path=["Travel", "Hotels"], page=12)

        tree = shown(client, url("passage", chunk))

        assert marked(tree) == "Passage 3 says something."
        before, after = (words(each) for each in tree.find_class("kp-around"))
        assert before == "Passage 1 says something. Passage 2 says something."
        assert after == "Passage 4 says something. Passage 5 says something."
        assert words(tree.find_class("kp-place")[0]) == "Handbook › Travel › Hotels page 12"
        assert tree.xpath(".//*[@data-testid='open-document']/@href") == [url("place", chunk)]

    def test_what_neighbours_have_in_common_stands_there_once(self, client, kb):
        common = "the end of the one is the beginning of the other"
        document = make_document(kb, f"First, {common}", f"{common}, and so on, {common}", f"{common}, last.")

        tree = shown(client, url("passage", document.chunks.get(position=1)))

        assert [words(each) for each in tree.find_class("kp-around")] == ["First,", ", last."]

    def test_only_a_document_with_pages_has_a_side_with_them(self, client, manual, rules):
        chunk = of_document(manual, "valve")
        tree = shown(client, url("passage", chunk))
        assert tree.xpath(".//section/@hx-get") == [url("passage_page", chunk, "?n=2")]
        assert not tree.xpath(".//*[@data-passage-text]/@hx-get")

        chunk = of_document(rules, "Rule 120 is")
        tree = shown(client, url("passage", chunk))
        assert not tree.xpath(".//section | .//button")
        assert tree.xpath(".//*[@data-passage-text]/@hx-get") == [url("passage_text", chunk)]

    def test_an_edited_chunk_is_shown_as_searches_have_it(self, client, rules):
        chunk = of_document(rules, "Rule 120 is")
        chunk_update(chunk, text="Rule 120 is gone.", enabled=True)
        tree = shown(client, url("passage", chunk))
        assert marked(tree) == "Rule 120 is gone."
        assert not tree.xpath(".//*[@data-passage-text]/@hx-get")

    def test_markup_in_a_document_is_text(self, client, kb):
        document = make_document(kb, "<script>alert(1)</script> text", "<img src=x onerror=y>", title="<b>x</b>")
        assert not shown(client, url("passage", document.chunks.first())).xpath(".//script | .//img | .//b")


class TestPage:
    def test_nothing_is_marked_but_the_passage(self, client, manual):
        chunk = of_document(manual, "valve")
        tree = shown(client, url("passage_page", chunk, "?n=2"))
        [image] = tree.xpath(".//img")
        assert image.get("src") == f"/api/v1/documents/{manual.pk}/pages/2/?width=1280"
        assert client.get(image.get("src")).headers["Content-Type"] == "image/webp"
        [box] = tree.find_class("kd-place")
        [region] = chunk.regions
        assert f"left:{100 * region['box'][0]:.2f}%" in box.get("style")
        assert not tree.xpath(".//button")

    def test_a_page_without_a_box_says_so(self, client, manual):
        chunk = of_document(manual, "valve")
        Chunk.objects.filter(pk=chunk.pk).update(regions=[])
        tree = shown(client, url("passage_page", chunk, "?n=2"))
        assert tree.xpath(".//img")
        assert tree.xpath(".//*[@data-testid='unplaced']")

    def test_a_page_that_cannot_be_drawn_says_why(self, client, manual):
        chunk = of_document(manual, "valve")
        default_storage.delete(manual.file.name)
        default_storage.save(manual.file.name, ContentFile(b"%PDF-1.7\nbroken"))
        tree = shown(client, url("passage_page", chunk, "?n=2"))
        assert words(tree.xpath(".//*[@data-testid='page-problem']")[0]).startswith("Page 2: ")
        assert not tree.xpath(".//img")


class TestText:
    def test_it_is_that_of_the_file_with_the_passage_marked(self, client, rules):
        chunk = of_document(rules, "Rule 120 is")
        tree = shown(client, url("passage_text", chunk))
        assert "".join(marked(tree).split()) == "".join(chunk.text.replace("*", "").replace("#", "").split())
        text = words(tree)
        said = [number for number in (20, 119, 121, 190) if f"Rule {number} is kept" in text]
        assert said == [119, 121]
        assert tree.xpath(".//strong")
        assert not tree.xpath(".//button")

    def test_a_row_far_down_a_table_has_its_header_above(self, client, kb):
        table = "name,price\n" + "\n".join(f"model {number},{number}" for number in range(2_000))
        document = add(kb, table, "prices.csv")
        chunk = of_document(document, "model 1500")
        tree = shown(client, url("passage_text", chunk))
        assert [words(each) for each in tree.xpath(".//th")] == ["name", "price"]
        assert "model 1500" in marked(tree)
        assert "model 20 " not in words(tree)

    def test_of_a_file_that_is_gone_the_chunks_text_stays(self, client, rules):
        chunk = of_document(rules, "Rule 120 is")
        default_storage.delete(rules.file.name)
        tree = shown(client, url("passage_text", chunk))
        assert tree.xpath(".//*[@data-testid='original-problem']")
        assert "Rule 120 is" in marked(tree)

    def test_a_document_without_a_file_has_its_chunks(self, client, kb):
        chunk = make_document(kb, "Only this.").chunks.get()
        assert marked(shown(client, url("passage_text", chunk))) == "Only this."


@pytest.mark.parametrize("name", ["passage", "passage_page", "passage_text"])
def test_a_reader_sees_it_and_a_stranger_does_not(client, kb, document, foreign, name):
    client.force_login(make_member(kb))
    assert client.get(url(name, document.chunks.first())).status_code == 200
    assert client.get(url(name, foreign.chunks.first())).status_code == 404
