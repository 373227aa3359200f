import pytest
from django.urls import reverse

from kb.models import Chunk
from kb.search.admin.explain.explanation import ORDER
from kb.search.admin.explain.rows import LABELS, SHOWN_AT
from retrieval.types import CutBy
from tests.factories import make_document, make_kb
from tests.kb.quality.debug.admin.debug_page import Page, cell, outcome_of, words

pytestmark = pytest.mark.django_db


# -- Candidates -----------------------------------------------------------------------------------------------------


def shown(value, decimals):
    return "–" if value is None else f"{value:.{decimals}f}"


def test_ranks_and_scores_are_those_of_the_search(open_debug, curator, handbook):
    result = outcome_of(curator, handbook, q="late flight 报销", score_threshold=0)

    page = Page(open_debug(kb=handbook.pk, q="late flight 报销", threshold=0))

    candidates = {candidate.chunk_id: candidate for candidate in result.candidates}
    assert list(page.column("rank")) == list(candidates)
    for stage, decimals in {"vector": 4, "bm25": 4, "characters": 4, "fused": 5, "rerank": 4, "order": 4}.items():
        scores = {pk: shown(c.scores.get(stage), decimals) for pk, c in candidates.items()}
        assert page.column(f"{stage}-score") == scores
        if stage != "order":
            ranks = {pk: str(c.ranks[stage]) if stage in c.ranks else "–" for pk, c in candidates.items()}
            assert page.column(f"{stage}-rank") == ranks
    assert [page.column("rank")[hit.passage.chunk_id] for hit in result.hits] == ["1", "2", "3"]
    assert page.text("result-count") == "3"


def test_the_order_is_told_apart_from_the_relevance_that_it_is_made_of(open_debug, curator, handbook):
    first = outcome_of(curator, handbook, q="late flight").candidates[0]

    row = Page(open_debug(kb=handbook.pk, q="late flight")).rows()[0]

    (order,) = row.xpath(".//td[.//*[@data-col='order-score']]/@title")
    own, agreement = first.scores["rerank"], first.agreement
    assert order == f"{first.scores['order']!r}: 0.5 × relevance {own:.4f} + 0.5 × agreement {agreement:.4f}"
    assert cell(row, "rerank-score") == f"{own:.4f}"
    assert not row.xpath(".//*[@data-col='order-rank']")


def test_a_channel_that_did_not_find_a_chunk_says_so(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight"))
    hotels = Chunk.objects.get(text__startswith="Hotels")

    (found,) = page.tree.xpath(f"//tr[@data-chunk-id='{hotels.pk}']//td[.//*[@data-col='bm25-rank']]")
    assert cell(found, "bm25-score") == "–"
    assert found.get("title") == "holds none of the query's terms"


@pytest.fixture
def shallow(curator, settings):
    """Vectors put the short texts first, keywords the ones with the rare word; each channel is read two ranks deep."""
    settings.RETRIEVAL = {**settings.RETRIEVAL, "vector_top_k": 1, "bm25_top_k": 1}
    kb = make_kb(curator)
    filler = " ".join(f"word{number}" for number in range(60))
    make_document(kb, *["flight"] * 6, *[f"zebra flight {filler} {number}" for number in range(3)])
    return kb


def test_a_chunk_beyond_the_depth_of_a_channel_says_how_deep_that_was(open_debug, shallow):
    page = Page(open_debug(kb=shallow.pk, q="flight zebra"))

    assert page.tree.xpath("//td[@title='not among the first 2 of this channel']")


def test_matched_terms_are_marked_in_both_languages(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="late flights, employee 报销标准"))

    english, chinese = Chunk.objects.filter(document__title="Travel").order_by("position")
    assert page.marks(english.pk) == ["Employees", "late", "flight"]
    assert page.marks(chinese.pk) == ["报销", "标准"]


def test_a_chunk_is_shown_as_text_and_never_as_markup(open_debug, curator):
    kb = make_kb(curator, "<i>base</i>")
    make_document(
        kb, "<script>alert('flight')</script> & <b>bold</b>", title="<img src=x onerror=alert(1)>", source="<u>.txt"
    )

    response = open_debug(kb=kb.pk, q="flight <script>alert(2)</script>")
    html, page = response.content.decode(), Page(response)

    (row,) = page.rows()
    assert not row.xpath(".//script | .//b[text()='bold'] | .//img | .//u")
    assert "<script>alert('flight')</script> & <b>bold</b>" in row.text_content()
    assert "<img src=x onerror=alert(1)>" in row.text_content()
    assert "<mark>flight</mark>" in html
    assert "<script>alert(" not in html
    assert "<i>base" not in html


