from retrieval.types import Candidate


def text_of(candidate: Candidate) -> str:
    """The passage in its context, as it was indexed: title, headings, text; empty for a candidate without passage."""
    passage = candidate.passage
    if passage is None:
        return ""
    return "\n".join(part for part in (passage.title, " > ".join(passage.heading_path), passage.text) if part)
