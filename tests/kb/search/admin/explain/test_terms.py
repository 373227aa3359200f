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


# -- Characters ------------------------------------------------------------------------------------------------------
@pytest.fixture
def manuals(curator):
    kb = make_kb(curator)
    make_document(kb, "保修期限为两年，保修不含电池。", title="保修")
    make_document(kb, "电池的使用期限为一年。", title="电池")
    make_document(kb, "安装前请先断电。", title="安装")
    return kb


def added(row):
    """What each pair and character adds to the score of a row."""
    chips = row.xpath(".//*[@data-testid='character-score']//*[@data-code]")
    return {chip.get("data-code"): float(chip.xpath("./small")[0].text_content()) for chip in chips}


def total(row):
    return float(cell(row, "characters-score"))


def words_add(row):
    (shown,) = row.xpath(".//*[@data-testid='words-add']")
    return float(words(shown))


@pytest.mark.parametrize("query", ["保修期限多久", "保修期限多久？电池能用几年？"])
def test_what_words_pairs_and_characters_add_is_the_score_by_characters(open_debug, manuals, query):
    page = Page(open_debug(kb=manuals.pk, q=query))

    (warranty,) = page.tree.xpath("//tr[.//*[@data-testid='character-score'] and contains(.,'不含电池')]")
    assert {"保修", "期限", "保", "期"} <= added(warranty).keys()
    for row in page.rows():
        if row.xpath(".//*[@data-testid='character-score']"):
            assert words_add(row) + sum(added(row).values()) == pytest.approx(total(row), abs=2e-3)
        else:
            assert cell(row, "characters-score") == "–"


def test_the_words_in_the_score_by_characters_are_those_of_bm25(open_debug, manuals):
    row = Page(open_debug(kb=manuals.pk, q="保修期限多久")).rows()[0]

    assert words_add(row) == pytest.approx(float(cell(row, "bm25-score")), abs=2e-4)
    assert words_add(row) > 0


def test_pairs_that_a_chunk_lacks_are_named(open_debug, manuals):
    row = Page(open_debug(kb=manuals.pk, q="保修期限 退货")).rows()[0]

    missing = row.xpath(".//*[@data-testid='character-score']//*[contains(@class,'missing')]/text()")
    assert "退货" in missing
    assert not added(row).keys() & set(missing)


def test_a_query_without_such_characters_has_no_column_for_them(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="late flight"))

    assert not page.tree.xpath("//*[@data-col='characters-score']")
    assert not page.has("character-score")
