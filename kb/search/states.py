"""What a response depends on of the knowledge bases it was searched in, read with the right to search them."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection

from kb.access.models.accounts import Principal
from kb.access.scope import visible_knowledge_bases

STATES = """
SELECT k.id, v.version, v.content_version, k.embedding_model, k.tokenizer_id, k.language,
    p.id, p.name, p.version, p.settings::text
FROM kb_knowledgebase k
JOIN kb_versions v ON v.knowledge_base_id = k.id
JOIN kb_retrievalprofile p ON p.id = k.profile_id
WHERE k.id = ANY(%s) AND k.id = ANY(ARRAY({visible}))
"""


@dataclass(frozen=True, slots=True)
class ProfileState:
    """A retrieval profile; `settings` are its JSON."""

    profile_id: int
    name: str
    version: int
    settings: str


@dataclass(frozen=True, slots=True)
class KnowledgeBaseState:
    """A knowledge base as it is now; see `KnowledgeBaseVersion` for the versions."""

    kb_id: int
    version: int
    content_version: int
    embedding_model: str
    tokenizer_id: str
    language: str
    profile: ProfileState


def states(principal: Principal, kb_ids: Sequence[int]) -> list[KnowledgeBaseState] | None:
    """The states of knowledge bases, each once, in the order given; None where the principal may not see them all.

    One statement, written by hand: to make the same query by the ORM takes longer than to answer it.
    """
    scope = visible_knowledge_bases(principal)
    if scope is None:
        return None
    visible, values = scope
    wanted = list(dict.fromkeys(kb_ids))
    with connection.cursor() as cursor:
        cursor.execute(STATES.format(visible=visible), [wanted, *values])
        found = {
            kb_id: KnowledgeBaseState(
                kb_id, version, content_version, model, tokenizer, language, ProfileState(*profile)
            )
            for kb_id, version, content_version, model, tokenizer, language, *profile in cursor.fetchall()
        }
    return [found[kb_id] for kb_id in wanted] if len(found) == len(wanted) else None
