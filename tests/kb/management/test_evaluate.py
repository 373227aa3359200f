import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from kb.models import ChunkEmbedding, EvalQuery, EvalRun, EvalSet, Judgment, RetrievalProfile
from kb.quality.runs.services import runs
from tests.factories import make_document, make_kb, make_user

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "tests" / "data" / "demo_eval"

pytestmark = pytest.mark.django_db


@pytest.fixture
def eval_set():
    """Two queries: what answers the first is found, what answers the second is not."""
    kb = make_kb(name="faq")
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    texts = ("智能温控器的保修期是两年", "购买后三十天内可以退货")
    for text, asked in zip(texts, ("智能温控器的保修期", "zebra"), strict=True):
        query = EvalQuery.objects.create(eval_set=eval_set, external_id=asked, text=f"{asked}？")
        Judgment.objects.create(query=query, document=make_document(kb, text), grade=1)
    ChunkEmbedding.objects.all().delete()  # the vector channel always finds something
    return eval_set


@pytest.fixture
def run(eval_set, capsys):
    def call(*options):
        capsys.readouterr()
        call_command("evaluate", "--kb", "faq", "--eval-set", "set", *options)
        return capsys.readouterr().out

    return call


def test_the_table_says_where_queries_were_lost_and_how_many_ran_at_once(run):
    output = run()
    assert "by the stage that lost it: channels 1" in output
    assert "milliseconds a query, 2 at once" in output


def test_settings_over_the_profile_are_measured(run):
    report = json.loads(run("--json", "--override", "rrf_k=7", "--override", "fusion=weighted"))
    assert report["overrides"] == {"rrf_k": 7, "fusion": "weighted"}


def test_what_is_no_setting_is_refused(run):
    with pytest.raises(CommandError, match="NAME=VALUE"):
        run("--override", "rrf_k")


def test_a_version_of_a_profile_is_measured(run):
    for version in (1, 2):
        RetrievalProfile.objects.create(name="own", version=version, settings={"rrf_k": version})
    report = json.loads(run("--json", "--profile", "own@1"))
    assert (report["profile"], report["configuration"]["rrf_k"]) == ({"name": "own", "version": 1}, 1)


def test_an_evaluation_can_be_kept_as_a_run(run):
    report = json.loads(run("--json", "--save"))
    kept = EvalRun.objects.get()
    assert (report["run_id"], kept.status, kept.queries.count()) == (kept.pk, "done", 2)
    assert list(report)[:3] == ["kb", "eval_set", "profile"]


def test_an_evaluation_is_not_kept_unless_it_is_asked_for(run):
    assert "run_id" not in json.loads(run("--json"))
    assert not EvalRun.objects.exists()


def test_a_kept_evaluation_that_is_cancelled_meanwhile_says_so(run, monkeypatch):
    def cancel(_job, _count):
        raise runs.RunCancelled

    monkeypatch.setattr(runs.RunJob, "tick", cancel)
    with pytest.raises(CommandError, match="was cancelled"):
        run("--save")


def test_recall_below_its_floor_ends_with_the_figure_the_floor_and_the_queries_lost(run):
    assert "reranked" in run("--min-recall5", "0.5")
    with pytest.raises(CommandError) as error:
        run("--min-recall5", "0.75")
    message = str(error.value)
    assert "reranked recall@5: 0.5000, must be at least 0.7500" in message
    assert "zebra: 1 -> 0  zebra？" in message


def test_a_floor_names_its_queries_also_where_a_baseline_is_no_better(run, tmp_path):
    baseline = tmp_path / "baseline.json"
    baseline.write_text(run("--json"))
    with pytest.raises(CommandError, match="zebra: 1 -> 0"):
        run("--baseline", str(baseline), "--min-recall5", "0.75")


def test_a_long_list_of_lost_queries_is_cut(run, eval_set, monkeypatch):
    monkeypatch.setattr("kb.management.commands.evaluate.LOST_LISTED", 0)
    with pytest.raises(CommandError, match="and 1 more"):
        run("--min-recall5", "1")


def test_json_is_printed_also_where_a_floor_is_missed(run, eval_set, capsys):
    with pytest.raises(CommandError):
        call_command("evaluate", "--kb", "faq", "--eval-set", "set", "--json", "--min-recall5", "1.1")
    assert json.loads(capsys.readouterr().out)["kb"] == "faq"


def test_a_former_report_is_the_baseline(run, tmp_path):
    baseline = tmp_path / "baseline.json"
    baseline.write_text(run("--json"))
    run("--baseline", str(baseline))
    EvalQuery.objects.filter(external_id="智能温控器的保修期").update(text="giraffe")
    with pytest.raises(CommandError, match="智能温控器的保修期: 1 -> 0  giraffe"):
        run("--baseline", str(baseline))


def test_a_tolerance_lets_figures_fall(run, tmp_path):
    baseline = tmp_path / "baseline.json"
    baseline.write_text(run("--json"))
    EvalQuery.objects.filter(external_id="智能温控器的保修期").update(text="giraffe")
    run("--baseline", str(baseline), "--tolerance", "1")


# -- As continuous integration runs it ------------------------------------------------------------------------------------
def manage(*arguments):
    url = urlsplit(os.environ["DATABASE_URL"])
    database = f"{url.path.rpartition('/')[0]}/{connection.settings_dict['NAME']}"
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": url._replace(path=database).geturl()},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_shipped_set_is_no_worse_than_its_baseline_and_a_worse_profile_fails(language):
    make_user(superuser=True)
    call_command(
        "import_beir", str(SHIPPED / language), "--kb", "demo", "--embedding-model", "hashing", "--eval-set", "demo"
    )
    RetrievalProfile.objects.create(
        name="worse", version=1, settings={"keyword_weight": 0.0, "vector_weight": 1.0, "rrf_k": 1}
    )
    command = [
        "evaluate",
        "--kb",
        "demo",
        "--eval-set",
        "demo",
        "--baseline",
        str(SHIPPED / language / "baseline.json"),
    ]

    good, worse = manage(*command, "--min-recall5", "0.7"), manage(*command, "--profile", "worse")

    assert (good.returncode, worse.returncode) == (0, 1), good.stderr
    assert "recall@5: " in worse.stderr
    assert "must be at least" in worse.stderr
    assert "Queries lost (recall@5): " in worse.stderr
