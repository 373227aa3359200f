"""Chunks and questions about them, for the tests of why a chunk was not found."""

from kb.base.text import hash_content
from kb.models import Chunk, Document
from kb.quality.why_not.services.walk import why_not_found
from kb.search.services.search import SearchRequest
from tests.factories import principal

OPEN = {"score_threshold": 0.0}


def ask(chunk, query="保修期", *, who=None, ids=None, **fields):
    overrides = {**OPEN, **fields.pop("overrides", {})}
    ids = ids or [chunk.knowledge_base_id]
    request = SearchRequest(query=query, knowledge_base_ids=ids, overrides=overrides, **fields)
    return why_not_found(who or principal(chunk.knowledge_base.owner), request, chunk.pk)


def verdict(why):
    step = why.verdict
    return str(step.stage), step.reason and str(step.reason)


def states(why):
    return {str(step.stage): str(step.state) for step in why.steps}


def place(why, channel):
    (found,) = (place for place in why.places if place.channel == channel)
    return found


def bare_chunk(kb, text="保修期", **fields):
    """A chunk that no index holds."""
    document = Document.objects.create(knowledge_base=kb, sha256=hash_content(text), title="Bare", **fields)
    return Chunk.objects.create(
        knowledge_base=kb, document=document, position=0, text=text, content_hash=hash_content(text)
    )
