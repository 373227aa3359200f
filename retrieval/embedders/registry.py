"""Model ids and the process's embedders: one instance, and so one loaded model, for each."""

import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from retrieval.embedders.hashing import HASHING_MODEL_ID, HashingEmbedder
from retrieval.embedders.openai_http import OPENAI_PREFIX, OpenAIEmbedder
from retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder
from retrieval.protocols import Embedder

MAX_EMBEDDERS = 4  # a large model takes more than a gigabyte


def normalize_model_id(model_id: str) -> str:
    """One spelling for one model: "hashing", "openai:MODEL", an absolute path or the id as given; ValueError: blank."""
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
def _made(make: Callable[..., Embedder], *arguments: str, **options: str) -> Embedder:
    return make(*arguments, **options)


# The cache would make two where two threads ask at once.
_lock = threading.Lock()


def get_embedder(model_id: str, base_url: str = "", api_key: str = "") -> Embedder:
    """The process's embedder of a model, loaded at first use; address and key are an OpenAI-compatible server's."""
    name = normalize_model_id(model_id)
    with _lock:
        if name == HASHING_MODEL_ID:
            return _made(HashingEmbedder)
        if name.startswith(OPENAI_PREFIX):
            return _made(OpenAIEmbedder, name, base_url=base_url, api_key=api_key)
        # Without the key: a new one must not load a local model a second time.
        return _made(SentenceTransformerEmbedder, name)
