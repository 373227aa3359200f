"""Answers of chat models behind servers that speak OpenAI's `POST /chat/completions`.

Whether the settings of a chat model's server go together, before it is asked.
"""

import importlib
import ipaddress
import json
import re
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, stop_before_delay, wait_random

from retrieval.characters import estimate_tokens
from retrieval.errors import (
    CircuitOpen,
    DegradationCode,
    Degraded,
    GenerationFailed,
    Message,
    ModelTimeout,
    ModelUnavailable,
    _,
    message_of,
)
from retrieval.execution import SECONDS_OPEN, CircuitBreaker, ModelGuard
from retrieval.servers import DIRECT, Access, quoted, refusal_of
from retrieval.types import Turn
from retrieval.usage import Use, report

if TYPE_CHECKING:
    from openai import APIResponse, APIStatusError, OpenAI
    from openai.types.chat import ChatCompletion


def settings_problem(base_url: str, api_key: str, model: str) -> Message | None:
    """What is missing or wrong in the settings, and what to do."""
    if not base_url or not model:
        return _("no chat model is set up: set LLM_BASE_URL (for example https://api.deepseek.com/v1) and LLM_MODEL")
    if not _is_web_address(base_url):
        return _("LLM_BASE_URL is not a web address: set it to one such as https://api.deepseek.com/v1")
    if not api_key and not _is_loopback(urlsplit(base_url).hostname or ""):
        return _(
            "there is no key for the chat model at {host}: set LLM_API_KEY (any word if it needs none)",
            host=host_of(base_url),
        )
    if not (api_key.isascii() and api_key.isprintable()):
        return _("LLM_API_KEY holds characters that no key has: copy it again")
    return None


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        name = (parts.hostname or "").encode("idna")
        return parts.scheme in {"http", "https"} and bool(name) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:
        return False


def host_of(url: str) -> str:
    """Host and port, without the credentials that an address may hold."""
    return urlsplit(url).netloc.rpartition("@")[2]


def shown_address(url: str) -> str:
    """An address without the credentials that it may hold; blank for what is none."""
    try:
        return urlsplit(url)._replace(netloc=host_of(url)).geturl()
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


REMEDY = _("check LLM_BASE_URL, LLM_API_KEY and LLM_MODEL")

# A caller with less time, as a search that rewrites its query may have, does not find that the server fails.
PATIENCE_S = 2.5
GREEDY: Final[Mapping[str, Any]] = {"temperature": 0.0}
NO_FIELDS: Final[Mapping[str, Any]] = {}
_BACKOFF = wait_random(0.2, 0.6)
# The server is in order; it is this request that it does not take.
_REFUSED_STATUSES = {400, 413, 422}


# A message as OpenAI's protocol has it.
Sent = dict[str, Any]


def _as_sent(messages: Sequence[Turn], pictures: Sequence[str] = ()) -> list[Sent]:
    sent: list[Sent] = [{"role": turn.role, "content": turn.text} for turn in messages]
    if pictures:
        seen = [{"type": "image_url", "image_url": {"url": address}} for address in pictures]
        sent[-1]["content"] = [{"type": "text", "text": sent[-1]["content"]}, *seen]
    return sent


