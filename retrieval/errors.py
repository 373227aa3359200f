"""Errors and degradations, whose messages name their remedy and are translated where they are shown.

Also the keyword channel's packages, imported at their first use, with a remedy where one is missing.
"""

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Annotated, Any, cast

from typing_extensions import Doc

Argument = str | int | float


def gettext_noop(message: str) -> str:
    """Marks a template for makemessages."""
    return message


class Message(str):
    """A sentence in English that keeps what it was made of.

    Its template has fields as `str.format` has them, and is the identifier under which translations are found; an
    argument that is a message is translated with it.
    """

    __slots__ = ("arguments", "template")

    template: str
    arguments: Mapping[str, Argument]

    def __new__(cls, template: str, /, **arguments: Argument) -> "Message":
        plain = {name: storable(value) if isinstance(value, str) else value for name, value in arguments.items()}
        made = super().__new__(cls, template.format(**plain))
        made.template = template
        made.arguments = plain
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Argument]]:
        return (self.template,), dict(self.arguments)

    def translated(self, translate: Callable[[str], str]) -> str:
        """The sentence in the language of `translate`, which maps a template to a template."""
        arguments = {
            name: value.translated(translate) if isinstance(value, Message) else value
            for name, value in self.arguments.items()
        }
        return translate(self.template).format(**arguments)

    def as_dict(self) -> dict[str, Any]:
        arguments = {
            name: value.as_dict() if isinstance(value, Message) else value for name, value in self.arguments.items()
        }
        return {"template": self.template, "arguments": arguments}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Message":
        arguments = {
            name: cls.from_dict(value) if isinstance(value, dict) else value
            for name, value in stored["arguments"].items()
        }
        return cls(stored["template"], **arguments)


_ = Message  # by this name makemessages finds the templates


def message_of(error: BaseException) -> str:
    """What an error says: its message, if it was raised with one, which `str` would turn into plain English."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, Message) else str(error)


def storable(text: str) -> str:
    """The text without what no database and no response can hold: a server that is quoted may send anything."""
    return text if isinstance(text, Message) else text.replace("\0", "").encode("utf-8", "replace").decode()


class DegradationCode(StrEnum):
    """Every way in which an answer can be less than asked for. docs/degradations.md lists them; tests rely on them."""

    BM25_DEPENDENCIES_MISSING = "bm25_dependencies_missing"
    BM25_POSTINGS_OUTDATED = "bm25_postings_outdated"
    BM25_INDEX_BUILDING = "bm25_index_building"
    BM25_INDEX_OLD = "bm25_index_old"
    CHANNEL_FAILED = "channel_failed"
    CHANNEL_TIMEOUT = "channel_timeout"
    EMBEDDER_FAILED = "embedder_failed"
    EMBEDDER_TIMEOUT = "embedder_timeout"
    EXTERNAL_BUSY = "external_busy"
    EXTERNAL_LEFT_OUT = "external_left_out"
    EXTERNAL_NOT_CONFIGURED = "external_not_configured"
    EXTERNAL_QUOTA = "external_quota"
    EXTERNAL_REFUSED = "external_refused"
    EXTERNAL_TIMEOUT = "external_timeout"
    EXTERNAL_UNAVAILABLE = "external_unavailable"
    FACTS_FAILED = "facts_failed"
    HASHING_EMBEDDER = "hashing_embedder"
    LLM_NOT_CONFIGURED = "llm_not_configured"
    LLM_STREAM_BROKEN = "llm_stream_broken"
    LLM_TIMEOUT = "llm_timeout"
    LLM_UNAVAILABLE = "llm_unavailable"
    LLM_UNUSABLE = "llm_unusable"
    MODEL_CIRCUIT_OPEN = "model_circuit_open"
    MODEL_UNAVAILABLE = "model_unavailable"
    RERANKER_FAILED = "reranker_failed"
    RERANKER_TIMEOUT = "reranker_timeout"
    RERANKER_UNAVAILABLE = "reranker_unavailable"
    SHARED_CACHE_UNAVAILABLE = "shared_cache_unavailable"
    STORE_BEHIND = "store_behind"
    STORE_UNAVAILABLE = "store_unavailable"
    THRESHOLD_NOT_APPLIED = "threshold_not_applied"


@dataclass(frozen=True, slots=True)
class Degradation:
    """What is worse than it should be, and why.

    `detail` is for readers, a `Message` where it can be translated. It may quote a server, so what no database and no
    response can hold is taken out.
    """

    stage: str
    code: DegradationCode
    detail: Annotated[str, Doc("What is degraded, and what to do about it, in the caller's language.")]

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", storable(self.detail))

    def as_dict(self) -> dict[str, Any]:
        """What is stored of it, for `from_dict`; `detail` is English, for whoever reads no messages."""
        message = {"message": self.detail.as_dict()} if isinstance(self.detail, Message) else {}
        return {"stage": self.stage, "code": str(self.code), "detail": str(self.detail), **message}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Degradation":
        """One that was stored, also by a version that knew other codes or stored sentences only."""
        detail = Message.from_dict(stored["message"]) if "message" in stored else stored["detail"]
        code = stored["code"] if stored["code"] not in set(DegradationCode) else DegradationCode(stored["code"])
        return cls(stored["stage"], cast(DegradationCode, code), detail)


class RetrievalError(Exception):
    """Retrieval could not do what was asked."""


class DependencyMissing(RetrievalError):
    """A package that a channel needs is not installed."""


class ModelUnavailable(RetrievalError):
    """A model cannot be loaded or reached, or its answer cannot be used."""


class AddressRefused(RetrievalError):
    """A client does not connect to an address, whatever is there; the cause of the client's own error."""


