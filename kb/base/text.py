"""How the names of concepts and of a graph's entities are compared."""

from retrieval.tokenize import normalize

KEY_CHARACTERS = 300
PREFIX_CHARACTERS = 4
"""By so many of a name's first characters the indexes find the names that may stand in a text."""


def normalized_key(text: str) -> str:
    """The form in which two spellings of a name are equal: NFKC, case folded, white space collapsed."""
    return " ".join(normalize(text).casefold().split())[:KEY_CHARACTERS]
