from collections import defaultdict

import pytest

from kb.models import Concept, KnowledgeBase, RetrievalProfile, SearchLog
from kb.quality.debug.admin.form import SearchForm
from retrieval.errors import InvalidConfiguration
from tests.factories import make_document, make_kb
from tests.kb.quality.debug.admin.debug_page import Page, words

pytestmark = pytest.mark.django_db


# -- The form -------------------------------------------------------------------------------------------------------

GIVEN = {
    "q": "报销 <flight>",
    "top_k": "7",
    "vector_weight": "0.25",
    "keyword_weight": "0.75",
    "question_weight": "0.5",
    "vector_share": "0.9",
    "keyword_share": "0.1",
    "threshold": "0.125",
    "neighbours": "2",
    "budget": "3000",
    "tags": "travel, 差旅",
    "concepts": "报销",
}
CHOSEN = {"rerank": "off", "fusion": "weighted", "rewrite": "off", "profile": "default", "source_type": "web"}


def test_the_form_is_filled_from_the_url(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, **CHOSEN, **GIVEN))

    assert page.status == 200
    assert {name: page.value(name) for name in GIVEN} == GIVEN
    assert {name: page.chosen(name) for name in CHOSEN} == CHOSEN
    assert page.one("//input[@name='kb'][@checked]").get("value") == str(handbook.pk)


def test_the_settings_of_the_url_reach_the_search(open_debug, handbook):
    open_debug(kb=handbook.pk, **CHOSEN, **GIVEN)

    log = SearchLog.objects.get()
    wanted = {
        "top_k": 7,
        "vector_weight": 0.25,
        "keyword_weight": 0.75,
        "question_weight": 0.5,
        "hybrid_vector_weight": 0.9,
        "hybrid_text_weight": 0.1,
        "score_threshold": 0.125,
        "use_rerank": False,
        "fusion": "weighted",
        "rewrite": "off",
        "neighbours": 2,
    }
    assert log.configuration.items() >= wanted.items()
    assert (log.profile, log.profile_version) == ("default", 1)
    assert log.query == "报销 <flight>"


def test_empty_settings_show_what_they_inherit(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk))

    shown = [page.placeholder(name) for name in ("top_k", "vector_weight", "keyword_weight")]
    assert shown == ["5", "0.1", "0.9"]
    assert "keyword-led v1: 0.1 / 0.9" in page.one("//select[@id='id_profile']/option[@value='']").text


def test_where_knowledge_bases_differ_both_inherited_values_show(open_debug, curator, handbook):
    other = make_kb(curator)
    KnowledgeBase.objects.filter(pk=other.pk).update(profile=RetrievalProfile.objects.get(name="default"))

    assert Page(open_debug(kb=[handbook.pk, other.pk])).placeholder("vector_weight") == "0.1 | 0.6"
    assert Page(open_debug(kb=other.pk)).placeholder("vector_weight") == "0.6"


def test_a_chosen_profile_is_what_empty_settings_inherit(open_debug, handbook):
    assert Page(open_debug(kb=handbook.pk, profile="default")).placeholder("keyword_weight") == "0.4"


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
        ("question_weight", "-1"),
        ("neighbours", "11"),
        ("budget", "0"),
        ("budget", "60001"),
    ],
)
def test_a_bad_number_is_named_at_its_field_and_nothing_is_lost_or_searched(open_debug, handbook, field, value):
    page = Page(open_debug(kb=handbook.pk, q="flight", **{field: value}))

    assert page.status == 400
    assert len(page.errors()) == 1
    assert page.tree.xpath(f"//*[@id='id_{field}_error']")
    assert page.value(field) == value
    assert page.value("q") == "flight"
    assert not page.has("results")
    assert not SearchLog.objects.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [("rerank", "perhaps"), ("profile", "no-such-profile"), ("fusion", "mean"), ("source_type", "song")],
)
def test_an_unknown_choice_is_named_at_its_field(open_debug, handbook, field, value):
    page = Page(open_debug(kb=handbook.pk, q="flight", **{field: value}))

    assert page.status == 400
    assert page.tree.xpath(f"//*[@id='id_{field}_error']")


