import json
import sys
from collections import defaultdict
from urllib.parse import urlencode

import lxml.html
import pytest
from django.test import Client
from django.urls import reverse
from django.utils.translation import override

from kb import conf
from kb.admin.explain_stages import degradation_heading, index_notes, stage_times, tier_in_words
from kb.admin.search_debug import SearchForm
from kb.models import BM25Index, Chunk, KnowledgeBase, RetrievalProfile, SearchLog
from kb.services.search import SearchRequest, search
from kb.services.tokenizing import read_settings, tokenizer_change
from kb.stores.bm25 import BM25Store
from retrieval.errors import InvalidConfiguration
from retrieval.trace import DegradationCode
from tests.factories import make_document, make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def curator():
    return make_user()


@pytest.fixture
def kb(curator):
    kb = make_kb(curator, "Handbook")
    make_document(kb, "Employees running late may rebook their flight.", "差旅报销标准由财务部公布。", title="Travel")
    make_document(kb, "Hotels are booked by the office.", title="Hotels", source="hotels.pdf")
    return kb


@pytest.fixture
def open_page(client, curator):
    client.force_login(curator)

    def get(*, language="en", **parameters):
        parameters = {name: value for name, value in parameters.items() if value is not None}
        url = f"{reverse('admin:search_debug')}?{urlencode(parameters, doseq=True)}"
        return client.get(url, headers={"accept-language": language})

    return get


class Page:
    """What a reader finds on the page."""

    def __init__(self, response):
        self.status = response.status_code
        self.tree = lxml.html.fromstring(response.content.decode())

    def one(self, xpath):
        (found,) = self.tree.xpath(xpath)
        return found

    def has(self, testid):
        return bool(self.tree.xpath(f"//*[@data-testid='{testid}']"))

    def text(self, testid):
        return words(self.one(f"//*[@data-testid='{testid}']"))

    def rows(self):
        return self.tree.xpath("//*[@data-testid='candidates']//tr[@data-chunk-id]")

    def column(self, name):
        return {int(row.get("data-chunk-id")): cell(row, name) for row in self.rows()}

    def marks(self, chunk_id):
        return self.tree.xpath(f"//tr[@data-chunk-id='{chunk_id}']//*[contains(@class,'sd-text')]//mark/text()")

    def value(self, field):
        return self.one(f"//*[@id='id_{field}']").get("value")

    def placeholder(self, field):
        return self.one(f"//*[@id='id_{field}']").get("placeholder")

    def errors(self):
        return [words(each) for each in self.tree.xpath("//*[contains(@class,'sd-error')]")]


def cell(row, name):
    (found,) = row.xpath(f".//*[@data-col='{name}']")
    return words(found)


def words(element):
    """Its text, with a space between what stands in different elements."""
    return " ".join(" ".join(element.itertext()).split())


# -- Who may open it, and what --------------------------------------------------------------------------------------


def test_a_visitor_is_sent_to_the_login():
    response = Client().get(reverse("admin:search_debug"))

    assert response.status_code == 302
    assert response.url.startswith(reverse("admin:login"))


def test_a_user_who_is_not_staff_is_sent_to_the_login(client):
    client.force_login(make_user(staff=False))

    assert client.get(reverse("admin:search_debug")).status_code == 302


def test_the_address_is_short_and_stable():
    assert reverse("admin:search_debug") == "/admin/search-debug/"


@pytest.mark.parametrize("ids", [["other"], ["own", "other"]])
def test_another_users_knowledge_base_does_not_exist(open_page, kb, ids):
    other = make_kb(name="Secret")
    named = {"own": kb.pk, "other": other.pk}

    assert open_page(kb=[named[each] for each in ids], q="flight").status_code == 404
    assert open_page(kb=[named[each] for each in ids]).status_code == 404


@pytest.mark.parametrize("kb_id", ["999999", "99999999999999999999999", "abc", "-1", "", " 1"])
def test_an_id_of_no_knowledge_base_is_not_found(open_page, kb, kb_id):
    assert open_page(kb=kb_id, q="flight").status_code == 404


