"""Facts of knowledge bases' graphs for the entities of a query."""

from collections.abc import Sequence

from django.db import connection

from kb.access.models.accounts import Principal
from kb.access.scope import visible_knowledge_bases
from kb.base.text import PREFIX_CHARACTERS
from kb.graph.names_in_text import SearchedText, keys_of
from retrieval.types import Fact

# As for concepts.
ENTITIES = """
SELECT key FROM (
    SELECT subject_key AS key FROM kb_graphfact
    WHERE knowledge_base_id = ANY(%(kbs)s) AND left(subject_key, {prefix}) = ANY(%(prefixes)s)
    UNION
    SELECT object_key FROM kb_graphfact
    WHERE knowledge_base_id = ANY(%(kbs)s) AND left(object_key, {prefix}) = ANY(%(prefixes)s)
    UNION
    SELECT key FROM kb_entityname
    WHERE knowledge_base_id = ANY(%(kbs)s) AND left(key, {prefix}) = ANY(%(prefixes)s)
    OFFSET 0
) candidate
WHERE strpos(%(text)s, key) > 0
"""
# A name stands for all names of its entity, in the entity's own knowledge base; a fact is as good as the longest name that
# the query has for one of its ends.
FACTS = """
WITH named AS MATERIALIZED (
    SELECT kb_id, key, length(key) AS characters FROM unnest(%s::bigint[]) kb_id, unnest(%s::text[]) key
    UNION ALL
    SELECT other.knowledge_base_id, other.key, length(given.key)
    FROM kb_entityname given JOIN kb_entityname other ON other.entity_id = given.entity_id AND other.key <> given.key
    WHERE given.knowledge_base_id = ANY(%s) AND given.key = ANY(%s)
), found AS (
    SELECT fact.id, named.characters FROM named JOIN kb_graphfact fact
    ON fact.knowledge_base_id = named.kb_id AND fact.subject_key = named.key
    UNION ALL
    SELECT fact.id, named.characters FROM named JOIN kb_graphfact fact
    ON fact.knowledge_base_id = named.kb_id AND fact.object_key = named.key
), best AS (
    SELECT id, max(characters) AS characters FROM found GROUP BY id
)
SELECT fact.knowledge_base_id, fact.subject, fact.predicate, fact.object, fact.source_chunk_id
FROM best JOIN kb_graphfact fact ON fact.id = best.id
WHERE fact.knowledge_base_id = ANY(ARRAY({visible}))
ORDER BY best.characters DESC, fact.id
LIMIT %s
"""


class FactReader:
    """Facts of the knowledge bases that a principal may see."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    def facts(self, kb_ids: Sequence[int], text: str, names: Sequence[str], limit: int) -> tuple[Fact, ...]:
        """Facts of the entities that a text or the names name, by whichever of their names; the longest names first."""
        scope = visible_knowledge_bases(self._principal)
        if scope is None or not kb_ids or limit < 1:
            return ()
        keys = list(dict.fromkeys([*_entities(kb_ids, text), *keys_of(names)]))
        if not keys:
            return ()
        visible, values = scope
        kbs = list(kb_ids)
        with connection.cursor() as cursor:
            cursor.execute(FACTS.format(visible=visible), [kbs, keys, kbs, keys, *values, limit])
            return tuple(Fact(*row) for row in cursor.fetchall())


def _entities(kb_ids: Sequence[int], text: str) -> list[str]:
    """The keys of entities that stand in a text; what is visible of their facts the facts themselves are asked."""
    searched = SearchedText(text)
    prefixes = searched.prefixes()
    if not prefixes:
        return []
    with connection.cursor() as cursor:
        statement = ENTITIES.format(prefix=PREFIX_CHARACTERS)
        cursor.execute(statement, {"kbs": list(kb_ids), "prefixes": prefixes, "text": searched.folded})
        found = {key for (key,) in cursor.fetchall()}
    return list(dict.fromkeys(span.key for span in searched.spans(found)))
