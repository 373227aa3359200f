import pytest

from kb.ingest.services.chunks import chunk_update
from kb.models import Chunk
from kb.search.admin.labels import stage_label
from tests.kb.quality.debug.admin.debug_page import Page, words

pytestmark = pytest.mark.django_db

QUERY = "When does my ticket expire?"


@pytest.fixture
def asked(handbook):
    """A chunk that shares no word with the query, and has it as one of its questions."""
    chunk = Chunk.objects.select_related("document", "knowledge_base").get(document__title="Hotels")
    chunk_update(chunk, text=chunk.text, enabled=True, questions=["when does my TICKET expire"])
    return chunk


def test_the_page_says_that_the_query_equals_a_question(open_debug, handbook, asked):
    page = Page(open_debug(kb=handbook.pk, q=QUERY))

    said = page.one(f"//*[@data-chunk-id='{asked.pk}']//*[@data-testid='equal-question']")

    assert "equals a question of this chunk, “when does my TICKET expire”" in words(said)
    assert page.column("rank")[asked.pk] == "1"
    assert page.column("question_bm25-rank")[asked.pk] == "1"
    assert len(page.tree.xpath("//*[@data-testid='equal-question']")) == 1


def test_of_another_query_it_says_nothing(open_debug, handbook, asked):
    page = Page(open_debug(kb=handbook.pk, q="When does my flight leave?"))
    assert not page.has("equal-question")


def test_the_channel_has_a_name_of_its_own():
    assert stage_label("question_bm25") not in {"question_bm25", stage_label("question"), stage_label("bm25")}