class RequestWithdrawn(Exception):
    """Who has asked a model needs no answer any more; no fault of the model's."""


class UnusableVectors(ModelUnavailable):
    """An embedding model answered with what is no vector of its space."""


class ModelTimeout(ModelUnavailable):
    """A model did not answer in time; its late answer is not used."""


class CircuitOpen(ModelUnavailable):
    """A model failed too often in a row and is not asked again for a while."""


class Degraded(RetrievalError):
    """A stage could not do its part; the code says which degradation that is."""

    def __init__(self, code: DegradationCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class RerankerUnavailable(Degraded):
    """A reranker cannot score these candidates now; the chain's next link does."""


class RerankerNotApplicable(RetrievalError):
    """A reranker is of no use for these candidates; the chain's next link answers, and nothing is degraded."""


class GenerationFailed(Degraded):
    """A chat model gave no usable answer."""


class InvalidConfiguration(RetrievalError):
    """A setting cannot be used; `field` is its name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ChannelUnavailable(Degraded):
    """A channel cannot answer; the search goes on without it."""


class ScopeOutdated(RetrievalError):
    """A knowledge base moved to another tokenizer after the search was wired: wire it again."""


class NoChannelAvailable(RetrievalError):
    """No channel could answer, so there is no result to give."""

    def __init__(self, degradations: tuple[Degradation, ...]) -> None:
        super().__init__("; ".join(degradation.detail for degradation in degradations))
        self.degradations = degradations


_DISTRIBUTIONS = {
    "Stemmer": "pystemmer",
    "jieba": "jieba",
    "opencc": "opencc",
    "rank_bm25": "rank-bm25",
    "rjieba": "rjieba",
}


def import_dependency(name: str) -> ModuleType:
    """A module of the keyword channel, at its first use; raises DependencyMissing where it cannot be imported."""
    try:
        # jieba's sources hold invalid escape sequences, and with older setuptools it imports pkg_resources.
        with warnings.catch_warnings():
            for category in (DeprecationWarning, SyntaxWarning, UserWarning):
                warnings.simplefilter("ignore", category)
            return importlib.import_module(name)
    except ImportError as error:
        raise DependencyMissing(
            _(
                "{name} cannot be imported ({error}): run `pip install {package}`",
                name=name,
                error=message_of(error),
                package=_DISTRIBUTIONS[name],
            )
        ) from error