def test_another_users_knowledge_base_is_not_listed(open_page, kb):
    make_kb(name="Secret")

    response = open_page()

    assert "Handbook" in response.content.decode()
    assert "Secret" not in response.content.decode()


def test_a_member_searches_a_shared_knowledge_base(client, kb):
    client.force_login(make_member(kb))

    page = Page(client.get(reverse("admin:search_debug"), {"kb": kb.pk, "q": "flight"}))

    assert page.status == 200
    assert page.rows()


# -- Without a search -----------------------------------------------------------------------------------------------


def test_without_a_knowledge_base_the_page_leads_to_a_new_one(open_page):
    page = Page(open_page())

    assert page.has("no-bases")
    assert page.tree.xpath(f"//a[@href='{reverse('admin:kb_knowledgebase_add')}']")
    assert not page.tree.xpath("//form[@role='search']")


def test_without_a_query_the_page_explains_itself_with_an_example_that_finds_something(client, open_page, kb):
    page = Page(open_page())
    example = page.one("//a[contains(@class,'sd-example')]")

    assert page.has("no-query")
    assert not page.has("candidates")
    found = Page(client.get(reverse("admin:search_debug") + example.get("href")))
    assert int(found.text("result-count")) > 0
    assert found.value("q") == example.text_content()


def test_the_only_knowledge_base_is_chosen_at_first(open_page, kb):
    assert Page(open_page()).one("//input[@name='kb']").get("checked") is not None


def test_of_several_knowledge_bases_none_is_chosen_at_first(open_page, curator, kb):
    make_kb(curator)

    assert not Page(open_page()).tree.xpath("//input[@name='kb'][@checked]")


def test_a_knowledge_base_without_chunks_is_named_with_a_way_to_fill_it(open_page, curator):
    empty = make_kb(curator, "New base")

    page = Page(open_page(kb=empty.pk, q="flight"))

    assert "New base" in page.text("empty-base")
    assert page.tree.xpath(
        f"//*[@data-testid='empty-base']//a[@href='{reverse('admin:kb_document_upload')}?kb={empty.pk}']"
    )
    assert page.text("result-count") == "0"
    assert page.has("no-results")


def test_nothing_is_searched_or_logged_without_a_query(open_page, kb):
    open_page(kb=kb.pk, q="   ")

    assert not SearchLog.objects.exists()


# -- The form -------------------------------------------------------------------------------------------------------

GIVEN = {
    "q": "报销 <flight>",
    "top_k": "7",
    "vector_weight": "0.25",
    "keyword_weight": "0.75",
    "threshold": "0.125",
}


def test_the_form_is_filled_from_the_url(open_page, kb):
    page = Page(open_page(kb=kb.pk, rerank="off", profile="default", **GIVEN))

    assert page.status == 200
    assert {name: page.value(name) for name in GIVEN} == GIVEN
    assert page.one("//select[@id='id_rerank']/option[@selected]").get("value") == "off"
    assert page.one("//select[@id='id_profile']/option[@selected]").get("value") == "default"
    assert page.one("//input[@name='kb'][@checked]").get("value") == str(kb.pk)


def test_the_settings_of_the_url_reach_the_search(open_page, kb):
    open_page(kb=kb.pk, rerank="off", profile="default", **GIVEN)

    log = SearchLog.objects.get()
    wanted = {"top_k": 7, "vector_weight": 0.25, "keyword_weight": 0.75, "score_threshold": 0.125, "use_rerank": False}
    assert log.configuration.items() >= wanted.items()
    assert (log.profile, log.profile_version) == ("default", 1)
    assert log.query == "报销 <flight>"


def test_empty_settings_show_what_they_inherit(open_page, kb):
    page = Page(open_page(kb=kb.pk))

    shown = [page.placeholder(name) for name in ("top_k", "vector_weight", "keyword_weight")]
    assert shown == ["5", "0.1", "0.9"]
    assert "keyword-led v1: 0.1 / 0.9" in page.one("//select[@id='id_profile']/option[@value='']").text


