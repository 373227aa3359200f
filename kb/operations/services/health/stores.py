"""Whether the stores beside PostgreSQL can be reached, and hold what they should."""

from datetime import timedelta

from django.db.models import Count, Min
from django.utils import timezone

from kb.access.models import KnowledgeBase
from kb.base.findings import Finding, State, listed, one_line
from kb.index.mirrors.protocol import StoreError
from kb.index.mirrors.registry import configured_stores, mirror
from kb.index.models import StoreChange, StoreState

NAME = "other stores"
BEHIND = timedelta(minutes=5)
Store = KnowledgeBase.Store


def other_stores() -> Finding:
    """The servers of the stores that are set up or in use, and what copies have yet to take in."""
    used = set(KnowledgeBase.objects.exclude(store=Store.POSTGRES).values_list("store", flat=True).distinct())
    wanted = sorted(used.union(configured_stores()) - {Store.POSTGRES})
    if not wanted:
        return Finding(NAME, State.OK, "none is set up; PostgreSQL searches everything")
    answers, faults = [], []
    for store in wanted:
        try:
            answers.append(mirror(store).ping())
        except StoreError as error:
            faults.append(one_line(error))
    if faults:
        remedy = "start the servers or correct MILVUS_URI and CHROMA_URL; PostgreSQL answers meanwhile, and says so"
        return Finding(NAME, State.DEGRADED, "; ".join(faults), remedy)
    return _copies(", ".join(answers))


def _copies(answers: str) -> Finding:
    failed = StoreState.objects.filter(status=StoreState.Status.FAILED).select_related("knowledge_base")
    if names := [f"{state.knowledge_base} ({one_line(state.error)})" for state in failed]:
        remedy = "`manage.py migrate_store --kb NAME --to STORE` fills the copy anew"
        return Finding(NAME, State.DEGRADED, f"{answers}; not moved: {listed(names)}", remedy)
    lag = StoreChange.objects.aggregate(left=Count("pk"), oldest=Min("created_at"))
    detail = f"{answers}; {KnowledgeBase.objects.exclude(store=Store.POSTGRES).count()} knowledge bases use them"
    if lag["oldest"] and lag["oldest"] < timezone.now() - BEHIND:
        detail = f"{detail}; {lag['left']:,} changes wait, the oldest since {lag['oldest']:%Y-%m-%d %H:%M %Z}"
        remedy = "start a worker: `manage.py serve`; its log says why changes could not be applied"
        return Finding(NAME, State.DEGRADED, detail, remedy)
    return Finding(NAME, State.OK, f"{detail}; {lag['left']:,} changes wait")
