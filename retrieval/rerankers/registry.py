"""The process's cross-encoders: one instance, and so one loaded model and one breaker, for each."""

import threading
from functools import lru_cache
from pathlib import Path

from retrieval.rerankers.cross_encoder import DEFAULT_MODEL_ID, RETRY_AFTER_S, CrossEncoderReranker

MAX_CROSS_ENCODERS = 2  # a large model takes more than a gigabyte

_cross_encoders = lru_cache(maxsize=MAX_CROSS_ENCODERS)(CrossEncoderReranker)
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