def test_where_knowledge_bases_differ_both_inherited_values_show(open_page, curator, kb):
    other = make_kb(curator)
    KnowledgeBase.objects.filter(pk=other.pk).update(profile=RetrievalProfile.objects.get(name="default"))

    assert Page(open_page(kb=[kb.pk, other.pk])).placeholder("vector_weight") == "0.1 | 0.6"
    assert Page(open_page(kb=other.pk)).placeholder("vector_weight") == "0.6"


def test_a_chosen_profile_is_what_empty_settings_inherit(open_page, kb):
    assert Page(open_page(kb=kb.pk, profile="default")).placeholder("keyword_weight") == "0.4"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", "abc"),
        ("top_k", "0"),
        ("top_k", "201"),
        ("vector_weight", "-1"),
        ("keyword_weight", "nan"),
        ("keyword_weight", "1e9"),
        ("threshold", "1.5"),
        ("threshold", "inf"),
    ],
)
def test_a_bad_number_is_named_at_its_field_and_nothing_is_lost_or_searched(open_page, kb, field, value):
    page = Page(open_page(kb=kb.pk, q="flight", **{field: value}))

    assert page.status == 400
    assert len(page.errors()) == 1
    assert page.tree.xpath(f"//*[@id='id_{field}_error']")
    assert page.value(field) == value
    assert page.value("q") == "flight"
    assert not page.has("candidates")
    assert not SearchLog.objects.exists()


@pytest.mark.parametrize(("field", "value"), [("rerank", "perhaps"), ("profile", "no-such-profile")])
def test_an_unknown_choice_is_named_at_its_field(open_page, kb, field, value):
    page = Page(open_page(kb=kb.pk, q="flight", **{field: value}))

    assert page.status == 400
    assert page.tree.xpath(f"//*[@id='id_{field}_error']")


def test_weights_that_are_both_nothing_are_refused_at_the_field(open_page, kb):
    page = Page(open_page(kb=kb.pk, q="flight", vector_weight="0", keyword_weight="0"))

    assert page.status == 400
    assert page.errors() == ["Both weights are 0: give at least one channel a weight."]


def test_an_error_of_a_setting_that_the_form_does_not_have_shows_above_it(kb):
    form = SearchForm({"q": "flight", "kb": [str(kb.pk)]}, [kb], [], defaultdict(str))

    form.reject(InvalidConfiguration("rrf_k", "rrf_k is 0: give a number from 1 to 10000"))

    assert form.non_field_errors() == ["rrf_k is 0: give a number from 1 to 10000"]


def test_a_query_needs_a_knowledge_base(open_page, curator, kb):
    make_kb(curator)

    page = Page(open_page(q="flight"))

    assert page.errors() == ["Choose at least one knowledge base."]
    assert page.value("q") == "flight"


# -- Candidates -----------------------------------------------------------------------------------------------------


def outcome_of(curator, *kbs, q, **overrides):
    request = SearchRequest(query=q, knowledge_base_ids=[kb.pk for kb in kbs], overrides=overrides, explain=True)
    return search(principal(curator), request).result


def shown(value, decimals):
    return "–" if value is None else f"{value:.{decimals}f}"


def test_ranks_and_scores_are_those_of_the_search(open_page, curator, kb):
    result = outcome_of(curator, kb, q="late flight 报销")

    page = Page(open_page(kb=kb.pk, q="late flight 报销"))

    candidates = {candidate.chunk_id: candidate for candidate in result.candidates}
    assert list(page.column("rank")) == list(candidates)
    for stage, decimals in {"vector": 4, "bm25": 4, "fused": 5, "rerank": 4}.items():
        ranks = {pk: str(c.ranks[stage]) if stage in c.ranks else "–" for pk, c in candidates.items()}
        scores = {pk: shown(c.scores.get(stage), decimals) for pk, c in candidates.items()}
        assert page.column(f"{stage}-rank") == ranks
        assert page.column(f"{stage}-score") == scores
    assert [page.column("rank")[hit.passage.chunk_id] for hit in result.hits] == ["1", "2", "3"]
    assert page.text("result-count") == "3"


