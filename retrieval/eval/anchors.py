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
    # Wherever such a run begins, it holds one of the blocks that the shorter text falls into: most texts have none of them.
    block = (run + 1) // 2
    if not any(shorter[start : start + block] in longer for start in range(0, len(shorter) - block + 1, block)):
        return False
    return any(shorter[start : start + run] in longer for start in range(len(shorter) - run + 1))
