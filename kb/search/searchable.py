"""Knowledge bases as searches are wired from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from django.db import connection, models

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.access.scope import visible_knowledge_bases
from kb.graph.models import ConceptTerm, GraphFact
from kb.index.models.index import ChunkEmbedding, KnowledgeBaseVersion
from kb.profiles.models import RetrievalProfile
from kb.sources.models import SearchProvider, WebSource

MOST_SOURCES = 10
"""Of each kind that one query asks, by name."""

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
        cursor.execute(_SEARCHABLE.format(columns=_columns(), visible=visible), [list(kb_ids), *values])
        found = [_knowledge_base(row) for row in cursor.fetchall()]
    return {kb.pk: kb for kb in found}


@lru_cache(maxsize=1)
def _columns() -> str:
    names = ((alias, field.column) for alias, model in _READ.items() for field in model._meta.concrete_fields)
    return ", ".join(f'{alias}."{column}"' for alias, column in names)


def _knowledge_base(row: Sequence[Any]) -> KnowledgeBase:
    left = iter(row)
    kb: KnowledgeBase
    kb, version, profile = (
        _row_of(model, [next(left) for _ in model._meta.concrete_fields]) for model in _READ.values()
    )
    kb.profile = profile
    kb._state.fields_cache["version_row"] = version
    return kb


def _row_of(model: type[models.Model], values: list[Any]) -> Any:
    names, converted = _fields(model)
    for place, convert in converted:
        values[place] = convert(values[place], None, connection)
    return model.from_db(connection.alias, names, values)


@cache
def _fields(model: type[models.Model]) -> tuple[list[str], list[tuple[int, Callable[..., Any]]]]:
    """The names of a model's fields, and what makes values of what the driver reads, by place."""
    fields = model._meta.concrete_fields
    return [field.attname for field in fields], [
        (place, field.from_db_value) for place, field in enumerate(fields) if hasattr(field, "from_db_value")
    ]


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a knowledge base holds besides the text and the vectors of its chunks.

    Attributes:
        live: the pages and feeds that queries read.
        external: the search services that queries ask.
    """

    keyword_vectors: bool
    questions: bool
    concepts: bool
    facts: bool
    live: tuple[WebSource, ...] = ()
    external: tuple[SearchProvider, ...] = ()


def holdings(kb: KnowledgeBase) -> Holdings:
    """What a knowledge base read by `searchable` holds; asked of the database once for each of its content's versions."""
    return _holdings(kb.pk, kb.embedding_model, kb.version_row.content_version)


@lru_cache(maxsize=1_000)
def _holdings(kb_id: int, model: str, content_version: int) -> Holdings:  # noqa: ARG001 - another version is another answer
    vectors = ChunkEmbedding.objects.filter(knowledge_base=kb_id, model=model)
    live = WebSource.objects.filter(knowledge_base=kb_id, enabled=True, live=True)
    external = SearchProvider.objects.filter(knowledge_base=kb_id, enabled=True)
    asked = (
        vectors.filter(kind=ChunkEmbedding.Kind.KEYWORDS),
        vectors.filter(kind=ChunkEmbedding.Kind.QUESTION),
        ConceptTerm.objects.filter(knowledge_base=kb_id),
        GraphFact.objects.filter(knowledge_base=kb_id),
        live,
        external,
    )
    # In one statement: every write of the content has the next search ask again.
    found = KnowledgeBase.objects.filter(pk=kb_id).values_list(*(models.Exists(rows) for rows in asked)).first()
    keyword_vectors, questions, concepts, facts, has_live, has_external = found or [False] * len(asked)
    return Holdings(
        keyword_vectors,
        questions,
        concepts,
        facts,
        live=tuple(live[:MOST_SOURCES]) if has_live else (),
        external=tuple(external[:MOST_SOURCES]) if has_external else (),
    )