def test_a_channel_that_did_not_find_a_chunk_says_so(open_page, kb):
    page = Page(open_page(kb=kb.pk, q="flight"))
    hotels = Chunk.objects.get(text__startswith="Hotels")

    (found,) = page.tree.xpath(f"//tr[@data-chunk-id='{hotels.pk}']//td[.//*[@data-col='bm25-rank']]")
    assert cell(found, "bm25-score") == "–"
    assert found.get("title") == "holds none of the query's terms"


def test_a_chunk_beyond_the_depth_of_a_channel_says_how_deep_that_was(open_page, curator, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "candidate_floor": 3}
    kb = make_kb(curator)
    make_document(kb, *[f"flight number {number} of the day" for number in range(6)])

    page = Page(open_page(kb=kb.pk, q="flight number 3", top_k=1))

    assert page.tree.xpath("//td[@title='not among the first 3 of this channel']")


def test_matched_terms_are_marked_in_both_languages(open_page, kb):
    page = Page(open_page(kb=kb.pk, q="late flights, employee 报销标准"))

    english, chinese = Chunk.objects.filter(document__title="Travel").order_by("position")
    assert page.marks(english.pk) == ["Employees", "late", "flight"]
    assert page.marks(chinese.pk) == ["报销", "标准"]


def test_a_chunk_is_shown_as_text_and_never_as_markup(open_page, curator):
    kb = make_kb(curator, "<i>base</i>")
    make_document(
        kb, "<script>alert('flight')</script> & <b>bold</b>", title="<img src=x onerror=alert(1)>", source="<u>.txt"
    )

    response = open_page(kb=kb.pk, q="flight <script>alert(2)</script>")
    html, page = response.content.decode(), Page(response)

    (row,) = page.rows()
    assert not row.xpath(".//script | .//b[text()='bold'] | .//img | .//u")
    assert "<script>alert('flight')</script> & <b>bold</b>" in row.text_content()
    assert "<img src=x onerror=alert(1)>" in row.text_content()
    assert "<mark>flight</mark>" in html
    assert "<script>alert(" not in html
    assert "<i>base" not in html


def test_the_words_of_a_query_show_as_terms_with_the_word_they_came_from(open_page, kb):
    terms = Page(open_page(kb=kb.pk, q="running 报销标准 zebra")).tree.xpath("//*[@data-testid='terms']/li")

    shown_terms = [words(term) for term in terms]
    assert shown_terms == ["run ← running", "报销", "标准", "zebra (No candidate holds this term)"]


def test_a_long_text_is_shortened_and_can_be_opened(open_page, curator):
    kb = make_kb(curator)
    text = "Opening words. " + "filler " * 100 + "the flight " + "filler " * 100 + "the end"
    make_document(kb, text)

    (row,) = Page(open_page(kb=kb.pk, q="flight")).rows()

    (summary,) = row.xpath(".//summary")
    assert "flight" in summary.text_content()
    assert "Opening words" not in summary.text_content()
    (whole,) = row.xpath(".//*[contains(@class,'sd-full')]")
    assert whole.text_content() == text


def test_a_row_leads_to_its_chunk_and_says_where_it_stands(open_page, kb):
    chunk = Chunk.objects.get(text__startswith="差旅")
    Chunk.objects.filter(pk=chunk.pk).update(page=3, heading_path=["Money", "Trips"])

    (row,) = Page(open_page(kb=kb.pk, q="报销", top_k=1)).tree.xpath(f"//tr[@data-chunk-id='{chunk.pk}']")

    assert row.xpath(f".//a[@href='{reverse('admin:kb_chunk_change', args=[chunk.pk])}']")
    assert "notes.txt · page 3 · chunk 2 · Money > Trips" in words(row)