class OpenAIGenerator:
    """Asks a model over HTTP; one retry where the time allows it, and a pause for a server that keeps failing.

    `base_url` is the part before `/chat/completions`, as in "https://api.deepseek.com/v1"; the key is sent as a bearer
    token, and a server on the loopback may have none. `breaker` is the server's, if other generators share it; a
    timeout after less than `patience_s` seconds is no failure of the server's.

    `fields` are of every request's body; without a temperature it is the model's own.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        model: str,
        *,
        fields: Mapping[str, Any] = GREEDY,
        access: Access = DIRECT,
        breaker: CircuitBreaker | None = None,
        patience_s: float = PATIENCE_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.model = model
        self.model_id = access.model_id or model
        self._fields = dict(fields)
        self._access = access
        self._remedy = access.remedy or REMEDY
        self._base_url = base_url.strip()
        self._api_key = api_key.strip()
        named_key = self._api_key or ("" if access.needs_key else "none")
        self._problem = access.problem or settings_problem(self._base_url, named_key, model)
        self._name = (
            _("chat model '{model}'", model=model)
            if self._problem
            else _("chat model '{model}' at {host}", model=model, host=host_of(self._base_url))
        )
        self._patience_s = patience_s
        self._counts_streams = True
        self._guard = ModelGuard(self._name, slots=16, breaker=breaker, patience_s=patience_s)
        self._sleep = sleep

    def complete(
        self,
        messages: Sequence[Turn],
        *,
        timeout_s: float,
        as_json: bool = False,
        pictures: Sequence[str] = (),
        fields: Mapping[str, Any] = NO_FIELDS,
    ) -> str:
        """The whole answer, within `timeout_s` seconds, the retry included; a system prompt is a turn of "system".

        `fields` are of the request's body, in place of the generator's own where both name one.
        `pictures` are data: addresses, which a model that sees is given with the last message. Raises GenerationFailed with `llm_not_configured`, `llm_timeout`, `llm_unavailable`, `llm_unusable` or
        `model_circuit_open`.
        """
        self._require_askable(timeout_s)
        options: dict[str, Any] = {"response_format": {"type": "json_object"}} if as_json else {}
        options |= {"extra_body": self._fields | {**fields}}
        deadline = time.monotonic() + timeout_s
        try:
            body = self._guard.call(lambda: self._body(_as_sent(messages, pictures), deadline, options), deadline)
        except CircuitOpen as error:
            raise self._not_asked() from error
        except ModelTimeout as error:
            raise GenerationFailed(DegradationCode.LLM_TIMEOUT, self._late()) from error
        except _ServerFailed as error:
            raise GenerationFailed(error.code, message_of(error)) from error
        except GenerationFailed:
            self._guard.breaker.succeeded()
            raise
        content, usage = self._content(body)
        self._report(messages, content, usage)
        return content

    def stream(
        self, messages: Sequence[Turn], *, timeout_s: float, fields: Mapping[str, Any] = NO_FIELDS
    ) -> Iterator[str]:
        """The answer in pieces; who stops reading early closes the connection. `fields` as of `complete`.

        `timeout_s` is the time until the first piece, and from each to the next; up to twice that where the server
        fills the silence with signs of life. Raises GenerationFailed as `complete`, and `llm_stream_broken` when the
        answer ends in the middle.
        """
        self._require_askable(timeout_s)
        breaker = self._guard.breaker
        if not breaker.allows():
            raise self._not_asked()
        try:
            yield from self._pieces(messages, timeout_s, {"stream": True, "extra_body": self._fields | {**fields}})
        except _ServerFailed as error:
            if isinstance(error, _ServerLate) and timeout_s < self._patience_s:
                breaker.undecided()
            else:
                breaker.failed()
            raise GenerationFailed(error.code, message_of(error)) from error
        except (GenerationFailed, GeneratorExit):
            breaker.succeeded()
            raise
        breaker.succeeded()

    def _body(self, messages: Sequence[Sent], deadline: float, options: dict[str, Any]) -> bytes:
        with self._response(messages, deadline, options, lost=DegradationCode.LLM_UNAVAILABLE) as response:
            return b"".join(response.chunks())

    def _content(self, body: bytes) -> tuple[str, "_Tokens | None"]:
        try:
            answer = json.loads(body)
            content = answer["choices"][0]["message"]["content"]
        except (ValueError, RecursionError, KeyError, IndexError, TypeError) as error:
            raise self._unusable(_("does not follow OpenAI's chat completions API")) from error
        if not isinstance(content, str) or not content.strip():
            raise self._unusable(_("is empty"))
        return content, _tokens(answer)

    def _pieces(self, messages: Sequence[Turn], timeout_s: float, options: dict[str, Any]) -> Iterator[str]:
        has_events = has_ended = False
        written, usage = "", None
        deadline = time.monotonic() + timeout_s
        try:
            with self._response(
                _as_sent(messages), deadline, options, lost=DegradationCode.LLM_STREAM_BROKEN
            ) as response:
                lines = _lines(response.chunks())
                for line in lines:
                    if not line.startswith(b"data:"):
                        continue
                    has_events = True
                    text, is_progress, has_ended, told = self._event(line.removeprefix(b"data:").strip())
                    usage = told or usage
                    if text:
                        written += text
                        yield text
                    # What the consumer did with the piece is no silence of the server's.
                    if is_progress:
                        response.deadline = time.monotonic() + timeout_s
                    if has_ended:
                        usage = usage or _usage_after(lines)
                        break
                if not has_events:
                    raise self._unusable(_("is no stream of events"))
                if not has_ended:
                    raise self._broken(_("ended"))
        finally:
            if written:  # also of an answer that breaks off, or that its reader has left
                self._report(messages, written, usage)
        if not written:
            raise self._unusable(_("is empty"))

    def _event(self, data: bytes) -> tuple[str, bool, bool, "_Tokens | None"]:
        """The text of an event, whether the model has said or thought something in it, whether it is the last, and usage."""
        if data == b"[DONE]":
            return "", False, True, None
        try:
            event = json.loads(data)
            if "error" in event:
                raise self._broken(_("was cut short by the server ({quote})", quote=self._quote(event["error"])))
            usage = _tokens(event)
            if not event["choices"]:  # statistics
                return "", False, False, usage
            choice = event["choices"][0]
            delta = choice.get("delta") or {}
            text = str(delta.get("content") or "")
            return text, bool(text or delta.get("reasoning_content")), bool(choice.get("finish_reason")), usage
        except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise self._broken(_("went on with what is no piece of an answer")) from error

    @contextmanager
    def _response(
        self, messages: Sequence[Sent], deadline: float, options: dict[str, Any], *, lost: DegradationCode
    ) -> Iterator["_TimedResponse"]:
        """An open response, closed at the end; every fault until then becomes one of ours.

        The response starts with the deadline (of `time.monotonic`). `lost` is the code of a connection that is lost
        within it.
        """
        import httpx2  # noqa: PLC0415 - as slow to import as what it belongs to
        import openai  # noqa: PLC0415 - slow to import

        try:
            with ExitStack() as stack:
                retrying = Retrying(
                    stop=stop_after_attempt(2) | stop_before_delay(deadline - time.monotonic()),
                    wait=_wait,
                    retry=retry_if_exception(_is_passing),
                    sleep=self._sleep,
                    reraise=True,
                )
                response = retrying(lambda: self._opened(stack, messages, deadline, options))
                yield _TimedResponse(response, deadline)
        except (openai.APITimeoutError, httpx2.TimeoutException, TimeoutError) as error:
            raise _ServerLate(DegradationCode.LLM_TIMEOUT, self._late()) from error
        except openai.APIStatusError as error:
            raise self._refused(error) from None  # it quotes the server unabridged, which may quote the key
        except openai.APIError as error:
            if (refusal := refusal_of(error)) is not None:
                raise GenerationFailed(DegradationCode.LLM_UNAVAILABLE, refusal) from error
            raise _ServerFailed(
                DegradationCode.LLM_UNAVAILABLE,
                _(
                    "the {name} cannot be reached ({kind}): {remedy}, and that the server runs",
                    name=self._name,
                    kind=type(error.__cause__ or error).__name__,
                    remedy=self._remedy,
                ),
            ) from error
        except httpx2.RequestError as error:
            raise _ServerFailed(lost, message_of(self._broken(_("broke off")))) from error

    def _opened(self, stack: ExitStack, messages: Sequence[Sent], deadline: float, options: dict[str, Any]) -> Any:
        """A stream is asked for its usage, unless the server has refused that."""
        import openai  # noqa: PLC0415 - slow to import

        counted = {"stream_options": {"include_usage": True}} if "stream" in options and self._counts_streams else {}
        seconds = max(0.0, deadline - time.monotonic())
        try:
            return stack.enter_context(self._post(messages, seconds, options | counted))
        except openai.APIStatusError as error:
            is_unknown = error.status_code in _REFUSED_STATUSES and "stream_options" in str(error.body)
            if not (counted and is_unknown):
                raise
        self._counts_streams = False
        return self._opened(stack, messages, deadline, options)

    def _post(self, messages: Sequence[Sent], seconds: float, options: dict[str, Any]) -> Any:
        from openai import Timeout  # noqa: PLC0415 - slow to import

        return self._client.chat.completions.with_streaming_response.create(
            model=self.model,
            messages=cast("Any", messages),
            timeout=Timeout(seconds, connect=min(seconds, 3.0)),
            **options,
        )

    def _report(self, messages: Sequence[Turn], written: str, usage: "_Tokens | None") -> None:
        read, wrote = usage or (sum(estimate_tokens(turn.text) for turn in messages), estimate_tokens(written))
        report(Use("chat", self.model_id, input_tokens=read, output_tokens=wrote, is_estimated=usage is None))

    def load(self) -> None:
        """Imports the client's package, which takes seconds at first, so that no answer has to wait for it."""
        if not self._problem:
            importlib.import_module("openai")

    @cached_property
    def _client(self) -> "OpenAI":
        from openai import OpenAI  # noqa: PLC0415 - slow to import

        # The client insists on a key.
        http_client = self._access.connect() if self._access.connect else None
        client = OpenAI(
            base_url=self._base_url, api_key=self._api_key or "none", max_retries=0, http_client=http_client
        )
        weakref.finalize(self, client.close)
        return client

    def _require_askable(self, timeout_s: float) -> None:
        if self._problem:
            raise GenerationFailed(DegradationCode.LLM_NOT_CONFIGURED, self._problem)
        if timeout_s <= 0:  # no fault of the server's: its circuit breaker shall not hear of it
            raise GenerationFailed(DegradationCode.LLM_TIMEOUT, self._late())

    def _refused(self, error: "APIStatusError") -> Exception:
        fault = GenerationFailed if error.status_code in _REFUSED_STATUSES else _ServerFailed
        return fault(
            DegradationCode.LLM_UNAVAILABLE,
            _(
                "the {name} refused (HTTP {status_code}: {quote}): {remedy}",
                name=self._name,
                status_code=error.status_code,
                quote=self._quote(error.body),
                remedy=self._remedy,
            ),
        )

    def _quote(self, body: object) -> str:
        """What the server says is wrong; some repeat the key."""
        said = str(body.get("message", body) if isinstance(body, dict) else body or "no reason given")
        return quoted(said, self._api_key)

    def _not_asked(self) -> GenerationFailed:
        return GenerationFailed(
            DegradationCode.MODEL_CIRCUIT_OPEN,
            _(
                "the {name} failed repeatedly and is not asked for {seconds:.0f} s: {remedy}",
                name=self._name,
                seconds=SECONDS_OPEN,
                remedy=self._remedy,
            ),
        )

    def _late(self) -> str:
        return _(
            "the {name} did not answer in time: {remedy} and the server's load, or allow more time",
            name=self._name,
            remedy=self._remedy,
        )

    def _broken(self, fault: str) -> "_ServerFailed":
        return _ServerFailed(
            DegradationCode.LLM_STREAM_BROKEN,
            _(
                "the answer of the {name} {fault} before it was complete: ask again, and look into the server's log",
                name=self._name,
                fault=fault,
            ),
        )

    def _unusable(self, fault: str) -> GenerationFailed:
        return GenerationFailed(
            DegradationCode.LLM_UNUSABLE,
            _(
                "the answer of the {name} {fault}: see whether its server has it as a chat model, and {remedy}",
                name=self._name,
                fault=fault,
                remedy=self._remedy,
            ),
        )


