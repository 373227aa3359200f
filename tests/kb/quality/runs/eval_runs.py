"""Runs of an evaluation set, written as a run writes them."""

from django.utils import timezone

from kb.models import EvalQuery, EvalRun, EvalRunQuery, EvalSet, RetrievalProfile

STAGES = ("bm25", "vector", "fused", "reranked")
METRICS = ("recall@5", "recall@20", "hit_rate@1", "mrr@10", "ndcg@10")


def make_set(kb, name="questions", *texts):
    eval_set = EvalSet.objects.create(knowledge_base=kb, name=name)
    EvalQuery.objects.bulk_create(
        EvalQuery(eval_set=eval_set, external_id=f"q{number}", text=text) for number, text in enumerate(texts)
    )
    return eval_set


def make_run(eval_set, queries=(), *, profile=None, gate=None, **fields):
    """A run that is done.

    Args:
        eval_set: of the run.
        queries: each as `answered` or `unanswered` makes it.
        profile: the knowledge base's own, unless it is given.
        gate: of its report.
        fields: of the run, instead of the usual ones.
    """
    now = timezone.now()
    usual = {
        "status": EvalRun.Status.DONE,
        "configuration": {"fusion": "rrf", "top_k": 20},
        "model_ids": {"embedding": "hashing"},
        "kb_version": 1,
        "content_version": 1,
        "done": len(queries),
        "total": len(queries),
        "report": {"latency_ms": {"p50": 1.5, "p95": 4.0}, "gate": gate},
        "started_at": now,
        "finished_at": now,
    }
    profile = profile or eval_set.knowledge_base.profile
    run = EvalRun.objects.create(eval_set=eval_set, profile=profile, **(usual | fields))
    EvalRunQuery.objects.bulk_create(EvalRunQuery(run=run, **query) for query in queries)
    return run


def answered(name, ndcg=1.0, *, judged=(), scale="overlap", **fields):
    """A query that has an answer; its other figures are all .5."""
    figures = {stage: dict.fromkeys(METRICS, 0.5) for stage in STAGES}
    figures["reranked"]["ndcg@10"] = ndcg
    return {
        "external_id": name,
        "text": f"text of {name}",
        "answerable": True,
        "figures": figures,
        "best_score": judged[0][0] if judged else None,
        "score_scale": scale,
        "judged": list(judged),
        "latency_ms": 2.0,
    } | fields


def unanswered(name, best_score, *, scale="overlap"):
    return {
        "external_id": name,
        "text": f"text of {name}",
        "answerable": False,
        "best_score": best_score,
        "score_scale": scale,
        "latency_ms": 2.0,
    }


def draft(profile, **settings):
    """The next version of a profile, not published."""
    return RetrievalProfile.objects.create(
        name=profile.name,
        version=profile.version + 1,
        knowledge_base=profile.knowledge_base,
        settings={**profile.settings, **settings},
    )