def test_a_move_between_fusion_and_reranker_shows_as_an_arrow(open_page, curator):
    kb = make_kb(curator)
    make_document(kb, "refund refund refund refund", "a refund for a late flight is paid in the office within a week")

    page = Page(open_page(kb=kb.pk, q="refund office", keyword_weight="0", vector_weight="1"))

    rows = {int(row.get("data-chunk-id")): row for row in page.rows()}
    for chunk_id, fused in page.column("fused-rank").items():
        (move,) = rows[chunk_id].xpath(".//@data-move")
        assert int(move) == int(fused) - int(page.column("rank")[chunk_id])


# -- What was cut ---------------------------------------------------------------------------------------------------


@pytest.fixture
def many(curator):
    kb = make_kb(curator)
    make_document(kb, *[f"flight {number} " + "word " * number for number in range(30)], title="Flights")
    return kb


def stages(page):
    return {row.get("data-chunk-id"): row.get("data-cut") for row in page.rows()}


def test_cut_candidates_come_after_the_results_with_the_stage_that_cut_them(open_page, many):
    page = Page(open_page(kb=many.pk, q="flight"))

    assert list(stages(page).values()) == [""] * 5 + ["top_k"] * 20 + ["fusion"] * 5
    reasons = list(page.column("cut-by").values())
    assert reasons[0] == "–"
    assert reasons[5] == "Top K Rank 6: only the first 5 become results."
    assert reasons[-1] == "Fusion Fused rank 30: only the first 25 go on."
    assert list(page.column("rank").values()) == ["1", "2", "3", "4", "5"] + ["–"] * 25


def test_candidates_beyond_the_first_25_start_hidden(open_page, many):
    page = Page(open_page(kb=many.pk, q="flight"))

    hidden = [row for row in page.rows() if row.get("x-show")]
    assert len(hidden) == 5
    assert "Show 5 more candidates" in page.text("show-all")


def test_the_gate_names_score_and_threshold(open_page, curator, kb):
    page = Page(open_page(kb=kb.pk, q="late flight", threshold="0.9"))

    gated = {pk: reason for pk, reason in page.column("cut-by").items() if reason != "–"}
    scores = page.column("rerank-score")
    assert len(gated) == 2
    for pk, reason in gated.items():
        assert reason == f"Gate Score {scores[pk]} is below the threshold 0.9."


def test_when_everything_is_cut_the_page_says_what_to_do(open_page, kb):
    page = Page(open_page(kb=kb.pk, q="flight zebra", threshold="1"))

    best = max(float(score) for score in page.column("rerank-score").values())
    assert page.text("result-count") == "0"
    assert f"The best score is {best:.4f}, the threshold 1" in page.text("no-results")


def test_without_a_reranker_the_vector_ranking_is_the_result(open_page, kb):
    page = Page(open_page(kb=kb.pk, q="late flight", rerank="off", threshold="0.05"))

    assert page.column("rank").keys() == page.column("vector-rank").keys()
    assert set(page.column("bm25-rank").values()) == {"–"}
    assert page.tree.xpath("//td[@title='the reranker is off']")
    assert "cosine" in page.text("summary")
    below = {pk for pk, score in page.column("vector-score").items() if float(score) < 0.05}
    assert {pk for pk, reason in page.column("cut-by").items() if reason.startswith("Gate")} == below


# -- Summary, degradations, stages ----------------------------------------------------------------------------------


def test_the_summary_tells_counts_profile_scale_and_threshold(open_page, kb):
    text = Page(open_page(kb=kb.pk, q="flight", top_k=2, rerank="on")).text("summary")

    assert "2 of 3 candidates" in text
    assert "keyword-led v1" in text
    assert "changed here: Top K 2, Rerank on" in text
    assert "overlap no gate: threshold 0" in text


def test_the_trace_is_shown_and_linked(client, open_page, kb):
    page = Page(open_page(kb=kb.pk, q="flight"))
    log = SearchLog.objects.get()

    trace = json.loads(page.one("//*[@data-testid='trace']").text_content())
    assert trace == log.trace
    assert page.tree.xpath(f"//a[@href='/api/v1/traces/{log.pk}/']")
    assert client.get(f"/api/v1/traces/{log.pk}/").status_code == 200