class _ServerFailed(Degraded, ModelUnavailable):
    """The server is out of order, as far as one call can tell; counts for its circuit breaker."""


class _ServerLate(_ServerFailed, ModelTimeout):
    """The server has not answered in time; out of order only if it had the time."""


@dataclass
class _TimedResponse:
    """A response with a deadline (of `time.monotonic`) that also holds for a server that trickles."""

    response: "APIResponse[ChatCompletion]"
    deadline: float

    def chunks(self) -> Iterator[bytes]:
        for chunk in self.response.iter_bytes():
            if time.monotonic() > self.deadline:
                raise TimeoutError
            yield chunk


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines as server-sent events have them: a line separator of Unicode within a text ends none."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    yield rest


_Tokens = tuple[int, int]


def _tokens(answer: Any) -> _Tokens | None:
    """The tokens that were read and written, where an answer or an event says so."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else []
    match counts:
        case [int(read), int(wrote)]:
            return read, wrote
    return None


def _usage_after(lines: Iterator[bytes]) -> _Tokens | None:
    """What a server says of its answer after its end; a fault there is none of the answer's."""
    import httpx2  # noqa: PLC0415 - as slow to import as what it belongs to

    try:
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                break
            if data.startswith(b"{") and (told := _tokens(json.loads(data))):
                return told
    except (httpx2.RequestError, TimeoutError, ValueError, RecursionError):
        pass
    return None


def _is_passing(error: BaseException) -> bool:
    """Whether a second attempt may not meet the fault; after a timeout there is no time for one."""
    from openai import APIConnectionError, APIStatusError, APITimeoutError  # noqa: PLC0415 - slow to import

    if isinstance(error, APIStatusError):
        return error.status_code in {408, 429} or error.status_code >= 500
    return isinstance(error, APIConnectionError) and not isinstance(error, APITimeoutError)


def _wait(state: RetryCallState) -> float:
    """Seconds until the retry: those that the server asks for, or a fraction of one."""
    response: Any = getattr(state.outcome and state.outcome.exception(), "response", None)
    asked: str = "" if response is None else response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else _BACKOFF(state)
