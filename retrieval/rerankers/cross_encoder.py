"""Models that read query and passage together: local ones, loaded on first use, and those of a `/rerank` server.

A process has one instance, and so one loaded model and one breaker, for each local model.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from retrieval.characters import estimate_tokens
from retrieval.embedders.openai_http import client_for
from retrieval.errors import (
    DegradationCode,
    InvalidConfiguration,
    ModelTimeout,
    ModelUnavailable,
    RerankerUnavailable,
    _,
    message_of,
)
from retrieval.execution import ModelGuard
from retrieval.model_files import open_local
from retrieval.rerankers.chain import UnusableAnswer, ask, out_of_time, relevance, text_of
from retrieval.rerankers.forms import FORMS
from retrieval.selection import ScoreScale
from retrieval.servers import DIRECT, Access, quoted, refusal_of
from retrieval.types import RerankJob
from retrieval.usage import Use, report

DEFAULT_MODEL_ID = "BAAI/bge-reranker-base"
RETRY_AFTER_S = 300.0
PACE_KEPT_S = 30.0
PATIENCE_S = 5.0
RERANK_TIMEOUT_S = 5.0
RERANK_REMEDY = _("check RERANK_BASE_URL, RERANK_FORM, RERANK_API_KEY and the model's name")

_Pair = tuple[str, str]


class CrossEncoderReranker:
    """A sentence-transformers CrossEncoder by Hugging Face id, installed package or path; scores are sigmoids, 0 to 1.

    One job at a time is predicted, batch by batch: a forward pass uses all cores. The first job also loads the model,
    within its deadline as far as its caller is concerned. A call that hangs, or the loading of a model, keeps the others
    waiting until the breaker opens. A job that the pace of the last half minute cannot finish in time is not begun, so that
    impatient searches neither use the processor in vain nor open the breaker for patient ones.

    A failed load is remembered for `retry_after_s`; a job that takes longer than `patience_s` counts as hanging,
    however little time its search has. The model has one label; `batch_size` is pairs a forward pass.
    """

    name = "cross_encoder"
    scale = ScoreScale.CROSS_ENCODER

    def __init__(
        self,
        model_id: str = DEFAULT_MODEL_ID,
        device: str | None = None,
        *,
        batch_size: int = 8,
        retry_after_s: float = RETRY_AFTER_S,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model_id = model_id
        self._device = device
        self._batch_size = batch_size
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._guard = ModelGuard(model_id, slots=1, patience_s=patience_s)
        self._lock = threading.Lock()
        self._model: Any = None
        self._load_fault = ""
        self._next_load = 0.0
        # The best seen of late, which a slow moment must not replace for long.
        self._seconds_per_pair = 0.0
        self._pace_ends = 0.0

    @property
    def is_loaded(self) -> bool:
        return self._model is not None

    def load(self, deadline: float) -> None:
        """Loads the model, for a caller that has more time than a search has; loading goes on after the deadline.

        Raises RerankerUnavailable where it cannot be loaded, or could not a short while ago, or not by the deadline.
        """
        if not self.is_loaded:
            self._refuse_after_failed_load()
            ask(self._guard, self._ready, deadline)

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:
        """Returns shape (n_candidates,), from 0 to 1.

        Raises RerankerUnavailable where the model is not here, fails, or cannot score all candidates by the deadline.
        """
        if not job.candidates:
            return np.empty(0, dtype=np.float64)
        self._refuse_after_failed_load()
        now = self._clock()
        if now < self._pace_ends and now + self._seconds_per_pair * len(job.candidates) > deadline:
            raise out_of_time(self.model_id)
        pairs = [(job.analysis.text, text_of(candidate, job.analysis.text)) for candidate in job.candidates]
        scores = ask(self._guard, partial(self._predict, pairs, deadline), deadline)
        if scores is None:
            raise out_of_time(self.model_id)
        return scores

    def _predict(self, pairs: Sequence[_Pair], deadline: float) -> NDArray[np.float64] | None:
        """The scores, or None where a model that does answer takes longer than there is time."""
        model = self._ready()
        scores = np.empty(len(pairs), dtype=np.float64)
        # Texts of like length share a batch, which is padded to its longest.
        order = sorted(range(len(pairs)), key=lambda row: -len(pairs[row][1]))
        for start in range(0, len(pairs), self._batch_size):
            began = self._clock()
            if began >= deadline:
                return None
            rows = order[start : start + self._batch_size]
            scores[rows] = self._predict_batch(model, [pairs[row] for row in rows])
            now = self._clock()
            seconds = (now - began) / len(rows)
            if now >= self._pace_ends or seconds < self._seconds_per_pair:
                self._seconds_per_pair, self._pace_ends = seconds, now + PACE_KEPT_S
        return scores

    def _predict_batch(self, model: Any, pairs: list[_Pair]) -> NDArray[np.float64]:
        try:
            logits = model.predict(pairs, batch_size=len(pairs), show_progress_bar=False)
        except (RuntimeError, IndexError) as error:  # torch's: out of memory, a lost device, a position out of range
            raise UnusableAnswer(
                _(
                    "reranker {model_id!r} failed on {count} passages ({error}): use device 'cpu', or another model",
                    model_id=self.model_id,
                    count=len(pairs),
                    error=message_of(error),
                )
            ) from error
        with np.errstate(over="ignore"):
            scores = 1 / (1 + np.exp(-np.asarray(logits, dtype=np.float64)))
        return relevance(scores, len(pairs), model=self.model_id)

    def _ready(self) -> Any:
        if self._model is None:
            with self._lock:
                if self._model is None:
                    self._refuse_after_failed_load()
                    self._model = self._load()
        return self._model

    def _refuse_after_failed_load(self) -> None:
        if self._load_fault and self._clock() < self._next_load:
            raise RerankerUnavailable(DegradationCode.RERANKER_UNAVAILABLE, self._load_fault)

    def _load(self) -> Any:
        try:
            model = self._open()
        except ModelUnavailable as error:
            reason = _(
                "{error}; it is tried again after {retry_after_s:g} s",
                error=message_of(error),
                retry_after_s=self._retry_after_s,
            )
            self._load_fault, self._next_load = reason, self._clock() + self._retry_after_s
            raise RerankerUnavailable(DegradationCode.RERANKER_UNAVAILABLE, reason) from error
        self._load_fault = ""
        return model

    def _open(self) -> Any:
        def open_folder(path: str) -> Any:
            from sentence_transformers import CrossEncoder  # noqa: PLC0415 - optional, and seconds to import
            from torch.nn import Identity  # noqa: PLC0415 - optional

            # Whatever activation a model is stored with: in single precision a sigmoid is 1 from a logit of 17 on, and
            # there are models that exceed it.
            return CrossEncoder(path, device=self._device, local_files_only=True, activation_fn=Identity())

        model = open_local(
            self.model_id,
            open_folder,
            kind=_("reranker"),
            otherwise=_("set RERANKER_MODEL= to go without"),
        )
        # The library puts an untrained head on an embedding model and says so in its log only.
        architectures = model.config.architectures or ()
        has_head = len(model) > 1 or any(each.endswith("ForSequenceClassification") for each in architectures)
        if not (has_head and model.num_labels == 1):
            raise ModelUnavailable(
                _(
                    "model {model_id!r} is no cross-encoder with one label: set RERANKER_MODEL to one, such as "
                    "{example}",
                    model_id=self.model_id,
                    example=DEFAULT_MODEL_ID,
                )
            )
        return model


# No more, since a large model takes more than a gigabyte.
_cross_encoders = lru_cache(maxsize=2)(CrossEncoderReranker)
# The cache would make two where two threads ask at once.
_lock = threading.Lock()


def get_cross_encoder(model_id: str) -> CrossEncoderReranker:
    """The process's reranker for this model; the model itself loads on first use."""
    with _lock:
        return _cross_encoders(model_id)


