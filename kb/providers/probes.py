"""Asks a model something small and reports the outcome as the provider gave it, for whoever sets one up."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import numpy as np
from numpy.typing import NDArray

from kb.base.findings import gettext_noop
from kb.base.net.addresses import FetchError
from kb.providers.clients import http_client, message_of_fetch, openai_client
from kb.providers.endpoints import Endpoint
from kb.providers.presets import LOCAL, preset_of
from kb.providers.recommended import MODELS, Role
from retrieval.embedders.registry import get_embedder
from retrieval.errors import Message, ModelUnavailable, RerankerUnavailable, message_of, storable
from retrieval.execution import ModelGuard
from retrieval.model_files import installed_path
from retrieval.rerankers.cross_encoder import get_cross_encoder
from retrieval.rerankers.forms import FORMS
from retrieval.types import Analysis, Candidate, Passage, RerankJob

SECONDS: Final = 15.0
LONGEST_QUOTE: Final = 400
MOST_BYTES: Final = 4 * 1024**2
MOST_MODELS: Final = 1_000
MOST_DIMENSIONS: Final = 4_000  # of a vector that PostgreSQL can index
LOAD_SECONDS: Final = 60.0  # for the weights of a local model
WORDS: Final = 60

QUESTION: Final = "Reply with one short sentence: what is a knowledge base?"
TEXTS: Final = ("Annual leave is fifteen days.", "The printer is on the third floor.")
QUERY: Final = "How many days of annual leave are there?"

REMEDIES: Final[Mapping[str, str]] = {
    "key": gettext_noop("The key is refused: copy it again where it was made, and check that it may use this model."),
    "not_found": gettext_noop(
        "There is no such model, or nothing at this address: check the model’s name and the address, which ends where the "
        "provider’s paths begin, often in /v1."
    ),
    "limit": gettext_noop("The provider limits requests, or the account has no credit left: wait, or top it up."),
    "request": gettext_noop(
        "The server does not take the request: check the model’s name, and that it serves this role."
    ),
    "server": gettext_noop("The server fails: try again in a moment, or look into its log."),
    "unreachable": gettext_noop(
        "The server cannot be reached: check the address, and that the server runs and listens there."
    ),
    "timeout": gettext_noop(
        "No answer within {seconds} seconds: check the server’s load, and test again if it has just been started."
    ),
    "form": gettext_noop("The answer has another form than expected: check the provider, the address and the role."),
    "moved": gettext_noop("The server leads to another address: give the one that it names."),
    "no_embedding": gettext_noop("It gives different texts the same vector: choose an embedding model."),
    "too_wide": gettext_noop("Vectors may have {most} dimensions at most: choose a smaller model."),
    "no_reranker": gettext_noop("It prefers the passage that does not answer: choose a reranker."),
    "no_relevance": gettext_noop("Its scores are not from 0 to 1: have the server apply the sigmoid, not raw scores."),
    "no_answer": gettext_noop("It answers without text: choose a chat model."),
    "private_model": gettext_noop("If its server is there, tick the box below the address, and test again."),
    "local": gettext_noop("Download its weights first, or choose another model."),
}
PRIVATE: Final = "private_model"  # of FetchError
# For superusers, who may confirm it.
PRIVATE_ADDRESS: Final = gettext_noop("{host} is at {address}, which is a private address.")
_BY_STATUS: Final = {401: "key", 403: "key", 404: "not_found", 405: "not_found", 402: "limit", 429: "limit"}


@dataclass(frozen=True, slots=True)
class Probe:
    """What a model answered, or why it did not.

    Attributes:
        latency_ms: until the whole answer; of chat until its first token.
        dimension: of embeddings.
        words: the first of a chat's answer.
        scores: of a reranker, for the passage that answers and for one that does not.
        error: as it came from the provider, with its status, shortened and without the key.
        remedy: what to do about that, a message of REMEDIES.
        is_private: whether the address has to be confirmed first.
    """

    latency_ms: int | None = None
    dimension: int | None = None
    words: str = ""
    scores: tuple[float, ...] = ()
    error: str = ""
    remedy: str = ""
    is_private: bool = False

    @property
    def ok(self) -> bool:
        return not self.error


class ProbeFailed(Exception):
    """What the provider said, and the remedy."""

    def __init__(self, error: str, code: str, **values: str | int) -> None:
        self.error, self.code = error, code
        self.remedy = Message(REMEDIES[code], **values) if code in REMEDIES else ""
        super().__init__(error)


def probe(endpoint: Endpoint) -> Probe:
    """Asks a model once, within SECONDS, without a retry that would hide a fault."""
    ask = _LOCAL[endpoint.role] if endpoint.provider == LOCAL else _ASKED[endpoint.role]
    try:
        return ask(endpoint)
    except ProbeFailed as failure:
        return Probe(error=failure.error, remedy=failure.remedy, is_private=failure.code == PRIVATE)


def list_models(endpoint: Endpoint) -> list[str]:
    """The names of the models that a server has for a role, or all where none is known to be for it; raises ProbeFailed."""
    preset, role = preset_of(endpoint.provider), Role(endpoint.role)
    if preset.key == LOCAL:
        return [each.model_id for each in MODELS if each.role == role and installed_path(each.model_id)]
    address = endpoint.base_url.strip().rstrip("/")
    if role in preset.roles and address == preset.roles[role].base_url:
        address = preset.base_url  # that of reranking has no list
    if preset.listing == "/info":
        return [str(_member(_asked(endpoint, "GET", f"{address.removesuffix('/v1')}/info"), "model_id", endpoint))]
    rows = _member(_asked(endpoint, "GET", f"{address}{preset.listing or '/models'}"), "data", endpoint)
    try:
        names = sorted({str(row["id"]) for row in rows})
    except (LookupError, TypeError) as error:
        raise ProbeFailed(_quoted(str(rows), endpoint), "form") from error
    return [name for name in names if _role_by_name(name) == role][:MOST_MODELS] or names[:MOST_MODELS]


def _role_by_name(name: str) -> Role:
    if re.search("rerank", name, re.IGNORECASE):
        return Role.RERANK
    return Role.EMBEDDING if re.search(r"embed|\b(bge|gte|e5|bce)\b|minilm", name, re.IGNORECASE) else Role.CHAT


def _embedding(endpoint: Endpoint) -> Probe:
    started = time.monotonic()
    body = {"model": endpoint.model, "input": list(TEXTS), "encoding_format": "float"}
    answer = _asked(endpoint, "POST", f"{endpoint.base_url.strip().rstrip('/')}/embeddings", body)
    latency = _since(started)
    rows = _member(answer, "data", endpoint)
    try:
        vectors = np.array([row["embedding"] for row in rows], dtype=np.float64)
    except (LookupError, TypeError, ValueError) as error:
        raise ProbeFailed(_quoted(json.dumps(answer), endpoint), "form") from error
    return _of_vectors(vectors, endpoint, latency)


def _of_vectors(vectors: NDArray[np.float64], endpoint: Endpoint, latency: int) -> Probe:
    if vectors.ndim != 2 or vectors.shape[0] != len(TEXTS) or not vectors.shape[1] or not np.isfinite(vectors).all():
        raise ProbeFailed(_quoted(f"shape {vectors.shape}", endpoint), "form")
    dimension = vectors.shape[1]
    if dimension > MOST_DIMENSIONS:
        raise ProbeFailed(f"{dimension}", "too_wide", most=MOST_DIMENSIONS)
    if np.allclose(vectors[0], vectors[1]):
        raise ProbeFailed(_quoted(str(vectors[0][:3].tolist()), endpoint), "no_embedding")
    return Probe(latency, dimension=dimension)


def _rerank(endpoint: Endpoint) -> Probe:
    form = FORMS[endpoint.options.get("form", "jina")]
    started = time.monotonic()
    answer = _asked(endpoint, "POST", form.url(endpoint.base_url), form.body(endpoint.model, QUERY, TEXTS))
    latency = _since(started)
    try:
        pairs = form.pairs(answer)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ProbeFailed(_quoted(json.dumps(answer), endpoint), "form") from error
    if [place for place, _ in pairs] != list(range(len(TEXTS))):
        raise ProbeFailed(_quoted(json.dumps(answer), endpoint), "form")
    return _of_scores([score for _, score in pairs], latency)


def _of_scores(scores: Sequence[float], latency: int) -> Probe:
    shown = ", ".join(f"{score:.3f}" for score in scores)
    if not all(0.0 <= score <= 1.0 for score in scores):
        raise ProbeFailed(shown, "no_relevance")
    if scores[0] <= scores[1]:
        raise ProbeFailed(shown, "no_reranker")
    return Probe(latency, scores=tuple(scores))


def _chat(endpoint: Endpoint) -> Probe:
    import httpx2  # noqa: PLC0415 - as slow to import as what it belongs to
    import openai  # noqa: PLC0415 - slow to import

    deadline, temperature = time.monotonic() + SECONDS, endpoint.options.get("temperature", 0.0)
    options: Any = {} if temperature is None else {"temperature": temperature}
    try:
        with (
            openai_client(endpoint) as http,
            openai.OpenAI(
                base_url=endpoint.base_url.strip(),
                api_key=endpoint.api_key or "none",
                max_retries=0,
                timeout=SECONDS,
                http_client=http,
            ) as client,
        ):
            started = time.monotonic()
            asked = client.chat.completions.with_streaming_response.create(
                model=endpoint.model, messages=[{"role": "user", "content": QUESTION}], stream=True, **options
            )
            with asked as response:
                return _of_pieces(_pieces(response.iter_bytes(), deadline), started, endpoint)
    except openai.APIStatusError as error:
        raise _refused(error.status_code, error.response.text, endpoint) from None  # which may quote the key
    except (openai.APITimeoutError, httpx2.TimeoutException, TimeoutError) as error:
        raise _too_late() from error
    except (openai.APIConnectionError, httpx2.RequestError) as error:
        raise _unreachable(error, endpoint) from error
    except (openai.OpenAIError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ProbeFailed(_quoted(str(error), endpoint), "form") from error


def _pieces(chunks: Iterable[bytes], deadline: float) -> Iterator[tuple[str, bool]]:
    """The text of each event, and whether the model thinks or says something in it; TimeoutError after the deadline."""
    rest = b""
    for chunk in chunks:
        if time.monotonic() > deadline:
            raise TimeoutError
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue
            for choice in json.loads(data)["choices"][:1]:
                delta = choice.get("delta") or {}
                text = str(delta.get("content") or "")
                yield text, bool(text or delta.get("reasoning_content"))


def _of_pieces(pieces: Iterator[tuple[str, bool]], started: float, endpoint: Endpoint) -> Probe:
    words, thinks, first = "", False, 0
    try:
        for text, is_sign in pieces:
            first = first or (_since(started) if is_sign else 0)
            thinks = thinks or (is_sign and not text)
            words += text
            if len(words) >= WORDS:
                break
    except TimeoutError:  # one that thinks for long is there
        if not thinks:
            raise
    if not words.strip() and not thinks:
        raise ProbeFailed(_quoted("", endpoint), "no_answer")
    return Probe(max(1, first), words=" ".join(words.split())[:WORDS] or "…")


def _local_embedding(endpoint: Endpoint) -> Probe:
    def ask() -> Probe:
        started = time.monotonic()
        vectors = get_embedder(endpoint.model).embed_documents(TEXTS)
        return _of_vectors(np.asarray(vectors, dtype=np.float64), endpoint, _since(started))

    return _loaded(ask, endpoint)


def _local_rerank(endpoint: Endpoint) -> Probe:
    def ask() -> Probe:
        passages = [Passage(place, 0, 0, "", "", None, text) for place, text in enumerate(TEXTS)]
        candidates = (Candidate(each.chunk_id, 0, {}, {}, passage=each) for each in passages)
        job = RerankJob(Analysis(QUERY), tuple(candidates))
        started = time.monotonic()
        scores = get_cross_encoder(endpoint.model).scores(job, time.monotonic() + LOAD_SECONDS)
        return _of_scores(scores.tolist(), _since(started))

    return _loaded(ask, endpoint)


def _loaded(ask: Callable[[], Probe], endpoint: Endpoint) -> Probe:
    """A local model is loaded first, which takes longer than a request."""
    try:
        return ModelGuard(endpoint.model, slots=1).call(ask, time.monotonic() + LOAD_SECONDS)
    except (ModelUnavailable, RerankerUnavailable) as error:
        raise ProbeFailed(message_of(error), "local") from error


_ASKED: Final = {Role.EMBEDDING: _embedding, Role.RERANK: _rerank, Role.CHAT: _chat}
_LOCAL: Final = {Role.EMBEDDING: _local_embedding, Role.RERANK: _local_rerank}


def _asked(endpoint: Endpoint, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
    """The JSON of an answer, within SECONDS and MOST_BYTES; raises ProbeFailed."""
    deadline, content = time.monotonic() + SECONDS, bytearray()
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    try:
        with (
            http_client(endpoint) as client,
            client.stream(method, url, json=body, headers=headers, timeout=SECONDS) as response,
        ):
            for piece in response.iter_bytes():
                content += piece
                if time.monotonic() > deadline:
                    raise _too_late()
                if len(content) > MOST_BYTES:
                    raise ProbeFailed(f"> {MOST_BYTES // 1024**2} MB", "form")
    except httpx.TimeoutException as error:
        raise _too_late() from error
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise _unreachable(error, endpoint) from error
    text = content.decode("utf-8", "replace")
    if not response.is_success:
        raise _refused(response.status_code, response.headers.get("Location") or text, endpoint)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProbeFailed(_quoted(text, endpoint), "form") from error


def _member(answer: Any, name: str, endpoint: Endpoint) -> Any:
    if not isinstance(answer, dict) or not answer.get(name):
        raise ProbeFailed(_quoted(json.dumps(answer, ensure_ascii=False), endpoint), "form")
    return answer[name]


def _refused(status: int, text: str, endpoint: Endpoint) -> ProbeFailed:
    code = _BY_STATUS.get(status) or ("moved" if status < 400 else "request" if status < 500 else "server")
    return ProbeFailed(_quoted(f"HTTP {status}: {_said(text)}", endpoint), code)


def _said(text: str) -> str:
    """The sentence of an error object in one of the usual forms, else the text as it is."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for name in ("error", "message", "detail", "msg"):
        while isinstance(body, dict) and name in body:
            body = body[name]
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)


def _unreachable(error: BaseException, endpoint: Endpoint) -> ProbeFailed:
    """Where the guard has refused an address, its message says what to do."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FetchError):
            said = Message(PRIVATE_ADDRESS, **cause.params) if cause.code == PRIVATE else message_of_fetch(cause)
            return ProbeFailed(said, cause.code)
        cause = cause.__cause__ or cause.__context__
    return ProbeFailed(_quoted(f"{type(error.__cause__ or error).__name__}: {error}", endpoint), "unreachable")


def _too_late() -> ProbeFailed:
    return ProbeFailed(f"> {SECONDS:g} s", "timeout", seconds=round(SECONDS))


def _quoted(said: str, endpoint: Endpoint) -> str:
    """What a provider said, on one line and short; some repeat the key."""
    plain = storable(" ".join(said.split()))
    return (plain.replace(endpoint.api_key, "***") if endpoint.api_key else plain)[:LONGEST_QUOTE] or "-"


def _since(started: float) -> int:
    return max(1, round(1_000 * (time.monotonic() - started)))
