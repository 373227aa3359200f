"""Passages as the stages after the fusion read them: hundreds at once, so without the cost of model instances."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from django.db import connection

from kb.access.models.accounts import Principal
from kb.access.scope import Statement, visible_knowledge_bases
from kb.base.db.arrays import array_text
from retrieval.types import Passage

NO_METADATA = "{}"

PASSAGES = """
SELECT c.id, c.document_id, c.knowledge_base_id, d.title, d.source, c.page, c.text, c.heading_path, d.metadata,
    d.source_type, d.tags, c.position, c.parent_id
FROM kb_chunk c
CROSS JOIN LATERAL (
    -- The limit makes it a look-up for each chunk: for some hundreds the planner would read all documents once.
    SELECT * FROM kb_document WHERE id = c.document_id LIMIT 1
) d
WHERE c.enabled AND c.id = ANY(%s::bigint[]) AND c.knowledge_base_id = ANY(ARRAY({visible}))
"""

NEIGHBOURS = """
SELECT passage.id, c.id, c.document_id, c.knowledge_base_id, d.title, d.source, c.page, c.text, c.heading_path,
    d.metadata, d.source_type, d.tags, c.position, c.parent_id
FROM unnest(%s::bigint[], %s::bigint[], %s::integer[]) AS passage (id, document_id, position)
JOIN kb_chunk c ON c.document_id = passage.document_id AND c.id <> passage.id
    AND c.position BETWEEN passage.position - %s AND passage.position + %s
JOIN kb_document d ON d.id = c.document_id
WHERE c.enabled AND c.knowledge_base_id = ANY(ARRAY({visible}))
ORDER BY passage.id, c.position
"""

# What a curator has changed or switched off in a passage is changed or missing in it too.
PARENTS = """
SELECT p.id, p.text, c.text, c.cut_text, c.enabled
FROM kb_chunkparent p
LEFT JOIN kb_chunk c ON c.parent_id = p.id AND (c.cut_text <> '' OR NOT c.enabled)
WHERE p.id = ANY(%s::bigint[]) AND p.knowledge_base_id = ANY(ARRAY({visible}))
ORDER BY p.id, c.position
"""


class PassageReader:
    """Passages from the chunks that a principal may see; disabled ones do not exist for a search."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    @cached_property
    def _visible(self) -> Statement | None:
        return visible_knowledge_bases(self._principal)

    def fetch(self, chunk_ids: Sequence[int]) -> Mapping[int, Passage]:
        if not chunk_ids:
            return {}
        return {row[0]: _passage(row) for row in self._rows(PASSAGES, array_text(chunk_ids))}

    def neighbours(self, passages: Sequence[Passage], count: int) -> Mapping[int, tuple[Passage, ...]]:
        if not passages or count < 1:
            return {}
        keys = [[getattr(each, name) for each in passages] for name in ("chunk_id", "document_id", "position")]
        found: dict[int, list[Passage]] = {passage.chunk_id: [] for passage in passages}
        for chunk_id, *row in self._rows(NEIGHBOURS, *keys, count, count):
            found[chunk_id].append(_passage(row))
        return {chunk_id: tuple(others) for chunk_id, others in found.items()}

    def parents(self, passages: Sequence[Passage]) -> Mapping[int, str]:
        ids = {passage.parent_id for passage in passages if passage.parent_id is not None}
        texts: dict[int, str] = {}
        for parent_id, whole, text, cut_text, enabled in self._rows(PARENTS, array_text(sorted(ids))) if ids else ():
            shown = texts.setdefault(parent_id, whole)
            if text is not None:
                texts[parent_id] = shown.replace(cut_text or text, text if enabled else "", 1)
        given = {each.chunk_id: texts.get(each.parent_id or 0, "").strip() for each in passages}
        return {chunk_id: text for chunk_id, text in given.items() if text}

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if self._visible is None:
            return []
        visible, visible_values = self._visible
        with connection.cursor() as cursor:
            cursor.execute(statement.format(visible=visible), [*values, *visible_values])
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _passage(row: Sequence[Any]) -> Passage:
    chunk_id, document_id, kb_id, title, source, page, text, heading_path, metadata, source_type, tags, *where = row
    position, parent_id = where
    return Passage(
        chunk_id,
        document_id,
        kb_id,
        title,
        source,
        page,
        text,
        tuple(heading_path),
        ({} if metadata == NO_METADATA else json.loads(metadata)) | {"source_type": source_type, "tags": tags},
        source_type,
        position,
        parent_id,
    )
