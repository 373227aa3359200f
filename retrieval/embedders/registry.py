"""Model ids and the process's embedders: one instance, and so one loaded model, for each."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from retrieval.embedders.hashing import HASHING_MODEL_ID, HashingEmbedder
from retrieval.embedders.openai_http import OPENAI_PREFIX, OpenAIEmbedder
from retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder
from retrieval.protocols import Embedder

MAX_EMBEDDERS = 4  # a large model takes more than a gigabyte


@dataclass(frozen=True, slots=True)
class EmbedderOptions:
    """What an embedder needs besides its id; each kind reads its own part."""

    base_url: str = ""  # of the OpenAI-compatible server
    api_key: str = field(default="", repr=False)  # of the same
    batch_size: int = 32  # texts a forward pass or a request
    timeout_s: float = 30.0  # of one request for documents
    query_timeout_s: float = 5.0  # of one request for a query
    device: str | None = None  # torch's name for one; None lets sentence-transformers choose
    cache_dir: Path | None = None  # the Hugging Face cache; None for its usual place


def normalize_model_id(model_id: str) -> str:
    """One spelling for one model: "hashing", "openai:MODEL", an absolute path, or the id as given; ValueError for none."""
    name = model_id.strip()
    if name.lower() == HASHING_MODEL_ID:
        return HASHING_MODEL_ID
    if name.lower().startswith(OPENAI_PREFIX):
        served = name[len(OPENAI_PREFIX) :].strip()
        name = f"{OPENAI_PREFIX}{served}" if served else ""
    elif name.startswith(("/", "./", "../", "~")):
        name = str(Path(name).expanduser().resolve())
    else:
        name = name.rstrip("/")
    if not name:
        raise ValueError(
            f"'{model_id}' names no embedding model: give a Hugging Face id, a path, openai:MODEL or hashing"
        )
    return name


@lru_cache(maxsize=MAX_EMBEDDERS)
def _made(make: Callable[..., Embedder], *arguments: str, **options: Hashable) -> Embedder:
    return make(*arguments, **options)


# The cache would make two where two threads ask at once.
_lock = threading.Lock()


def get_embedder(model_id: str, options: EmbedderOptions) -> Embedder:
    """The process's embedder for this model and these options; the model itself loads on first use."""
    name = normalize_model_id(model_id)
    with _lock:
        if name == HASHING_MODEL_ID:
            return _made(HashingEmbedder)
        if name.startswith(OPENAI_PREFIX):
            return _made(
                OpenAIEmbedder,
                name,
                base_url=options.base_url,
                api_key=options.api_key,
                batch_size=options.batch_size,
                timeout_s=options.timeout_s,
                query_timeout_s=options.query_timeout_s,
            )
        # Only what the kind reads: a new API key must not load a local model a second time.
        return _made(
            SentenceTransformerEmbedder,
            name,
            batch_size=options.batch_size,
            device=options.device,
            cache_dir=options.cache_dir,
        )
