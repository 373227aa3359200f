"""Knowledge bases as searches are wired from them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import msgspec
from django.db import connection, models

from kb.access.models import KnowledgeBase, Principal, Statement, visible_knowledge_bases
from kb.base.db.transactions import array_text, columns_of, rows_of
from kb.content.models import Picture
from kb.content.parents import Child, shown_text
from kb.graph.models import ConceptTerm, GraphFact
from kb.index.models import ChunkEmbedding, KnowledgeBaseVersion
from kb.profiles.models import RetrievalProfile
from kb.sources.models import SearchProvider, Source
from retrieval.types import PageRegion, Passage

# Of each kind that one query asks, by name.
MOST_SOURCES = 10

_READ = {"k": KnowledgeBase, "v": KnowledgeBaseVersion, "p": RetrievalProfile}
_SEARCHABLE = """
SELECT {columns} FROM kb_knowledgebase k
JOIN kb_versions v ON v.knowledge_base_id = k.id
JOIN kb_retrievalprofile p ON p.id = k.profile_id
WHERE k.id = ANY(%s) AND k.id = ANY(ARRAY({visible}))
"""


def searchable(principal: Principal, kb_ids: Sequence[int]) -> dict[int, KnowledgeBase]:
    """Knowledge bases by id with `profile` and `version_row`, in one query; those out of sight are missing.

    Written by hand: to make the same query of `visible_to` takes three milliseconds, to answer it less than one.
    """
    scope = visible_knowledge_bases(principal)
    if scope is None:
        return {}
    visible, values = scope
    with connection.cursor() as cursor:
        columns = ", ".join(columns_of(model, alias) for alias, model in _READ.items())
        cursor.execute(_SEARCHABLE.format(columns=columns, visible=visible), [list(kb_ids), *values])
        found = [rows_of(list(_READ.values()), row)[0] for row in cursor.fetchall()]
    for kb, version, profile in found:
        kb.profile = profile
        kb._state.fields_cache["version_row"] = version
    return {kb.pk: kb for kb, _version, _profile in found}


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a knowledge base holds besides the text and the vectors of its chunks, and what queries ask elsewhere."""

    keyword_vectors: bool
    questions: bool
    concepts: bool
    facts: bool
    pictures: bool = False
    live: tuple[Source, ...] = ()
    external: tuple[SearchProvider, ...] = ()


def holdings(kb: KnowledgeBase) -> Holdings:
    """What a knowledge base read by `searchable` holds; asked of the database once for each of its content's versions."""
    return _holdings(kb.pk, kb.embedding_model, kb.version_row.content_version)


@lru_cache(maxsize=1_000)
def _holdings(kb_id: int, model: str, content_version: int) -> Holdings:  # noqa: ARG001 - another version is another answer
    vectors = ChunkEmbedding.objects.filter(knowledge_base=kb_id, model=model)
    live = Source.objects.filter(knowledge_base=kb_id, enabled=True, paused=False, live=True)
    external = SearchProvider.objects.filter(knowledge_base=kb_id, enabled=True)
    asked = (
        vectors.filter(kind=ChunkEmbedding.Kind.KEYWORDS),
        vectors.filter(kind=ChunkEmbedding.Kind.QUESTION),
        ConceptTerm.objects.filter(knowledge_base=kb_id),
        GraphFact.objects.filter(knowledge_base=kb_id),
        Picture.objects.filter(knowledge_base=kb_id),
        live,
        external,
    )
    # In one statement: every write of the content has the next search ask again.
    found = KnowledgeBase.objects.filter(pk=kb_id).values_list(*map(models.Exists, asked)).first()
    keyword_vectors, questions, concepts, facts, pictures, has_live, has_external = found or [False] * len(asked)
    return Holdings(
        keyword_vectors,
        questions,
        concepts,
        facts,
        pictures,
        live=tuple(live[:MOST_SOURCES]) if has_live else (),
        external=tuple(external[:MOST_SOURCES]) if has_external else (),
    )


NO_METADATA = "{}"

# Most lists are empty, and reading one takes a passage as long as all the rest of it: NULL is read at once.
PASSAGES = """
SELECT c.id, c.document_id, c.knowledge_base_id, d.title, d.source, c.page, c.text, NULLIF(c.heading_path, '{{}}'),
    d.metadata, d.source_type, NULLIF(d.tags, '{{}}'), c.position, c.parent_id, NULLIF(c.questions, '{{}}'), c.seconds,
    NULLIF(c.regions, '[]')
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

PARENTS = """
SELECT p.id, p.text, NULLIF(p.regions, '[]'), c.text, c.parent_spans, c.cut_text <> '', c.enabled
FROM kb_chunkparent p
JOIN kb_chunk c ON c.parent_id = p.id
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

    def parents(self, passages: Sequence[Passage]) -> Mapping[int, Passage]:
        ids = {passage.parent_id for passage in passages if passage.parent_id is not None}
        found: dict[int | None, tuple[str, tuple[PageRegion, ...]]] = {}
        rows = self._rows(PARENTS, array_text(sorted(ids))) if ids else ()
        for (parent_id, whole, on_pages), chunks in groupby(rows, key=itemgetter(0, 1, 2)):
            found[parent_id] = shown_text(whole, [Child(*row[3:]) for row in chunks]).strip(), _regions(on_pages)
        return {
            each.chunk_id: each._replace(text=text, matched=each.text, regions=regions or each.regions)
            for each in passages
            for text, regions in [found.get(each.parent_id, ("", ()))]
            if text
        }

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if self._visible is None:
            return []
        visible, visible_values = self._visible
        with connection.cursor() as cursor:
            cursor.execute(statement.format(visible=visible), [*values, *visible_values])
            return cast("list[tuple[Any, ...]]", cursor.fetchall())


def _passage(row: Sequence[Any]) -> Passage:
    chunk_id, document_id, kb_id, title, source, page, text, heading_path, metadata, source_type, tags, *where = row
    position, parent_id, questions, seconds, regions = (*where, None, None, None)[:5]  # of neighbours not all is read
    return Passage(
        chunk_id,
        document_id,
        kb_id,
        title,
        source,
        page,
        text,
        tuple(heading_path or ()),
        ({} if metadata == NO_METADATA else json.loads(metadata)) | {"source_type": source_type, "tags": tags or []},
        source_type,
        position,
        parent_id,
        questions=tuple(questions or ()),
        seconds=seconds,
        regions=_regions(regions),
    )


_REGIONS = msgspec.json.Decoder(tuple[PageRegion, ...])


def _regions(stored: str | None) -> tuple[PageRegion, ...]:
    return () if stored is None else _REGIONS.decode(stored)