# A little less than the time limit of a request, which begins before the call.
_PATIENT_SHARE = 0.9


class HttpReranker:
    """A cross-encoder behind HTTP; one attempt a search, since the next link is at hand.

    Its scores must be probabilities from 0 to 1, as Jina, Cohere, vLLM and TEI answer by default. A server that returns
    raw logits (TEI asked for `raw_scores`, llama.cpp, a plain CrossEncoder with an identity activation) is refused,
    since no threshold would mean anything.

    The address is the endpoint, or the part before `/rerank`, as in "https://api.jina.ai/v1"; the key, if any, is sent
    as a bearer token. The form is one of FORMS; InvalidConfiguration is raised for another. A search that ends before
    `timeout_s` waits no longer than that.
    """

    name = "http"
    scale = ScoreScale.CROSS_ENCODER

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        model: str = "",
        *,
        form: str = "jina",
        timeout_s: float = RERANK_TIMEOUT_S,
        access: Access = DIRECT,
    ) -> None:
        if form not in FORMS:
            raise InvalidConfiguration("form", f"RERANK_FORM is {form!r}: choose from {', '.join(FORMS)}")
        self._form = FORMS[form]
        self._form_name = form
        self._endpoint = self._form.url(base_url)
        self._api_key = api_key
        self._timeout_s = timeout_s
        self.model_id = access.model_id or model or self._endpoint
        self._model = model
        self._access = access
        self._remedy = access.remedy or RERANK_REMEDY
        self._guard = ModelGuard(self.model_id, slots=16, patience_s=_PATIENT_SHARE * timeout_s)

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:
        """Returns shape (n_candidates,), from 0 to 1.

        Raises RerankerUnavailable where the server cannot be reached, refuses, is too slow, or answers with unusable
        scores.
        """
        if not job.candidates:
            return np.empty(0, dtype=np.float64)
        if self._access.problem is not None:
            raise RerankerUnavailable(DegradationCode.RERANKER_UNAVAILABLE, self._access.problem)
        # Servers refuse empty strings.
        texts = [text_of(candidate, job.analysis.text) or " " for candidate in job.candidates]
        end = min(deadline, time.monotonic() + self._timeout_s)
        return ask(self._guard, partial(self._rerank, job.analysis.text, texts, end), end)

    def _rerank(self, query: str, texts: Sequence[str], end: float) -> NDArray[np.float64]:
        body = self._form.body(self._model, query, texts)
        answer = self._post(body, max(0.001, end - time.monotonic()))
        scores = self._parse(answer, len(texts))
        told = self._form.tokens(answer)
        tokens = estimate_tokens(query) * len(texts) + sum(map(estimate_tokens, texts)) if told is None else told
        report(Use("rerank", self.model_id, input_tokens=tokens, is_estimated=told is None))
        return relevance(scores, len(texts), model=self.model_id)

    def _post(self, payload: dict[str, Any], timeout_s: float) -> Any:
        try:
            response = self._client.post(self._endpoint, json=payload, timeout=timeout_s)
        except httpx.TimeoutException as error:
            raise ModelTimeout(
                _(
                    "the rerank server at {endpoint} did not answer in time: check its load, or allow more time",
                    endpoint=self._endpoint,
                )
            ) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            if (refusal := refusal_of(error)) is not None:
                raise ModelUnavailable(refusal) from error
            raise ModelUnavailable(
                _(
                    "the rerank server at {endpoint} cannot be reached ({kind}: {error}): see whether it runs, and "
                    "{remedy}",
                    endpoint=self._endpoint,
                    kind=type(error).__name__,
                    error=message_of(error),
                    remedy=self._remedy,
                )
            ) from error
        if not response.is_success:
            raise ModelUnavailable(
                _(
                    "the rerank server at {endpoint} refused (HTTP {status_code}: {answer}): {remedy}",
                    endpoint=self._endpoint,
                    status_code=response.status_code,
                    answer=quoted(response.text, self._api_key),
                    remedy=self._remedy,
                )
            )
        try:
            return response.json()
        except ValueError as error:
            raise self._unusable(_("is not JSON")) from error

    def _parse(self, body: Any, count: int) -> list[float]:
        try:
            pairs = self._form.pairs(body)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self._unusable(_("does not follow the form {form!r}", form=self._form_name)) from error
        if [index for index, _ in pairs] != list(range(count)):
            raise self._unusable(
                _("has {scores} scores for {count} passages, or not one for each", scores=len(pairs), count=count)
            )
        return [score for _, score in pairs]

    def _unusable(self, fault: str) -> UnusableAnswer:
        return UnusableAnswer(
            _(
                "the answer of the rerank server at {endpoint} {fault}: see whether it is a reranker of the chosen form, "
                "and {remedy}",
                endpoint=self._endpoint,
                fault=fault,
                remedy=self._remedy,
            )
        )

    @cached_property
    def _client(self) -> httpx.Client:
        return client_for(self, self._access, self._api_key)
