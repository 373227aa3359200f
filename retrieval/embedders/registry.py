"""Ids of embedding models, and the process's embedders of local ones: one instance, and so one loaded model, for each."""

import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from retrieval.embedders.hashing import HASHING_MODEL_ID, HashingEmbedder
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder
from retrieval.protocols import Embedder

# Of rows that people made; no id of the hub holds a colon.
MODEL_PREFIX = "model:"
MAX_EMBEDDERS = 4  # a large model takes more than a gigabyte


def normalize_model_id(model_id: str) -> str:
    """One spelling for one model: "hashing", "openai:MODEL", "model:SLUG", an absolute path or the id as given.

    Raises ValueError where it is blank.
    """
    name = model_id.strip()
    if name.lower() == HASHING_MODEL_ID:
        return HASHING_MODEL_ID
    prefix = next((each for each in (OPENAI_PREFIX, MODEL_PREFIX) if name.lower().startswith(each)), "")
    if prefix:
        served = name[len(prefix) :].strip()
        name = f"{prefix}{served}" if served else ""
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
def _made(make: Callable[..., Embedder], *arguments: str) -> Embedder:
    return make(*arguments)


# The cache would make two where two threads ask at once.
_lock = threading.Lock()


def get_embedder(model_id: str) -> Embedder:
    """The process's embedder of local weights, loaded at first use, or the hashing one."""
    name = normalize_model_id(model_id)
    with _lock:
        return _made(HashingEmbedder) if name == HASHING_MODEL_ID else _made(SentenceTransformerEmbedder, name)
