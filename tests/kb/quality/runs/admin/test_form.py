"""The start of an evaluation run."""

import pytest

from kb.models import EvalRun
from kb.quality.runs.services.runs import execute_run
from tests.factories import make_kb
from tests.kb.quality.runs.admin.run_pages import cells, done, judged_set, listed, page_of, url
from tests.kb.quality.runs.eval_runs import draft, make_set
from tests.kb.web.admin.pages import Page


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def eval_set(kb, document):
    return judged_set(kb, document)


# -- The start -----------------------------------------------------------------------------------------------------------
def test_without_a_set_the_start_says_how_to_make_one(client, kb):
    assert Page(client.get(url("add"))).has("no-sets")


def test_a_run_starts_under_a_draft_with_unsaved_settings_and_a_limit(client, kb, eval_set):
    drafted = draft(kb.profile, rrf_k=20)

    answer = client.post(
        url("add"),
        {
            "eval_set": eval_set.pk,
            "profile": drafted.pk,
            "limit": "10",
            "vector_weight": "0.7",
            "fusion": "rrf",
            "other": "rerankers = overlap, cosine\nlexical_fallback = false\n",
        },
    )

    run = EvalRun.objects.get()
    assert answer.url == url("change", run.pk)
    assert (run.eval_set, run.profile, run.query_limit) == (eval_set, drafted, 10)
    assert run.overrides == {
        "vector_weight": 0.7,
        "fusion": "rrf",
        "rerankers": ["overlap", "cosine"],
        "lexical_fallback": False,
    }


def test_without_a_chosen_profile_a_run_has_the_knowledge_base_s_own(client, kb, eval_set):
    client.post(url("add"), {"eval_set": eval_set.pk})

    assert EvalRun.objects.get().profile == kb.profile


def test_versions_are_offered_with_their_state(client, kb, eval_set):
    drafted = draft(kb.profile)

    offered = client.get(f"{url('add')}?eval_set={eval_set.pk}").content.decode()

    assert f"{drafted} · draft" in offered
    assert f"{kb.profile} · published" in offered
    assert f"own ({kb.profile})" in offered


def test_a_profile_of_another_knowledge_base_is_not_offered(client, curator, eval_set):
    other = make_kb(curator, "other")
    own = draft(other.profile)
    type(own).objects.filter(pk=own.pk).delete()
    foreign_profile = type(own).objects.create(name="of other", knowledge_base=other)

    answer = client.post(url("add"), {"eval_set": eval_set.pk, "profile": foreign_profile.pk})

    assert answer.context["form"].errors["profile"]


def test_empty_fields_show_what_the_chosen_profile_sets(client, kb, eval_set):
    drafted = draft(kb.profile, rrf_k=33)

    page = Page(client.get(f"{url('add')}?eval_set={eval_set.pk}&profile={drafted.pk}"))

    assert page.tree.get_element_by_id("id_rrf_k").get("placeholder") == "33"


@pytest.mark.parametrize(
    ("values", "field", "sentence"),
    [
        ({"vector_weight": "much"}, "vector_weight", "Enter a number."),
        ({"rrf_k": "20000"}, "rrf_k", "less than or equal to 10000"),
        ({"vector_weight": "0", "keyword_weight": "0"}, "keyword_weight", "give at least one channel a weight"),
        ({"other": "no_such = 1"}, "other", "unknown setting"),
        ({"other": "just words"}, "other", "Line 1 is no setting: write it as “name = value”."),
        ({"limit": "0"}, "limit", "greater than or equal to 1"),
    ],
)
def test_what_a_setting_cannot_be_is_said_beside_its_field(client, eval_set, values, field, sentence):
    answer = client.post(url("add"), {"eval_set": eval_set.pk, **values})

    assert sentence in " ".join(answer.context["form"].errors[field])
    assert not EvalRun.objects.exists()


def test_a_run_starts_again_with_the_same_settings(client, eval_set):
    run = done(eval_set, overrides={"rrf_k": 20, "rerankers": ["overlap"]}, query_limit=7)

    again = page_of(client, run).tree.xpath("//a[contains(@href, '/add/?')]/@href")[0]
    form = client.get(again).context["form"]
    values = {name: form[name].value() or "" for name in form.fields}
    client.post(url("add"), values)

    started = EvalRun.objects.exclude(pk=run.pk).get()
    assert (started.overrides, started.query_limit, started.profile) == (run.overrides, 7, run.profile)


def test_a_set_without_a_judgment_is_not_run_and_the_remedy_is_said(client, kb):
    unjudged = make_set(kb, "unjudged", "a query")

    answer = client.post(url("add"), {"eval_set": unjudged.pk})

    assert "judge results of a search, or import judgments" in str(answer.context["form"].non_field_errors())


@pytest.mark.django_db(transaction=True)
def test_a_run_that_was_started_here_is_carried_out_and_shown(client, eval_set):
    client.post(url("add"), {"eval_set": eval_set.pk})
    run = EvalRun.objects.get()

    execute_run(run.pk)

    page = page_of(client, run)
    assert cells(page, "reranked")["recall@5"].startswith("1.000")
    assert page.has("latency")
    assert "None: every query" in page.text("misses")
    assert "Gain and loss by stage" in page.text("stages")
    assert listed(client, run) == ["q0"]
