"""What the tests of all rerankers are given."""

import time

from retrieval.types import Analysis, Candidate, Passage, RerankJob


def candidate(chunk_id, kb_id=1, text=None, *, title="", headings=(), questions=(), ranks=(), agreement=0.0):
    passage = None
    if text is not None:
        passage = Passage(chunk_id, 1, kb_id, title, "", None, text, headings, questions=tuple(questions))
    return Candidate(chunk_id, kb_id, dict(ranks), {}, agreement, passage)


def job(query, candidates, **parts):
    return RerankJob(Analysis(query), tuple(candidates), **parts)


def of_texts(query, texts):
    return job(query, [candidate(chunk_id, text=text) for chunk_id, text in enumerate(texts, start=1)])


def soon():
    """A deadline that nothing in these tests should reach."""
    return time.monotonic() + 30
