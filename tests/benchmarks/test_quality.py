import json

import pytest

from kb.providers import recommended
from kb.providers.recommended import RecommendedModel, Role, Size
from retrieval.eval.judged_sets import read_judged_set
from retrieval.eval.qrels import iter_corpus
from tests.benchmarks import models, quality, quality_pages
from tests.benchmarks.quality import Measured, Models, measure_all, read_results
from tests.benchmarks.sets import without_half
from tests.factories import make_user
from tests.retrieval.rerankers.tiny import save_tiny_model

FIGURES = dict.fromkeys(quality_pages.METRICS, 0.5)


@pytest.fixture
def kept(monkeypatch, tmp_path):
    monkeypatch.setattr(quality, "RESULTS", tmp_path / "quality.json")


@pytest.fixture
def administrator(transactional_db):
    """Whom the commands make knowledge bases for."""
    return make_user(superuser=True)


def test_a_set_is_measured_stage_by_stage_under_its_first_profile_and_the_default(kept, administrator, tmp_path):
    measure_all([Models()], ["demo-zh"], tmp_path, tmp_path, missing=False)

    led, default = read_results()
    assert (led.profile, default.profile) == ("keyword-led", "default")
    assert (led.passages, led.queries, led.unanswerable) == (62, 35, 8)
    assert led.stages["bm25"] == default.stages["bm25"]
    assert led.stages["fused"] != default.stages["fused"]
    assert led.gate["scale"] == "overlap"
    assert led.run.keys() == {"date", "commit", "versions", "tokenizer"}


def test_a_run_goes_on_where_another_was_cut_short(kept, monkeypatch, tmp_path):
    asked = []

    def measure(name, of_run, *_):
        asked.append(name)
        return [Measured(name, of_run.embedding, "overlap", "default", 2, 1, 0)]

    monkeypatch.setattr(quality, "measure", measure)
    measure_all([Models()], ["demo-zh"], tmp_path, tmp_path, missing=False)
    measure_all([Models()], ["demo-zh", "demo-en"], tmp_path, tmp_path, missing=True)

    assert asked == ["demo-zh", "demo-en"]
    assert [each.set for each in read_results()] == ["demo-en", "demo-zh"]


def test_a_set_that_is_not_there_is_said_and_the_next_one_measured(kept, administrator, tmp_path, capsys):
    measure_all([Models()], ["xquad-zh", "xquad-zh-half", "demo-en"], tmp_path, tmp_path, missing=False)

    assert {each.set for each in read_results()} == {"demo-en"}
    said = capsys.readouterr().err
    assert "Not measured: xquad-zh with hashing" in said
    assert "Not measured: xquad-zh-half with hashing" in said


def test_the_newcomer_s_questions_are_asked_at_the_defaults(administrator):
    (measured,) = quality.measure_newcomer(Models())

    assert (measured.queries, measured.unanswerable, measured.profile) == (20, 10, "keyword-led")
    assert measured.answers["high"] <= measured.answers["among"]
    assert 9 <= measured.answers["first"] <= measured.answers["among"]
    assert measured.answers["passed_high"] <= measured.answers["passed"] <= 10


def test_the_recommended_models_are_measured_in_the_same_way(kept, administrator, monkeypatch, tmp_path, capsys):
    embedding, reranker = (str(save_tiny_model(tmp_path / name, head=name == "rerank")) for name in ("embed", "rerank"))
    tiny = {"languages": ("en",), "size": Size.SMALL, "parameters": 0, "download_mb": 0, "licence": ""}
    listed = (
        RecommendedModel("org/nowhere", Role.EMBEDDING, dimension=16, **tiny | {"size": Size.BASE}),
        RecommendedModel(embedding, Role.EMBEDDING, dimension=16, **tiny),
        RecommendedModel(reranker, Role.RERANK, dimension=None, **tiny),
    )
    monkeypatch.setattr(recommended, "MODELS", listed)

    measure_all(models.downloaded([]), ["demo-zh", "demo-en"], tmp_path, tmp_path, missing=False)

    assert {each.subject: each.gate["scale"] for each in read_results()} == {
        ("demo-en", embedding, "overlap"): "overlap",
        ("demo-en", embedding, reranker): "cross_encoder",
    }
    assert "Left out: org/nowhere" in capsys.readouterr().err


def write_set(directory, passages):
    """Passages with a question each, and one question that the first two answer."""
    (directory / "qrels").mkdir(parents=True)
    judged = [(f"q{each}", each) for each in passages] + [("both", each) for each in passages[:2]]
    rows = ["query-id\tcorpus-id\tscore", *(f"{query}\t{passage}\t1" for query, passage in judged)]
    (directory / "qrels" / "test.tsv").write_text("\n".join(rows))
    lines = [json.dumps({"_id": each, "title": "", "text": f"passage {each}"}) for each in passages]
    (directory / "corpus.jsonl").write_text("\n".join(lines))
    lines = [json.dumps({"_id": query, "text": query}) for query in dict(judged)]
    (directory / "queries.jsonl").write_text("\n".join(lines))
    return directory


def test_questions_whose_passages_are_taken_out_have_no_answer(tmp_path):
    passages = [f"p{number}" for number in range(40)]
    halved = without_half(write_set(tmp_path / "whole", passages), tmp_path / "halved")

    kept = {passage.id for passage in iter_corpus(halved)}
    judged = read_judged_set(halved)
    assert 10 < len(kept) < 30
    assert {each.id for each in judged.queries if each.answerable} - {"both"} == {f"q{each}" for each in kept}
    assert {each.id for each in judged.queries} == {*(f"q{each}" for each in passages), "both"}
    assert {each.source for each in judged.judgments} == kept
    assert any(each.answerable for each in judged.queries if each.id == "both") == (not kept.isdisjoint(passages[:2]))


@pytest.mark.parametrize("language", quality_pages.PAGES)
def test_the_pages_hold_what_was_measured(language):
    text = quality_pages.PAGES[language].read_text(encoding="utf-8")
    assert text == quality_pages.with_tables(text, read_results(), language), (
        "run python -m tests.benchmarks.quality --sets"
    )


def test_published_figures_stand_beside_those_of_the_same_set():
    stages = dict.fromkeys(quality_pages.DEPENDS_ON, FIGURES)
    run = {"date": "2026-01-31", "commit": "abcd", "versions": "Python", "tokenizer": "jieba"}
    measured = [
        Measured("scifact", embedding, "overlap", profile, 5_183, 300, 0, stages, run=run)
        for embedding in ("hashing", "small")
        for profile in ("balanced", "default")
    ]

    lines = quality_pages.tables(measured, "en").splitlines()

    stages_of_rows = [line.split(" | ")[0] for line in lines if line.endswith("| 0.500 |")]
    assert [stages_of_rows.count(f"| {stage}") for stage in quality_pages.DEPENDS_ON] == [1, 2, 4, 4]
    assert any(line.startswith("| published | [Pyserini, BM25, flat]") and "0.679" in line for line in lines)
    assert "| 2026-01-31 | abcd | scifact (hashing), scifact (small) | Python, jieba |" in lines
