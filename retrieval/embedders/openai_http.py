"""Embeddings from a server that speaks OpenAI's `POST /embeddings`."""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Final

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
from retrieval.servers import DIRECT, Access, quoted, refusal_of
from retrieval.usage import Use, report

OPENAI_PREFIX = "openai:"
BATCH_SIZE = 32
DOCUMENTS_TIMEOUT_S = 30.0
REMEDY = _("check EMBEDDING_BASE_URL, EMBEDDING_API_KEY and the model's name")

_RETRIED_STATUSES = {408, 429}
_BACKOFF = wait_exponential(multiplier=0.5, max=20.0) + wait_random(0.0, 0.5)


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long a call may take: a query's caller waits for it, a document's does not."""

    attempts: int
    timeout_s: float
    longest_wait_s: float


_FOR_QUERIES = _Patience(attempts=2, timeout_s=5.0, longest_wait_s=2.0)


class _Transient(Exception):
    """A failure that a later attempt may not meet."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """What a server is asked for.

    Attributes:
        model: its name for the model; blank: the id without "openai:".
        dimensions: of its vectors; None: the model's own.
        prompts: before a query and before a document; None: those that the model's name is known to want.
        timeout_s: for a request with documents.
    """

    model: str = ""
    dimensions: int | None = None
    prompts: tuple[str, str] | None = None
    timeout_s: float = DOCUMENTS_TIMEOUT_S


AS_NAMED: Final = EmbeddingRequest()


class OpenAIEmbedder:
    """Embeds over HTTP; bounded retries with backoff on 408, 429, 5xx and lost connections.

    `base_url` is the part before `/embeddings`, as in "https://api.openai.com/v1"; the key, if any, is sent as a bearer
    token; `batch_size` is texts a request.
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
        batch_size: int = BATCH_SIZE,
        request: EmbeddingRequest = AS_NAMED,
        access: Access = DIRECT,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.model_id = model_id
        self._model = request.model or model_id.removeprefix(OPENAI_PREFIX)
        known = prompts_for(self._model)
        self._query_prompt, self._document_prompt = request.prompts or (known.query, known.document)
        self._asked = {} if request.dimensions is None else {"dimensions": request.dimensions}
        self._for_documents = _Patience(attempts=5, timeout_s=request.timeout_s, longest_wait_s=60.0)
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._batch_size = batch_size
        self._access = access
        self._remedy = access.remedy or REMEDY
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
        prompted = [self._document_prompt + text for text in texts]
        starts = range(0, len(prompted), self._batch_size)
        return np.concatenate(
            [self._embed(prompted[start : start + self._batch_size], self._for_documents) for start in starts]
        )

    def embed_query(self, text: str) -> NDArray[np.float32]:
        return np.asarray(self._embed([self._query_prompt + text], _FOR_QUERIES)[0], dtype=np.float32)

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
                    "the embedding server at {base_url} failed {attempts} times ({error}): see whether it runs, and "
                    "{remedy}",
                    base_url=self._base_url,
                    attempts=patience.attempts,
                    error=message_of(error),
                    remedy=self._remedy,
                )
            ) from error
        vectors = unit_vectors(self._parse(body, len(texts)), model_id=self.model_id)
        told = input_tokens(body)
        tokens = sum(map(estimate_tokens, texts)) if told is None else told
        report(Use("embedding", self.model_id, input_tokens=tokens, is_estimated=told is None))
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
        payload: dict[str, Any] = {
            "model": self._model,
            "input": [text or " " for text in texts],
            "encoding_format": "float",
        }
        payload |= self._asked
        try:
            response = self._client.post(f"{self._base_url}/embeddings", json=payload, timeout=patience.timeout_s)
        except httpx.TransportError as error:
            if (refusal := refusal_of(error)) is not None:
                raise ModelUnavailable(refusal) from error
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
                    "{remedy}",
                    base_url=self._base_url,
                    model=self._model,
                    status_code=response.status_code,
                    answer=quoted(response.text, self._api_key),
                    remedy=self._remedy,
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
                "the answer of the embedding server at {base_url} {fault}: see whether it serves '{model}' as an "
                "embedding model, and {remedy}",
                base_url=self._base_url,
                fault=fault,
                model=self._model,
                remedy=self._remedy,
            )
        )

    @cached_property
    def _client(self) -> httpx.Client:
        if self._access.problem is not None:
            raise ModelUnavailable(self._access.problem)
        if not self._base_url:
            raise ModelUnavailable(
                _(
                    "model '{model_id}' has no server: set EMBEDDING_BASE_URL (for example "
                    "https://api.openai.com/v1), or choose another embedder",
                    model_id=self.model_id,
                )
            )
        return client_for(self, self._access, self._api_key)


def input_tokens(body: Any) -> int | None:
    """What an answer of an embedding server says that it has read; None where it does not."""
    usage = body.get("usage") if isinstance(body, dict) else None
    counts = [usage.get(name) for name in ("prompt_tokens", "total_tokens")] if isinstance(usage, dict) else []
    return next((count for count in counts if isinstance(count, int) and count > 0), None)


def client_for(owner: object, access: Access, api_key: str) -> httpx.Client:
    """Connections that are closed when their owner goes; an empty key is not sent."""
    client: httpx.Client = (access.connect or httpx.Client)()
    if api_key:
        client.headers["Authorization"] = f"Bearer {api_key}"
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
