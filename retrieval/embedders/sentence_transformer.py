"""Local models through sentence-transformers, loaded on first use and from local files only.

It adds the instructions that models want before a text although their configuration does not say so.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.characters import estimate_token_ends, estimate_tokens
from retrieval.errors import ModelUnavailable, UnusableVectors, _, message_of
from retrieval.model_files import open_local


@dataclass(frozen=True, slots=True)
class Prompts:
    """Text to put before a query and before a document; empty for none."""

    query: str = ""
    document: str = ""


# From the model cards: BAAI/bge-large-zh-v1.5, BAAI/bge-large-en-v1.5, intfloat/multilingual-e5-base.
_BY_NAME = (
    ("bge-*-zh*", Prompts(query="为这个句子生成表示以用于检索相关文章：")),
    ("bge-*-en*", Prompts(query="Represent this sentence for searching relevant passages: ")),
    ("*e5-*-instruct", Prompts()),
    ("e5-*", Prompts(query="query: ", document="passage: ")),
    ("multilingual-e5-*", Prompts(query="query: ", document="passage: ")),
)


def prompts_for(model_name: str) -> Prompts:
    """The prompts of a model known by its name, whatever organisation or folder precedes it."""
    name = model_name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].lower()
    return next((prompts for pattern, prompts in _BY_NAME if fnmatchcase(name, pattern)), Prompts())


def unit_vectors(vectors: NDArray[np.float32], *, model_id: str) -> NDArray[np.float32]:
    """The rows at length 1, shape as given (n, dimension).

    Raises UnusableVectors where a row is all zeros or holds a NaN or an infinity, so that it has no direction.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unusable = ~np.isfinite(norms) | (norms == 0)
    if unusable.any():
        raise UnusableVectors(
            _(
                "model '{model_id}' returned {unusable} of {count} vectors that are zero or not finite: check its "
                "files or its server's precision settings, or choose another model",
                model_id=model_id,
                unusable=int(unusable.sum()),
                count=len(vectors),
            )
        )
    return np.asarray(vectors / norms, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class _Loaded:
    model: Any
    prompts: Prompts
    tokenizer: Any
    dimension: int


class SentenceTransformerEmbedder:
    """A sentence-transformers model by Hugging Face id, installed package or path.

    Calls from several threads are safe: the only state the library changes while encoding, the tokenizer's padding and
    truncation, is set once while loading; `count_tokens` has a tokenizer of its own.
    """

    def __init__(self, model_id: str, *, batch_size: int = 32, device: str | None = None) -> None:
        self.model_id = model_id
        self._batch_size = batch_size
        self._device = device
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None

    @property
    def dimension(self) -> int:
        return self._ready().dimension

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """L2-normalised vectors, shape (n_texts, dimension).

        Raises ModelUnavailable where the model is not here, cannot be loaded, or returned no usable vector.
        """
        loaded = self._ready()
        if not texts:
            return np.empty((0, loaded.dimension), dtype=np.float32)
        return self._encode(loaded.model.encode_document, list(texts), loaded.prompts.document)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        loaded = self._ready()
        return np.asarray(self._encode(loaded.model.encode_query, [text], loaded.prompts.query)[0], dtype=np.float32)

    def count_tokens(self, text: str) -> int:
        """The model's own tokens, without the special ones and without truncation."""
        tokenizer = self._ready().tokenizer
        if tokenizer is None:
            return estimate_tokens(text)
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    def token_ends(self, text: str) -> Sequence[int]:
        """Where each of the tokens that `count_tokens` counts ends; several that make up one character end with it."""
        tokenizer = self._ready().tokenizer
        if tokenizer is None:
            return estimate_token_ends(text)
        return [end for _start, end in tokenizer.encode(text, add_special_tokens=False).offsets]

    def _encode(self, encode: Any, texts: list[str], prompt: str) -> NDArray[np.float32]:
        try:
            vectors = encode(
                texts,
                prompt=prompt or None,  # None: the library takes the model's own
                batch_size=self._batch_size,
                show_progress_bar=False,
                normalize_embeddings=True,
            )
        except RuntimeError as error:  # torch's: out of memory, a lost device
            raise ModelUnavailable(
                _(
                    "model '{model_id}' failed on {count} texts ({error}): lower the batch size, or use device 'cpu'",
                    model_id=self.model_id,
                    count=len(texts),
                    error=message_of(error),
                )
            ) from error
        return unit_vectors(vectors, model_id=self.model_id)

    def _ready(self) -> _Loaded:
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    self._loaded = self._load()
        return self._loaded

    def _load(self) -> _Loaded:
        def open_folder(path: str) -> Any:
            from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - optional, and seconds to import

            return SentenceTransformer(path, device=self._device, local_files_only=True)

        model = open_local(
            self.model_id,
            open_folder,
            kind=_("model"),
            otherwise=_("choose the hashing embedder"),
        )
        # The first encoding sets the tokenizer's padding and truncation, which must not happen in two threads at once.
        sample = model.encode_query(["warm-up"], show_progress_bar=False)
        return _Loaded(
            model=model,
            prompts=Prompts() if any(model.prompts.values()) else prompts_for(self.model_id),
            tokenizer=_plain_tokenizer(model),
            dimension=int(sample.shape[1]),
        )


def _plain_tokenizer(model: Any) -> Any:
    """A copy of the model's fast tokenizer that neither pads nor truncates; None for a model without one."""
    original = getattr(getattr(model, "tokenizer", None), "backend_tokenizer", None)
    if original is None:
        return None
    tokenizer = type(original).from_str(original.to_str())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
