"""Whether a passage of today is the one that was judged, after another chunking or another import of its document."""

import hashlib

MIN_RUN = 16
"""Characters: shorter runs are common to texts that have nothing else in common."""


def anchor_hash(quote: str) -> str:
    """SHA-256 of a judged passage's words without white space, in hexadecimal."""
    return hashlib.sha256(squeezed(quote).encode()).hexdigest()


def squeezed(text: str) -> str:
    """The text without white space, which parsers and chunkers set as they please."""
    return "".join(text.split())


def same_passage(first: str, second: str) -> bool:
    """Whether two passages of one document, already squeezed, are the same.

    They are where one holds the other whole, or where they have a run of characters in common that is at least half of
    the shorter one and not shorter than `MIN_RUN`.
    """
    shorter, longer = sorted((first, second), key=len)
    if not shorter:
        return False
    if shorter in longer:
        return True
    run = max(MIN_RUN, -(-len(shorter) // 2))
    return any(shorter[start : start + run] in longer for start in range(len(shorter) - run + 1))
