"""Searches of the fault matrix, what they say is missing, and the breakers and clocks that they run under."""

from kb import providers
from kb.services.search import SearchRequest, search
from kb.stores import query_caches
from retrieval.execution import CircuitBreaker
from retrieval.query_vectors import PATIENCE_SECONDS
from tests.factories import principal

MODEL = "openai:small"
QUERY = "智能温控器的保修期"
WARRANTY, POWER, LEAVE = "智能温控器的保修期是两年", "安装前请先关闭电源", "员工每年享有五天带薪年假"
AT_ONCE = {"Retry-After": "0"}  # clients that try a second time do not wait for it


def ask(*kbs, query=QUERY, **fields):
    """The result of a search by the owner, through the service that the API calls."""
    request = SearchRequest(query=query, knowledge_base_ids=[kb.pk for kb in kbs], log=False, **fields)
    return search(principal(kbs[0].owner), request).result


def notes(result):
    return [(each.stage, each.code.value) for each in result.degraded]


def texts(result):
    return [hit.passage.text for hit in result.hits]


def channels(result):
    """Those that found any of the results."""
    stages = {"fused", "rerank"}
    return {channel for hit in result.hits for channel in hit.ranks if channel not in stages}


def embedder_breaker(clock, model_id=MODEL, patience_s=PATIENCE_SECONDS):
    """Gives the process's guard of an embedding model a breaker that goes by the clock, and returns it."""
    held = query_caches.query_embedder(providers.embedder(model_id))
    held._patience_s = patience_s
    held._guard.breaker = CircuitBreaker(clock=clock)
    return held._guard.breaker
