"""Traditional to simplified Chinese, by the OpenCC package, which is optional."""

from collections.abc import Callable
from functools import cache

from retrieval.dependencies import import_dependency


@cache
def load_simplifier() -> Callable[[str], str]:
    """A function from traditional to simplified Chinese; OpenCC's converters may be shared between threads.

    Raises:
        DependencyMissing: opencc is not installed.
    """
    convert: Callable[[str], str] = import_dependency("opencc").OpenCC("t2s").convert
    # OpenCC reads UTF-8, which has no lone surrogates; they are no part of any term.
    return lambda text: convert(text.encode("utf-8", "replace").decode())


def simplifier_version() -> str:
    """The version of the package, which brings its own dictionaries.

    Raises:
        DependencyMissing: opencc is not installed.
    """
    return str(import_dependency("opencc").__version__)
