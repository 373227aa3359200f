from dataclasses import replace

import pytest

from kb.models import Chunk, KnowledgeBase
from kb.search.admin.explain.rows import keyword_scores
from tests.factories import make_document, make_kb
from tests.kb.quality.debug.admin.debug_page import Page, cell, outcome_of, words

pytestmark = pytest.mark.django_db


def additions(page):
    """The rows of each score's table by chunk: term, idf, frequency, what it adds."""
    return {
        int(row.get("data-chunk-id")): [
            [words(each) for each in line.xpath("./*")[:4]]
            for line in row.xpath(".//*[@data-testid='keyword-score']//tbody/tr")
        ]
        for row in page.rows()
    }


def test_what_the_terms_add_is_the_score_that_the_channel_found(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="employees rebook flight 差旅报销"))

    for row in page.rows():
        lines = additions(page)[int(row.get("data-chunk-id"))]
        score = cell(row, "bm25-score")
        if score == "–":
            assert lines == []
        else:
            assert sum(float(adds) for *_rest, adds in lines) == pytest.approx(float(score), abs=3e-4)


def test_each_term_tells_idf_how_often_the_chunk_holds_it_and_what_it_adds(open_debug, curator):
    kb = make_kb(curator)
    make_document(kb, "refund refund office", "office", "hotel", "train")

    lines = additions(Page(open_debug(kb=kb.pk, q="refund refund office zebra")))[
        Chunk.objects.get(text__contains="refund").pk
    ]

    assert [(term, frequency) for term, _idf, frequency, _adds in lines] == [
        ("refund 2 times in the query", "2"),
        ("offic", "1"),
    ]
    assert float(lines[0][3]) > float(lines[1][3]) > 0


def test_a_chunk_that_a_sub_query_found_has_the_score_of_that_query(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="Who rebooks a flight? Which hotels does the office book?"))

    hotels = Chunk.objects.get(text__startswith="Hotels")
    row = page.one(f"//tr[@data-chunk-id='{hotels.pk}']")
    total = sum(float(adds) for *_rest, adds in additions(page)[hotels.pk])
    assert total == pytest.approx(float(cell(row, "bm25-score")), abs=3e-4)
    assert "for “Which hotels does the office book?”" in words(row)


def test_the_index_is_looked_into_once_for_all_candidates_of_a_knowledge_base(curator, flights):
    result = outcome_of(curator, flights, q="flight word")
    asked = []

    class Counting:
        def __getattr__(self, name):
            asked.append(name)
            return getattr(result.lexicons[flights.pk], name)

    scores = keyword_scores(replace(result, lexicons={flights.pk: Counting()}))

    assert len(scores) == len(result.candidates) == 30
    assert sorted(asked) == ["contributions", "frequencies", "idf"]


def test_without_an_answer_of_the_keyword_index_no_score_is_taken_apart(open_debug, handbook):
    KnowledgeBase.objects.filter(pk=handbook.pk).update(tokenizer_id="older")

    assert not Page(open_debug(kb=handbook.pk, q="flight")).has("keyword-score")