@pytest.mark.parametrize("weights", [("vector_weight", "keyword_weight"), ("vector_share", "keyword_share")])
def test_weights_that_are_both_nothing_are_refused_at_the_field(open_debug, handbook, weights):
    page = Page(open_debug(kb=handbook.pk, q="flight", **dict.fromkeys(weights, "0")))

    assert page.status == 400
    assert page.errors() == ["Both weights are 0: give at least one channel a weight."]


def test_an_error_of_a_setting_that_the_form_does_not_have_shows_above_it(handbook):
    form = SearchForm({"q": "flight", "kb": [str(handbook.pk)]}, [handbook], [], defaultdict(str))

    form.reject(InvalidConfiguration("rrf_k", "rrf_k is 0: give a number from 1 to 10000"))

    assert form.non_field_errors() == ["rrf_k is 0: give a number from 1 to 10000"]


def test_a_query_needs_a_knowledge_base(open_debug, curator, handbook):
    make_kb(curator)

    page = Page(open_debug(q="flight"))

    assert page.errors() == ["Choose at least one knowledge base."]
    assert page.value("q") == "flight"


def test_further_settings_are_folded_away_with_the_number_of_those_given(open_debug, handbook):
    plain = Page(open_debug(kb=handbook.pk, q="flight", top_k=3)).one("//*[@data-testid='more-settings']")
    given = Page(open_debug(kb=handbook.pk, q="flight", neighbours=1)).one("//*[@data-testid='more-settings']")

    assert (plain.get("open"), given.get("open")) == (None, None)
    assert " set" not in plain.xpath("./summary")[0].text_content()
    assert "1 set" in given.xpath("./summary")[0].text_content()


def test_an_error_in_a_folded_setting_unfolds_it(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight", budget="soon"))

    assert page.one("//*[@data-testid='more-settings']").get("open") is not None


@pytest.fixture
def labelled(curator):
    """A document each with a tag, with a concept, and from the web."""
    kb = make_kb(curator)
    make_document(kb, "The flight of the tag.", tags=["travel"])
    with_concept = make_document(kb, "The flight of the concept.")
    with_concept.concepts.add(Concept.objects.create(knowledge_base=kb, name="差旅"))
    make_document(kb, "The flight of the web.", source_type="web", metadata={"year": 2024, "by": "Ann, Bob"})
    return kb


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"tags": "hotel， travel"}, {"The flight of the tag."}),
        ({"concepts": "差旅"}, {"The flight of the concept."}),
        ({"source_type": "web"}, {"The flight of the web."}),
        ({"tags": "travel", "source_type": "web"}, set()),
        ({"metadata": 'year >= 2024, by = "Ann, Bob"'}, {"The flight of the web."}),
        ({"metadata": "year ≥ 2025"}, set()),
    ],
)
def test_filters_leave_the_documents_that_have_what_they_ask_for(open_debug, labelled, filters, found):
    page = Page(open_debug(kb=labelled.pk, q="flight", **filters))

    assert {words(row.xpath(".//*[contains(@class,'sd-full')]")[0]) for row in page.hits()} == found
    assert page.status == 200


def test_conditions_without_a_sign_are_named_at_their_field(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight", metadata="year 2024"))

    assert page.status == 400
    assert "“year 2024” is no condition" in " ".join(page.tree.text_content().split())


def test_a_search_that_filters_leave_nothing_of_says_so(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight", tags="no-such-tag"))

    assert "passes the filters" in page.text("no-results")


def test_a_filter_that_cannot_be_used_is_named_at_its_field(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight", tags="x" * 1_500))

    assert page.status == 400
    assert page.tree.xpath("//*[@id='id_tags_error']")
