"""Scores from a server that speaks the `POST /rerank` of Jina, Cohere and their like, or that of TEI."""

import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from retrieval.embedders.openai_http import client_for
from retrieval.errors import InvalidConfiguration, ModelTimeout, ModelUnavailable
from retrieval.execution import ModelGuard
from retrieval.messages import Message, gettext_noop, message_of
from retrieval.rerankers.guarded import UnusableAnswer, ask, relevance
from retrieval.rerankers.overlap import text_of
from retrieval.selection import ScoreScale
from retrieval.types import RerankJob

FORMS = ("jina", "cohere", "tei")

_CALLS_AT_ONCE = 16
# A little less than the time limit of a request, which begins before the call.
_PATIENT_SHARE = 0.9
_REMEDY = Message(gettext_noop("check that RERANK_BASE_URL serves it as a reranker in the chosen form"))


class HttpReranker:
    """A cross-encoder behind HTTP; one attempt a search, since the next link is at hand.

    Its scores must be probabilities from 0 to 1, as Jina, Cohere, vLLM and TEI answer by default. A server that returns
    raw logits (TEI asked for `raw_scores`, llama.cpp, a plain CrossEncoder with an identity activation) is refused,
    since no threshold would mean anything.

    Args:
        base_url: the endpoint, or the part before `/rerank`, as in "https://api.jina.ai/v1".
        api_key: sent as a bearer token; empty for none.
        model: the server's name for it; TEI serves one and needs none.
        form: "jina" (Cohere's is the same) for `documents`, "tei" for `texts`.
        timeout_s: of one request; a search that ends sooner waits no longer than that.

    Raises:
        InvalidConfiguration: there is no such form.
    """

    name = "http"
    scale = ScoreScale.CROSS_ENCODER

    def __init__(
        self, base_url: str, api_key: str = "", model: str = "", *, form: str = "jina", timeout_s: float = 5.0
    ) -> None:
        if form not in FORMS:
            raise InvalidConfiguration("form", f"RERANK_FORM is {form!r}: choose from {', '.join(FORMS)}")
        address = base_url.rstrip("/")
        self._endpoint = address if address.endswith("/rerank") else f"{address}/rerank"
        self._api_key = api_key
        self._form = form
        self._timeout_s = timeout_s
        self.model_id = model or self._endpoint
        self._model = model
        self._guard = ModelGuard(self.model_id, slots=_CALLS_AT_ONCE, patience_s=_PATIENT_SHARE * timeout_s)

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:
        """Returns shape (n_candidates,), from 0 to 1.

        Raises:
            RerankerUnavailable: the server cannot be reached, refuses, is too slow, or answers with unusable scores.
        """
        if not job.candidates:
            return np.empty(0, dtype=np.float64)
        # Servers refuse empty strings.
        texts = [text_of(candidate) or " " for candidate in job.candidates]
        end = min(deadline, time.monotonic() + self._timeout_s)
        return ask(self._guard, partial(self._rerank, job.analysis.text, texts, end), end)

    def _rerank(self, query: str, texts: Sequence[str], end: float) -> NDArray[np.float64]:
        if self._form == "tei":
            payload = {"query": query, "texts": texts, "truncate": True}
        else:
            payload = {"model": self._model, "query": query, "documents": texts}
            payload |= {"top_n": len(texts), "return_documents": False}
        scores = self._parse(self._post(payload, max(0.001, end - time.monotonic())), len(texts))
        return relevance(scores, len(texts), model=self.model_id)

    def _post(self, payload: dict[str, Any], timeout_s: float) -> Any:
        try:
            response = self._client.post(self._endpoint, json=payload, timeout=timeout_s)
        except httpx.TimeoutException as error:
            raise ModelTimeout(
                Message(
                    gettext_noop(
                        "the rerank server at {endpoint} did not answer in time: check its load, or allow more time"
                    ),
                    endpoint=self._endpoint,
                )
            ) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ModelUnavailable(
                Message(
                    gettext_noop(
                        "the rerank server at {endpoint} cannot be reached ({kind}: {error}): check that it runs and "
                        "that RERANK_BASE_URL is right"
                    ),
                    endpoint=self._endpoint,
                    kind=type(error).__name__,
                    error=message_of(error),
                )
            ) from error
        if not response.is_success:
            raise ModelUnavailable(
                Message(
                    gettext_noop(
                        "the rerank server at {endpoint} refused (HTTP {status_code}: {answer}): check RERANK_BASE_URL, "
                        "RERANK_API_KEY and the model's name"
                    ),
                    endpoint=self._endpoint,
                    status_code=response.status_code,
                    answer=response.text[:200],
                )
            )
        try:
            return response.json()
        except ValueError as error:
            raise self._unusable(Message(gettext_noop("is not JSON"))) from error

    def _parse(self, body: Any, count: int) -> list[float]:
        try:
            rows = body if self._form == "tei" else body["results"]
            key = "score" if self._form == "tei" else "relevance_score"
            pairs = sorted((int(row["index"]), float(row[key])) for row in rows)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._unusable(Message(gettext_noop("does not follow the form {form!r}"), form=self._form)) from error
        if [index for index, _ in pairs] != list(range(count)):
            raise self._unusable(
                Message(
                    gettext_noop("has {scores} scores for {count} passages, or not one for each"),
                    scores=len(pairs),
                    count=count,
                )
            )
        return [score for _, score in pairs]

    def _unusable(self, fault: str) -> UnusableAnswer:
        return UnusableAnswer(
            Message(
                gettext_noop("the answer of the rerank server at {endpoint} {fault}: {remedy}"),
                endpoint=self._endpoint,
                fault=fault,
                remedy=_REMEDY,
            )
        )

    @cached_property
    def _client(self) -> httpx.Client:
        return client_for(self, self._api_key)