def test_the_words_of_a_query_show_as_terms_with_the_word_they_came_from(open_debug, handbook):
    terms = Page(open_debug(kb=handbook.pk, q="running 报销标准 zebra")).tree.xpath("//*[@data-testid='terms']/li")

    shown_terms = [words(term) for term in terms]
    assert shown_terms == ["run ← running", "报销", "标准", "zebra (no candidate holds it)"]


def test_a_long_text_is_shortened_and_can_be_opened(open_debug, curator):
    kb = make_kb(curator)
    text = "Opening words. " + "filler " * 100 + "the flight " + "filler " * 100 + "the end"
    make_document(kb, text)

    (row,) = Page(open_debug(kb=kb.pk, q="flight")).rows()

    (summary,) = row.xpath(".//details[contains(@class,'sd-text')]/summary")
    assert "flight" in summary.text_content()
    assert "Opening words" not in summary.text_content()
    (whole,) = row.xpath(".//*[contains(@class,'sd-full')]")
    assert whole.text_content() == text


def test_a_row_leads_to_its_chunk_and_says_where_it_stands(open_debug, handbook):
    chunk = Chunk.objects.get(text__startswith="差旅")
    Chunk.objects.filter(pk=chunk.pk).update(page=3, heading_path=["Money", "Trips"])

    (row,) = Page(open_debug(kb=handbook.pk, q="报销", top_k=1)).tree.xpath(f"//tr[@data-chunk-id='{chunk.pk}']")

    assert row.xpath(f".//a[@href='{reverse('admin:kb_chunk_place', args=[chunk.pk])}']")
    assert "notes.txt · page 3 · chunk 2 · Money > Trips" in words(row)


def test_each_stage_shows_as_an_arrow_how_far_it_moved_a_candidate_from_the_stage_before_it(open_debug, curator):
    kb = make_kb(curator)
    make_document(kb, "refund refund refund refund", "a refund for a late flight is paid in the office within a week")

    page = Page(open_debug(kb=kb.pk, q="refund office", keyword_weight="0", vector_weight="1", threshold=0))

    for row in page.rows():
        ranks = {
            name: int(cell(row, name)) for name in ("vector-rank", "bm25-rank", "fused-rank", "rerank-rank", "rank")
        }
        best = min(ranks["vector-rank"], ranks["bm25-rank"])
        shown_moves = [
            int(row.xpath(f".//td[.//*[@data-col='{name}']]//@data-move")[0])
            for name in ("fused-rank", "rerank-rank", "rank")
        ]
        assert shown_moves == [
            best - ranks["fused-rank"],
            ranks["fused-rank"] - ranks["rerank-rank"],
            ranks["rerank-rank"] - ranks["rank"],
        ]


# -- What was cut ---------------------------------------------------------------------------------------------------


def stages(page):
    return {row.get("data-chunk-id"): row.get("data-cut") for row in page.rows()}


def test_cut_candidates_come_after_the_results_with_the_stage_that_cut_them(open_debug, flights):
    page = Page(open_debug(kb=flights.pk, q="flight"))

    assert list(stages(page).values()) == [""] * 5 + ["top_k"] * 20 + ["fusion"] * 5
    reasons = list(page.column("cut-by").values())
    assert reasons[0] == "–"
    assert reasons[5] == "Top K Rank 6: only the first 5 become results."
    assert reasons[-1] == "Fusion Fused rank 30: only the first 25 go on."
    assert list(page.column("rank").values()) == ["1", "2", "3", "4", "5"] + ["–"] * 25


def test_candidates_beyond_the_first_25_start_hidden(open_debug, flights):
    page = Page(open_debug(kb=flights.pk, q="flight"))

    hidden = [row for row in page.rows() if row.get("x-show")]
    assert len(hidden) == 5
    assert "Show 5 more candidates" in page.text("show-all")