def test_the_hashing_embedder_is_explained_with_its_profile_and_remedy(open_page, kb):
    text = Page(open_page(kb=kb.pk, q="flight")).text("degraded")

    assert "vectors compare words, not meaning" in text
    assert "reindex --kb Handbook --embeddings" in text
    assert "In “Handbook” this search weighed vectors 0.1 and keywords 0.9." in text


def test_an_outdated_keyword_index_is_named_and_the_words_are_still_marked(open_page, kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="older")

    page = Page(open_page(kb=kb.pk, q="flight"))

    assert "the keyword index is out of date" in page.text("degraded")
    assert "no index was used" in page.text("cache-tier")
    assert page.tree.xpath("//td[@title='this channel did not answer']")
    assert "flight" in page.marks(Chunk.objects.get(text__contains="flight").pk)


def test_without_the_packages_of_the_keyword_channel_the_page_searches_by_vector(open_page, kb, monkeypatch):
    monkeypatch.setitem(sys.modules, "rank_bm25", None)
    conf._load_tokenizer.cache_clear()
    try:
        page = Page(open_page(kb=kb.pk, q="flight"))
    finally:
        conf._load_tokenizer.cache_clear()

    assert "packages are missing" in page.text("degraded")
    assert set(page.column("vector-rank").values()) == {"1", "2", "3"}
    assert page.tree.xpath('//td[@title="there is no reranker: the tokenizer\'s packages are missing"]')
    assert not page.has("terms")


def test_when_no_channel_answers_the_page_says_so(open_page, kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="older", embedding_model="/no/such/model")

    page = Page(open_page(kb=kb.pk, q="flight"))

    assert page.status == 503
    assert page.has("outage")
    codes = page.tree.xpath("//*[@data-testid='degraded']/*/@data-code")
    assert sorted(codes) == ["bm25_postings_outdated", "model_unavailable"]
    assert page.value("q") == "flight"


@pytest.mark.parametrize("code", DegradationCode)
def test_every_degradation_has_a_heading_of_its_own(code):
    with override("en"):
        assert degradation_heading(code) != code.value.replace("_", " ").capitalize()


def test_the_time_of_every_stage_shows(open_page, kb):
    page = Page(open_page(kb=kb.pk, q="flight"))

    times = page.tree.xpath("//*[@data-testid='timings']//dd")
    stages = ["analysis", "vector", "bm25", "fusion", "passages", "rerank", "gate", "other"]
    assert [time.get("data-stage") for time in times] == stages
    assert all(float(time.text_content()) >= 0 for time in times)


def test_the_bar_counts_channels_that_ran_side_by_side_once():
    timings = {"analysis": 1.0, "vector": 6.0, "bm25": 3.0, "fusion": 1.0, "passages": 1.0, "gate": 0.0, "total": 10.0}

    parts = {part.stage: part for part in stage_times(timings)}

    assert {stage: part.milliseconds for stage, part in parts.items()} == {
        "analysis": "1.0",
        "channels": "6.0",
        "fusion": "1.0",
        "passages": "1.0",
        "gate": "0.00",
        "other": "1.0",
    }
    assert [(lane.stage, lane.share) for lane in parts["channels"].lanes] == [("vector", "100.00"), ("bm25", "50.00")]
    assert sum(float(part.share) for part in parts.values()) == pytest.approx(100)


@pytest.mark.django_db(transaction=True)
def test_the_cache_tier_that_answered_shows_in_words(open_page, kb):
    tiers = [Page(open_page(kb=kb.pk, q="flight")).text("cache-tier").partition(" waited")[0] for _ in range(2)]

    assert tiers == [
        "built now from the stored postings 3 chunks indexed",
        "from the memory of this process 3 chunks indexed",
    ]
    assert BM25Index.objects.filter(knowledge_base=kb).exists()


