import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from kb.models import SearchLog
from kb.profiles.services import create_version
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.quality.runs.eval_runs import answered, make_run, make_set

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kb():
    kb = make_kb(make_user("ann"), "faq", language="en")
    make_document(kb, "Annual leave, annual leave.", title="Leave")
    make_document(kb, "summer summer summer", title="Sun")
    return kb


def compare(*arguments):
    output = StringIO()
    call_command("compare", *map(str, arguments), stdout=output)
    return output.getvalue()


# -- Searches ----------------------------------------------------------------------------------------------------------


def test_shows_where_each_result_stands_on_both_sides(kb):
    create_version(principal(kb.owner), "mine", {"top_k": 1, "score_threshold": 0.0}, knowledge_base=kb)

    output = compare("annual leave summer", "--kb", "faq", "--set-a", "score_threshold=0", "--b", "mine@1")

    assert "B: profile mine v1, 1 results" in output
    assert "setting top_k: 5 -> 1" in output
    lines = [line.split() for line in output.splitlines()]
    assert ["1", "1", "=", "Leave:"] in [line[:4] for line in lines]
    assert ["2", "-", "only", "A", "(top_k)", "Sun:"] in [line[:6] for line in lines]


def test_says_that_both_sides_are_the_same(kb):
    output = compare("annual leave", "--kb", "faq")

    assert "in the same order" in output
    assert not SearchLog.objects.exists()


def test_prints_the_response_of_the_api(kb):
    response = json.loads(compare("annual leave", "--kb", "faq", "--set-b", "fusion=weighted", "--json"))

    assert list(response) == ["query", "identical", "results", "settings", "a", "b"]
    assert response["b"]["overrides"] == {"fusion": "weighted"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["leave", "--kb", "faq", "--b", "none"], "no retrieval profile named “none”"),
        (["leave", "--kb", "faq", "--b", "default@99"], "no version 99"),
        (["leave", "--kb", "faq", "--set-b", "rrf_k=0"], "rrf_k is 0"),
        (["leave"], "--kb NAME"),
        ([], "either a query, or --runs"),
        (["--runs", "1", "2", "--kb", "faq", "--set-a", "rrf_k=1"], "leave out --kb, --set-a"),
        (["--runs", "7", "8"], "no evaluation run 7"),
    ],
)
def test_what_cannot_be_compared_is_said(kb, arguments, sentence):
    with pytest.raises(CommandError, match=sentence):
        compare(*arguments)


# -- Runs --------------------------------------------------------------------------------------------------------------


def test_shows_the_difference_of_each_figure_and_the_queries(kb):
    eval_set = make_set(kb)
    names = [f"q{n}" for n in range(20)]
    before = make_run(eval_set, [answered(name, 0.5) for name in names])
    after = make_run(
        eval_set,
        [answered(name, 0.1 if name == "q3" else 0.7, lost_at="gate" if name == "q3" else "") for name in names],
    )

    output = compare("--runs", before.pk, after.pk)

    line = next(line for line in output.splitlines() if line.split()[:2] == ["reranked", "ndcg@10"])
    assert line.split()[2:6] == ["0.5000", "->", "0.6700", "+0.1700"]
    assert line.endswith("*")
    assert "lost: 1\n  0.500 -> 0.100  q3: text of q3 (lost by gate)" in output
    assert "won: 19" in output
    assert "and 9 more" in output


def test_prints_two_runs_as_json(kb):
    eval_set = make_set(kb)
    before, after = (make_run(eval_set, [answered("a")]) for _ in range(2))

    report = json.loads(compare("--runs", before.pk, after.pk, "--json"))

    assert (report["before"]["id"], report["after"]["id"], report["tied"]) == (before.pk, after.pk, 1)


def test_runs_of_different_sets_are_refused(kb):
    runs = [make_run(make_set(kb, name), [answered("a")]) for name in ("one", "two")]

    with pytest.raises(CommandError, match="different sets, “one” and “two”"):
        compare("--runs", *(run.pk for run in runs))
