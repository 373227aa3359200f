from collections.abc import Sequence


def searchable_text(title: str, heading_path: Sequence[str], text: str) -> str:
    """What is indexed, embedded and reranked: a chunk in its context, as a reader would meet it."""
    return "\n".join(part for part in (title, " > ".join(heading_path), text) if part)