@pytest.mark.django_db(transaction=True)
def test_changes_that_were_read_over_the_base_are_told_of(open_page, kb):
    BM25Store().merge(kb.pk, kb.tokenizer_id)
    make_document(kb, "A new flight.")

    tier = Page(open_page(kb=kb.pk, q="flight")).text("cache-tier")

    assert "4 chunks indexed 1 changed chunk read over the base" in tier


@pytest.mark.parametrize(
    ("waited", "words"), [(0.4, ()), (12.04, ("waited 12.0 ms for it",))], ids=["at once", "after a while"]
)
def test_waiting_for_the_index_is_told_of_where_it_took_long(waited, words):
    with override("en"):
        assert index_notes({"waited_ms": waited}) == words


def test_a_search_while_the_chunks_are_tokenised_anew_says_which_tokenizer_it_used(open_page, kb):
    tokenizer_change(kb, read_settings(engine="jieba", dictionary="", stop_words="flight", simplify=False))

    page = Page(open_page(kb=kb.pk, q="flight"))

    assert "this search used the present tokenizer" in page.text("tokenizing")
    assert page.tree.xpath("//*[@data-testid='tokenizing']//a/@href") == [
        reverse("admin:kb_knowledgebase_tokenizer", args=[kb.pk])
    ]
    assert page.has("candidates")


def test_without_a_tokenizer_change_there_is_no_word_of_one(open_page, kb):
    assert not Page(open_page(kb=kb.pk, q="flight")).has("tokenizing")


def test_every_tier_has_words():
    with override("en"):
        named = {tier_in_words(tier) for tier in ("process", "redis", "database", "build", "")}

    assert len(named) == 5


# -- Several knowledge bases, languages, cost -----------------------------------------------------------------------


def test_several_knowledge_bases_are_named_and_searched_in_the_order_of_the_url(open_page, curator, kb):
    second = make_kb(curator, "Second")
    make_document(second, "A flight to Berlin.")

    page = Page(open_page(kb=[second.pk, kb.pk], q="flight"))

    assert page.tree.xpath("//tr[@data-kb-id]/@data-kb-id") == [str(second.pk), str(kb.pk)]
    assert len(page.tree.xpath("//*[@data-testid='cache-tier']")) == 2
    named = page.tree.xpath("//tr[@data-chunk-id]//*[contains(@class,'sd-kb')]/text()")
    assert set(named) == {"Second", "Handbook"}
    result = outcome_of(curator, second, kb, q="flight")
    assert list(page.column("rank")) == [candidate.chunk_id for candidate in result.candidates]


def test_a_single_knowledge_base_is_not_repeated_in_each_row(open_page, kb):
    assert not Page(open_page(kb=kb.pk, q="flight")).tree.xpath("//*[contains(@class,'sd-kb')]")


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_page_speaks_the_language_of_its_reader(open_page, kb, language):
    page = Page(open_page(kb=kb.pk, q="差旅 flight", language=language))

    assert page.tree.get("lang") == language
    assert set(page.column("vector-rank").values()) == {"1", "2", "3"}
    assert page.value("q") == "差旅 flight"


def test_the_page_asks_nothing_from_outside(open_page, kb):
    page = Page(open_page(kb=kb.pk, q="flight"))

    sources = page.tree.xpath("//script/@src | //link/@href | //img/@src")
    assert sources
    assert all(source.startswith("/") for source in sources)


def test_the_page_costs_few_queries_beside_the_search(open_page, curator, kb, many, django_assert_max_num_queries):
    parameters = {"kb": [kb.pk, many.pk], "q": "flight"}
    open_page(**parameters)
    with django_assert_max_num_queries(100) as counted:
        outcome_of(curator, kb, many, q="flight")
    of_the_search = len(counted)

    with django_assert_max_num_queries(of_the_search + 10):
        open_page(**parameters)


def test_the_number_of_queries_does_not_grow_with_the_knowledge_bases_on_offer(
    open_page, curator, kb, django_assert_num_queries
):
    with django_assert_num_queries(5):
        open_page()
    for _ in range(12):
        make_document(make_kb(curator), "A flight.")

    with django_assert_num_queries(5):
        open_page()
