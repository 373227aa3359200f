from retrieval.searchable import searchable_text
from retrieval.types import Candidate


def text_of(candidate: Candidate) -> str:
    """The passage as it was indexed; empty for a candidate without passage."""
    passage = candidate.passage
    return "" if passage is None else searchable_text(passage.title, passage.heading_path, passage.text)
