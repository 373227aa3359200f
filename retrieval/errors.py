"""The errors of the retrieval library, whose messages name their remedy and are translated where they are shown.

Also the keyword channel's packages, imported at their first use, with a remedy where one is missing.
"""

import importlib
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

Argument = str | int | float


def gettext_noop(message: str) -> str:
    """Marks a template for makemessages."""
    return message


class Message(str):
    """A sentence in English that keeps what it was made of.

    Attributes:
        template: with fields as `str.format` has them; the identifier under which translations are found.
        arguments: of the fields; another message is translated with this one.
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
        """What JSON can hold of it, for `from_dict`."""
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


if TYPE_CHECKING:
    from retrieval.trace import Degradation, DegradationCode


class RetrievalError(Exception):
    """Retrieval could not do what was asked."""


class DependencyMissing(RetrievalError):
    """A package that a channel needs is not installed."""


class ModelUnavailable(RetrievalError):
    """A model cannot be loaded or reached, or its answer cannot be used."""


class UnusableVectors(ModelUnavailable):
    """An embedding model answered with what is no vector of its space."""


class ModelTimeout(ModelUnavailable):
    """A model did not answer in time; its late answer is not used."""


class CircuitOpen(ModelUnavailable):
    """A model failed too often in a row and is not asked again for a while."""


class Degraded(RetrievalError):
    """A stage could not do its part; the code says which degradation that is."""

    def __init__(self, code: "DegradationCode", message: str) -> None:
        super().__init__(message)
        self.code = code


class RerankerUnavailable(Degraded):
    """A reranker cannot score these candidates now; the chain's next link does."""


class RerankerNotApplicable(RetrievalError):
    """A reranker is of no use for these candidates; the chain's next link answers, and nothing is degraded."""


class GenerationFailed(Degraded):
    """A language model gave no usable answer."""


class InvalidConfiguration(RetrievalError):
    """A setting cannot be used.

    Attributes:
        field: the name of the setting.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ChannelUnavailable(Degraded):
    """A channel cannot answer; the search goes on without it."""


class ScopeOutdated(RetrievalError):
    """A knowledge base moved to another tokenizer after the search was wired: wire it again."""


class NoChannelAvailable(RetrievalError):
    """No channel could answer, so there is no result to give."""

    def __init__(self, degradations: "tuple[Degradation, ...]") -> None:
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
    """Import a module of the keyword channel at its first use.

    Raises:
        DependencyMissing: It cannot be imported.
    """
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