def test_the_gate_names_score_and_threshold(open_debug, curator, handbook):
    page = Page(open_debug(kb=handbook.pk, q="late flight", threshold="0.9"))

    gated = {pk: reason for pk, reason in page.column("cut-by").items() if reason != "–"}
    scores = page.column("rerank-score")
    assert len(gated) == 3
    for pk, reason in gated.items():
        assert reason == f"Relevance threshold Score {scores[pk]} is below the threshold 0.9."


def test_near_misses_stand_in_a_section_of_their_own(open_debug, curator, handbook, cut_at):
    hits = outcome_of(curator, handbook, q="late flight 报销", score_threshold=0).hits
    first, second, _third = sorted(hits, key=lambda hit: -hit.score)
    cut_at((first.score + second.score) / 2)
    page = Page(open_debug(kb=handbook.pk, q="late flight 报销"))

    near = page.one("//tbody[@data-testid='near-misses']")
    assert "Not certain: below the threshold of this scale" in words(near)
    assert near.xpath(".//tr/@data-chunk-id")[0] == str(second.passage.chunk_id)
    assert near.xpath(".//a[@data-testid='why-not']")
    below = f"Score {second.score:.4f} is below the threshold"
    reason = page.column("cut-by")[second.passage.chunk_id]
    assert reason.startswith(f"Relevance threshold {below}")
    assert reason.endswith("given apart, as a near miss.")
    assert [words(each) for each in page.tree.xpath("//*[contains(@class,'sd-relevance')]")][:2] in (
        ["high relevance", "low relevance"],
        ["medium relevance", "low relevance"],
    )
    assert not page.has("no-results")


def test_with_near_misses_alone_the_page_leads_to_them(open_debug, handbook, cut_at):
    cut_at(0.98)
    page = Page(open_debug(kb=handbook.pk, q="late flight"))

    assert page.text("result-count") == "0"
    assert "Those that came closest stand below" in page.text("no-results")
    assert page.has("near-misses")
    assert not Page(open_debug(kb=handbook.pk, q="late flight", threshold="0.98")).has("near-misses")


def test_when_everything_is_cut_the_page_says_what_to_do(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight zebra", threshold="1"))

    best = max(float(score) for score in page.column("rerank-score").values())
    assert page.text("result-count") == "0"
    assert f"The best score is {best:.4f}, the threshold 1" in page.text("no-results")


def test_without_a_reranker_the_vector_ranking_is_the_result(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="late flight", rerank="off", threshold="0.05"))

    assert page.column("rank").keys() == page.column("vector-rank").keys()
    assert set(page.column("bm25-rank").values()) == {"–"}
    assert page.tree.xpath("//td[@title='the reranker is off']")
    assert "cosine" in page.text("scale")
    below = {pk for pk, score in page.column("vector-score").items() if float(score) < 0.05}
    assert {pk for pk, reason in page.column("cut-by").items() if reason.startswith("Relevance threshold")} == below


def test_an_exact_score_without_a_rank_says_where_it_is_from(open_debug, shallow):
    page = Page(open_debug(kb=shallow.pk, q="flight zebra", fusion="weighted"))

    notes = page.tree.xpath("//td[contains(@title,'scored exactly for the weighted sum')]")
    assert notes
    assert all(cell(note, f"{stage_of(note)}-score") != "–" for note in notes)


def stage_of(note):
    return note.xpath(".//@data-col")[0].removesuffix("-rank")


def test_neighbours_that_were_asked_for_can_be_opened(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="报销", top_k=1, neighbours=1))

    assert "1 neighbour in the document" in page.text("neighbours")
    assert "Employees running late" in page.text("neighbours")


def test_every_place_where_a_candidate_was_found_is_listed(open_debug, handbook):
    result = outcome_of(handbook.owner, handbook, q="flight")

    page = Page(open_debug(kb=handbook.pk, q="flight"))

    shown_places = [len(each.xpath(".//li")) for each in page.tree.xpath("//*[@data-testid='found-at']")]
    assert shown_places == [len(candidate.provenance) for candidate in result.candidates]


@pytest.mark.parametrize("reason", CutBy)
def test_every_reason_to_drop_a_candidate_has_a_label_and_a_stage_of_the_page(reason):
    assert LABELS[reason]
    assert SHOWN_AT.get(reason, reason) in ORDER
