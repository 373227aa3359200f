"""Facts of knowledge bases' graphs for the entities of a query."""

from collections.abc import Sequence

from django.db import connection

from kb.models import Principal
from kb.models.names import PREFIX_CHARACTERS
from kb.stores.names_in_text import SearchedText, keys_of
from kb.stores.scope import visible_knowledge_bases
from retrieval.types import Fact

# As for concepts.
ENTITIES = """
SELECT key FROM (
    SELECT subject_key AS key FROM kb_graphfact
    WHERE knowledge_base_id = ANY(%(kbs)s) AND left(subject_key, {prefix}) = ANY(%(prefixes)s)
    UNION
    SELECT object_key FROM kb_graphfact
    WHERE knowledge_base_id = ANY(%(kbs)s) AND left(object_key, {prefix}) = ANY(%(prefixes)s)
    OFFSET 0
) candidate
WHERE strpos(%(text)s, key) > 0
"""
FACTS = """
SELECT knowledge_base_id, subject, predicate, object, source_chunk_id FROM kb_graphfact
WHERE knowledge_base_id = ANY(%s) AND (subject_key = ANY(%s) OR object_key = ANY(%s))
    AND knowledge_base_id = ANY(ARRAY({visible}))
ORDER BY greatest(
    CASE WHEN subject_key = ANY(%s) THEN length(subject_key) END,
    CASE WHEN object_key = ANY(%s) THEN length(object_key) END
) DESC, id
LIMIT %s
"""


class FactReader:
    """Facts of the knowledge bases that a principal may see."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    def facts(self, kb_ids: Sequence[int], text: str, names: Sequence[str], limit: int) -> tuple[Fact, ...]:
        """Facts with the longest names first."""
        scope = visible_knowledge_bases(self._principal)
        if scope is None or not kb_ids or limit < 1:
            return ()
        keys = list(dict.fromkeys([*_entities(kb_ids, text), *keys_of(names)]))
        if not keys:
            return ()
        visible, values = scope
        with connection.cursor() as cursor:
            statement = FACTS.format(visible=visible)
            cursor.execute(statement, [list(kb_ids), keys, keys, *values, keys, keys, limit])
            return tuple(Fact(*row) for row in cursor.fetchall())


def _entities(kb_ids: Sequence[int], text: str) -> list[str]:
    """The keys of subjects and objects that stand in a text; what is visible of them the facts themselves are asked."""
    searched = SearchedText(text)
    prefixes = searched.prefixes()
    if not prefixes:
        return []
    with connection.cursor() as cursor:
        statement = ENTITIES.format(prefix=PREFIX_CHARACTERS)
        cursor.execute(statement, {"kbs": list(kb_ids), "prefixes": prefixes, "text": searched.folded})
        found = {key for (key,) in cursor.fetchall()}
    return list(dict.fromkeys(span.key for span in searched.spans(found)))
