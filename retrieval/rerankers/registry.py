"""The process's rerankers that hold a model or connections: one instance, and so one breaker, for each."""

import threading
from functools import lru_cache
from pathlib import Path

from retrieval.rerankers.cross_encoder import DEFAULT_MODEL_ID, RETRY_AFTER_S, CrossEncoderReranker
from retrieval.rerankers.http import HttpReranker, RerankForm

MAX_CROSS_ENCODERS = 2  # a large model takes more than a gigabyte
MAX_SERVERS = 8

_cross_encoders = lru_cache(maxsize=MAX_CROSS_ENCODERS)(CrossEncoderReranker)
_servers = lru_cache(maxsize=MAX_SERVERS)(HttpReranker)
# The cache would make two where two threads ask at once.
_lock = threading.Lock()


def get_cross_encoder(
    model_id: str = DEFAULT_MODEL_ID,
    *,
    device: str | None = None,
    cache_dir: Path | None = None,
    batch_size: int = 8,
    retry_after_s: float = RETRY_AFTER_S,
) -> CrossEncoderReranker:
    """The process's reranker for this model and these options; the model itself loads on first use."""
    with _lock:
        return _cross_encoders(model_id, device, cache_dir, batch_size, retry_after_s)


def get_http_reranker(
    base_url: str, *, api_key: str = "", model: str = "", form: RerankForm = "jina", timeout_s: float = 5.0
) -> HttpReranker:
    """The process's reranker for this server, model and key."""
    with _lock:
        return _servers(base_url, api_key, model, form=form, timeout_s=timeout_s)
