"""Embeddings from a server that speaks OpenAI's `POST /embeddings`."""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from retrieval.characters import estimate_token_ends, estimate_tokens
from retrieval.embedders.sentence_transformer import prompts_for, unit_vectors
from retrieval.errors import ModelUnavailable, UnusableVectors, _, message_of

OPENAI_PREFIX = "openai:"

_RETRIED_STATUSES = {408, 429}
_BACKOFF = wait_exponential(multiplier=0.5, max=20.0) + wait_random(0.0, 0.5)


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long a call may take: a query's caller waits for it, a document's does not."""

    attempts: int
    timeout_s: float
    longest_wait_s: float


_FOR_DOCUMENTS = _Patience(attempts=5, timeout_s=30.0, longest_wait_s=60.0)
_FOR_QUERIES = _Patience(attempts=2, timeout_s=5.0, longest_wait_s=2.0)


class _Transient(Exception):
    """A failure that a later attempt may not meet."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class OpenAIEmbedder:
    """Embeds over HTTP; bounded retries with backoff on 408, 429, 5xx and lost connections.

    The model id is "openai:" and the server's name for the model; `base_url` is the part before `/embeddings`, as in
    "https://api.openai.com/v1"; the key, if any, is sent as a bearer token.
    """

    is_loaded = True
    # The protocol has no tokenizer.
    count_tokens = staticmethod(estimate_tokens)
    token_ends = staticmethod(estimate_token_ends)

    def __init__(
        self,
        model_id: str,
        *,
        base_url: str,
        api_key: str = "",
        batch_size: int = 32,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.model_id = model_id
        self._model = model_id.removeprefix(OPENAI_PREFIX)
        self._prompts = prompts_for(self._model)
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._batch_size = batch_size
        self._sleep = sleep
        self._dimension: int | None = None

    @property
    def dimension(self) -> int:
        """Asks the server once."""
        if self._dimension is None:
            return int(self._embed(["dimension"], _FOR_QUERIES).shape[1])
        return self._dimension

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """L2-normalised vectors, shape (n_texts, dimension).

        Raises ModelUnavailable where the server cannot be reached, refuses, or answers with unusable vectors.
        """
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        prompted = [self._prompts.document + text for text in texts]
        starts = range(0, len(prompted), self._batch_size)
        return np.concatenate(
            [self._embed(prompted[start : start + self._batch_size], _FOR_DOCUMENTS) for start in starts]
        )

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return np.asarray(self._embed([self._prompts.query + text], _FOR_QUERIES)[0], dtype=np.float32)

    def _embed(self, texts: list[str], patience: _Patience) -> NDArray[np.float32]:
        retrying = Retrying(
            stop=stop_after_attempt(patience.attempts),
            wait=_wait,
            retry=retry_if_exception_type(_Transient),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            body = retrying(self._post, texts, patience)
        except _Transient as error:
            raise ModelUnavailable(
                _(
                    "the embedding server at {base_url} failed {attempts} times ({error}): check that it runs and "
                    "that EMBEDDING_BASE_URL is right",
                    base_url=self._base_url,
                    attempts=patience.attempts,
                    error=message_of(error),
                )
            ) from error
        vectors = unit_vectors(self._parse(body, len(texts)), model_id=self.model_id)
        dimension = vectors.shape[1]
        before, self._dimension = self._dimension, dimension
        # Which of the two is wrong is not known, so the newer one counts from now on.
        if before not in (None, dimension):
            raise self._unusable(
                _("has {dimension} dimensions after {before} before", dimension=dimension, before=before)
            )
        return vectors

    def _post(self, texts: list[str], patience: _Patience) -> Any:
        # The API refuses empty strings.
        payload = {"model": self._model, "input": [text or " " for text in texts], "encoding_format": "float"}
        try:
            response = self._client.post(f"{self._base_url}/embeddings", json=payload, timeout=patience.timeout_s)
        except httpx.TransportError as error:
            raise _Transient(f"{type(error).__name__}: {error}") from error
        if response.status_code in _RETRIED_STATUSES or response.status_code >= 500:
            wait_s = _retry_after(response)
            if wait_s is None or wait_s <= patience.longest_wait_s:
                raise _Transient(f"HTTP {response.status_code}", wait_s)
            raise ModelUnavailable(
                _(
                    "the embedding server at {base_url} asks to wait {wait_s:.0f} s (HTTP {status_code}): try again "
                    "then, or raise its rate limit",
                    base_url=self._base_url,
                    wait_s=wait_s,
                    status_code=response.status_code,
                )
            )
        if not response.is_success:
            raise ModelUnavailable(
                _(
                    "the embedding server at {base_url} refused model '{model}' (HTTP {status_code}: {answer}): "
                    "check EMBEDDING_BASE_URL, EMBEDDING_API_KEY and the model's name",
                    base_url=self._base_url,
                    model=self._model,
                    status_code=response.status_code,
                    answer=response.text[:200],
                )
            )
        try:
            return response.json()
        except ValueError as error:
            raise self._unusable(_("is not JSON")) from error

    def _parse(self, body: Any, count: int) -> NDArray[np.float32]:
        try:
            rows = {int(item.get("index", place)): item["embedding"] for place, item in enumerate(body["data"])}
            vectors = np.array([rows[index] for index in sorted(rows)], dtype=np.float32)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._unusable(_("does not follow OpenAI's embeddings API")) from error
        if sorted(rows) != list(range(count)):
            raise self._unusable(_("has {vectors} vectors for {count} texts", vectors=len(rows), count=count))
        if vectors.ndim != 2 or vectors.shape[1] == 0:
            raise self._unusable(_("holds no vectors of numbers"))
        return vectors

    def _unusable(self, fault: str) -> UnusableVectors:
        return UnusableVectors(
            _(
                "the answer of the embedding server at {base_url} {fault}: check that EMBEDDING_BASE_URL serves "
                "'{model}' as an embedding model",
                base_url=self._base_url,
                fault=fault,
                model=self._model,
            )
        )

    @cached_property
    def _client(self) -> httpx.Client:
        if not self._base_url:
            raise ModelUnavailable(
                _(
                    "model '{model_id}' has no server: set EMBEDDING_BASE_URL (for example "
                    "https://api.openai.com/v1), or choose another embedder",
                    model_id=self.model_id,
                )
            )
        return client_for(self, self._api_key)


def client_for(owner: object, api_key: str) -> httpx.Client:
    """Connections that are closed when their owner goes; an empty key is not sent."""
    client = httpx.Client(headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    weakref.finalize(owner, client.close)
    return client


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, _Transient) and error.retry_after_s is not None:
        return error.retry_after_s
    return _BACKOFF(state)


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds from a Retry-After header, which holds a number of them or a date."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (moment - datetime.now(moment.tzinfo or UTC)).total_seconds())
