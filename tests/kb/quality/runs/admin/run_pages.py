"""Evaluation runs and their pages as tests make and read them."""

from datetime import timedelta

from django.urls import reverse
from django.utils import timezone

from kb.models import EvalRun, Judgment
from tests.kb.quality.runs.eval_runs import answered, make_run, make_set
from tests.kb.web.admin.pages import Page, words

STAGES = {
    "bm25": {"recall@5": 0.9, "recall@20": 0.95, "hit_rate@1": 0.7, "mrr@10": 0.8, "ndcg@10": 0.82},
    "vector": {"recall@5": 0.6, "recall@20": 0.7, "hit_rate@1": 0.4, "mrr@10": 0.5, "ndcg@10": 0.52},
    "fused": {"recall@5": 0.92, "recall@20": 0.96, "hit_rate@1": 0.7, "mrr@10": 0.81, "ndcg@10": 0.84},
    "reranked": {"recall@5": 0.91, "recall@20": 0.96, "hit_rate@1": 0.75, "mrr@10": 0.8, "ndcg@10": 0.83},
}
GATE = {
    "scale": "overlap",
    "cut": 0.5,
    "auroc": 0.94,
    "answerable_kept": 0.93,
    "unanswerable_passed": 0.09,
    "false_answer_rate": 0.09,
    "unanswerable": 20,
}


def judged_set(kb, document):
    """A set of two queries, the first of which has a judged passage that is a chunk of the document today."""
    made = make_set(kb, "law questions", "违约金过高怎么办", "诉讼时效多久")
    Judgment.objects.create(
        query=made.queries.get(external_id="q0"),
        document=document,
        source="notes.txt",
        quote="违约金过高的，可以请求减少。",
        grade=2,
    )
    return made


def report(**changes):
    """A run's report; `changes` replace its parts."""
    return {
        "queries": 2,
        "stages": STAGES,
        "latency_ms": {"p50": 3.25, "p95": 12.5},
        "gate": GATE,
        "degraded": [],
        **changes,
    }


def done(eval_set, queries=(), **changes):
    """A finished run with figures of every stage."""
    now = timezone.now()
    fields = {"started_at": now - timedelta(seconds=42), "finished_at": now, "report": report()}
    return make_run(eval_set, queries, **(fields | changes))


def missed(name, lost_at, **fields):
    """A query that has an answer, which a stage has lost."""
    return answered(name, 0.0, lost_at=lost_at, first_relevant={"bm25": 3, "fused": 30}, **fields)


def of_kb(run):
    """What a run of the present state of its knowledge base holds."""
    row = run.eval_set.knowledge_base.version_row
    row.refresh_from_db()
    return {"kb_version": row.version, "content_version": row.content_version}


def url(name, *args):
    return reverse(f"admin:kb_evalrun_{name}", args=args)


def page_of(client, run, query=""):
    return Page(client.get(url("change", run.pk) + query))


def links(page, testid):
    return page.tree.xpath(f"//*[@data-testid='{testid}']//a/@href")


def cells(page, stage):
    row = page.tree.xpath(f"//tr[@data-stage='{stage}']/td")
    return {cell.get("data-metric"): words(cell) for cell in row}


def running(eval_set, **changes):
    now = timezone.now()
    fields = {
        "status": EvalRun.Status.RUNNING,
        "done": 500,
        "total": 2_000,
        "report": {},
        "finished_at": None,
        "started_at": now - timedelta(seconds=10),
        "heartbeat": now,
    }
    return done(eval_set, **(fields | changes))


def listed(client, run, **query):
    page = Page(client.get(url("queries", run.pk), query))
    return page.tree.xpath("//tr/@data-query")
