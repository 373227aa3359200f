"""The keyword channel's packages, imported at their first use, with a remedy where one is missing."""

import importlib
import warnings
from types import ModuleType

from retrieval.errors import DependencyMissing
from retrieval.messages import Message, gettext_noop, message_of

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
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", UserWarning)
            return importlib.import_module(name)
    except ImportError as error:
        raise DependencyMissing(
            Message(
                gettext_noop("{name} cannot be imported ({error}): run `pip install {package}`"),
                name=name,
                error=message_of(error),
                package=_DISTRIBUTIONS[name],
            )
        ) from error
