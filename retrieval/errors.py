"""The errors of the retrieval library; every message names its remedy."""


class RetrievalError(Exception):
    """Retrieval could not do what was asked."""


class DependencyMissing(RetrievalError):
    """A package that a channel needs is not installed."""
