"""Whether the models that the environment and the knowledge bases name are at hand; none is asked anything."""

import httpx
from django.conf import settings

from kb.access.models import KnowledgeBase
from kb.base.findings import Finding, State, listed, one_line
from kb.providers import loaded as providers
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.model_files import libraries_available, local_path

REACH_SECONDS = 1


def libraries() -> Finding:
    name = "model libraries"
    if not libraries_available():
        detail = "sentence-transformers or torch is not installed, so no model can run here"
        return Finding(name, State.DEGRADED, detail, "run `pip install 'zhiku[models]'`")
    return Finding(name, State.OK, "sentence-transformers and torch are installed")


def default_embedder() -> Finding:
    return model_finding("EMBEDDING_MODEL", settings.EMBEDDING_MODEL, missing=State.DEGRADED)


def embedders_in_use() -> Finding:
    """The worst of the models that knowledge bases use, and the remedies of all that are not in order."""
    users: dict[str, list[str]] = {}
    for model, kb in KnowledgeBase.objects.order_by("embedding_model", "name").values_list("embedding_model", "name"):
        users.setdefault(model, []).append(kb)
    found = [model_finding(listed(names), model, missing=State.BROKEN) for model, names in users.items()]
    wrong = [finding for finding in found if finding.state is not State.OK]
    state = max((finding.state for finding in wrong), key=list(State).index, default=State.OK)
    detail = "; ".join(f"{finding.name}: {finding.detail}" for finding in wrong or found) or "no knowledge base yet"
    return Finding("models in use", state, detail, "; ".join(dict.fromkeys(finding.remedy for finding in wrong)))


def model_finding(name: str, model: str, *, missing: State) -> Finding:
    """Whether an embedding model is at hand; `missing` is the state where it is not."""
    if model == HASHING_MODEL_ID:
        detail = "hashing, which compares words and not meaning"
        remedy = "`manage.py download_model`, then `manage.py reindex --kb NAME --embeddings --model MODEL_ID`"
        return Finding(name, State.DEGRADED, detail, remedy)
    if model.startswith(OPENAI_PREFIX):
        if settings.EMBEDDING_BASE_URL:
            return Finding(name, State.OK, f"{model} at {settings.EMBEDDING_BASE_URL}")
        return Finding(
            name, missing, f"{model} has no server", "set EMBEDDING_BASE_URL to one with an OpenAI-compatible API"
        )
    return _local_model(name, model, missing=missing)


def cross_encoder() -> Finding:
    """The reranker that is to run here."""
    name, model = "RERANKER_MODEL", settings.RERANKER_MODEL
    if not model:
        return Finding(name, State.OK, "none: results are ordered by the next reranker of the chain")
    return _local_model(name, model, missing=State.DEGRADED, otherwise=", or set RERANKER_MODEL= to go without")


def rerank_server() -> Finding:
    name, address = "rerank server", settings.RERANK_BASE_URL
    if not address:
        return Finding(name, State.OK, "none: results are ordered by the next reranker of the chain")
    try:
        httpx.get(address, timeout=REACH_SECONDS)  # whatever it answers, it is there
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        remedy = "start it or correct RERANK_BASE_URL, or leave that out to go without"
        return Finding(name, State.DEGRADED, f"{address} does not answer: {one_line(error)}", remedy)
    return Finding(name, State.OK, f"{address} answers")


def language_model() -> Finding:
    name = "language model"
    if providers.generator() is None:
        detail = "none, so answers are the passages themselves and questions are not rewritten"
        remedy = "set LLM_API_KEY, or LLM_BASE_URL where a server of your own needs no key"
        return Finding(name, State.DEGRADED, detail, remedy)
    return Finding(name, State.OK, f"{settings.LLM_MODEL} at {settings.LLM_BASE_URL}, which was not asked")


def _local_model(name: str, model: str, *, missing: State, otherwise: str = "") -> Finding:
    path = local_path(model)
    if path is None:
        remedy = f"run `manage.py download_model {model}`{otherwise}"
        return Finding(name, missing, f"{model} is not on this machine", remedy)
    if not libraries_available():
        remedy = f"run `pip install 'zhiku[models]'`{otherwise}"
        return Finding(name, missing, f"{model} is in {path}, but cannot run", remedy)
    return Finding(name, State.OK, f"{model} in {path}")
