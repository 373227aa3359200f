"""The concepts of knowledge bases' taxonomies, as queries name them and filters use them."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kb.access.models import Principal, visible_knowledge_bases
from kb.base.db.transactions import fetch_all
from kb.base.text import PREFIX_CHARACTERS, normalized_key
from retrieval.characters import LATIN
from retrieval.tokenize import normalize
from retrieval.types import ConceptMention, Fact

_IS_LATIN = re.compile(LATIN)
_WHITE_SPACE = re.compile(r"\s+")
# What combines is composed with the character before it.
_CHARACTERS = re.compile(r"\s+|\S[\u0300-\u036f\u3099\u309a\u1160-\u11ff]*")


@dataclass(frozen=True, slots=True)
class Span:
    """Where a name stands, in characters of the folded text."""

    start: int
    end: int
    key: str


class SearchedText:
    """A text as names are looked for in it: `folded` has the form of the names' keys."""

    def __init__(self, text: str) -> None:
        self._pieces = _CHARACTERS.findall(text)
        folded = ""
        self._ends: list[int] = []
        for piece in self._pieces:
            part = _WHITE_SPACE.sub(" ", normalize(piece).casefold())
            folded += part.lstrip(" ") if folded.endswith(" ") else part
            self._ends.append(len(folded))
        self.folded = folded
        self._latin = [_IS_LATIN.match(character) is not None for character in self.folded]

    def prefixes(self) -> list[str]:
        """The first characters that a name in this text can have, each once; shorter ones are whole names."""
        starts = [at for at, character in enumerate(self.folded) if character != " " and self._is_boundary(at)]
        found = (
            self.folded[start : start + size]
            for start in starts
            for size in range(1, PREFIX_CHARACTERS + 1)
            if size == PREFIX_CHARACTERS or self._is_boundary(start + size)
        )
        return list(dict.fromkeys(found))

    def spans(self, keys: Iterable[str]) -> list[Span]:
        """Where the keys stand, in order; in scripts with words only as whole words."""
        found = []
        for key in keys:
            at = self.folded.find(key) if key else -1
            while at >= 0:
                if self._is_boundary(at) and self._is_boundary(at + len(key)):
                    found.append(Span(at, at + len(key), key))
                at = self.folded.find(key, at + 1)
        return sorted(found, key=lambda span: (span.start, span.end))

    def written(self, span: Span) -> str:
        first, last = (bisect_right(self._ends, at) for at in (span.start, span.end - 1))
        return "".join(self._pieces[first : last + 1])

    def _is_boundary(self, at: int) -> bool:
        return not (0 < at < len(self._latin) and self._latin[at - 1] and self._latin[at])


def longest(spans: Sequence[Span]) -> list[Span]:
    """The spans without those that overlap a longer one, or one as long before them; in order."""
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        if not any(span.start < other.end and other.start < span.end for other in kept):
            kept.append(span)
    return sorted(kept, key=lambda span: span.start)


# Names that begin as some place of the text does, and of those the ones that are part of it: a few look-ups in the index
# for each of its characters, however long the names are. The offset keeps the planner from trying the text with every name.
NAMED = """
SELECT * FROM (
    SELECT knowledge_base_id, concept_id, key FROM kb_conceptterm
    WHERE knowledge_base_id = ANY(%s) AND left(key, {prefix}) = ANY(%s) OFFSET 0
) candidate
WHERE strpos(%s, key) > 0
ORDER BY concept_id
"""
TERMS = """
SELECT concept.id, concept.knowledge_base_id, concept.name, term.key, term.text
FROM kb_concept concept JOIN kb_conceptterm term ON term.concept_id = concept.id
WHERE concept.id = ANY(%s) AND concept.knowledge_base_id = ANY(ARRAY({visible}))
ORDER BY concept.id, term.kind <> 'name', term.id
"""


@dataclass(frozen=True, slots=True)
class KnowledgeGraph:
    """Concepts and facts of the knowledge bases that a principal may see."""

    principal: Principal

    def mentions(self, kb_ids: Sequence[int], text: str) -> tuple[ConceptMention, ...]:
        """Each concept once, with its first mention; in the order of the knowledge bases, then of the text.

        Concepts of one knowledge base that share a name are all mentioned by it; mentions in different ones do not compete.
        """
        searched = SearchedText(text)
        mentioned = _mentioned(kb_ids, searched)
        scope = visible_knowledge_bases(self.principal)
        if scope is None or not mentioned:
            return ()
        visible, values = scope
        concepts: dict[int, tuple[int, str]] = {}
        terms: dict[int, dict[str, str]] = defaultdict(dict)
        for concept_id, kb_id, name, key, term in fetch_all(TERMS.format(visible=visible), [list(mentioned), *values]):
            concepts[concept_id] = (kb_id, name)
            terms[concept_id][key] = term
        return tuple(
            ConceptMention(
                concept_id,
                *concepts[concept_id],
                searched.written(span),
                tuple(term for key, term in terms[concept_id].items() if key != span.key),
            )
            for concept_id, span in mentioned.items()
            if concept_id in concepts
        )

    def facts(self, kb_ids: Sequence[int], text: str, names: Sequence[str], limit: int) -> tuple[Fact, ...]:
        """Facts of the entities that a text or the names name, by whichever of their names; the longest names first."""
        scope = visible_knowledge_bases(self.principal)
        if scope is None or not kb_ids or limit < 1:
            return ()
        keys = list(dict.fromkeys([*_entities(kb_ids, text), *filter(None, map(normalized_key, names))]))
        if not keys:
            return ()
        visible, values = scope
        kbs = list(kb_ids)
        return tuple(
            Fact(*row) for row in fetch_all(FACTS.format(visible=visible), [kbs, keys, kbs, keys, *values, limit])
        )


def _mentioned(kb_ids: Sequence[int], searched: SearchedText) -> Mapping[int, Span]:
    """Concepts with their first mentions, in the order of the knowledge bases, then of the text."""
    prefixes = searched.prefixes()
    if not kb_ids or not prefixes:
        return {}
    concepts: dict[tuple[int, str], list[int]] = defaultdict(list)
    named = fetch_all(NAMED.format(prefix=PREFIX_CHARACTERS), [list(kb_ids), prefixes, searched.folded])
    for kb_id, concept_id, key in named:
        concepts[kb_id, key].append(concept_id)
    mentioned: dict[int, Span] = {}
    for kb_id in dict.fromkeys(kb_ids):
        for span in longest(searched.spans(key for of_kb, key in concepts if of_kb == kb_id)):
            for concept_id in concepts[kb_id, span.key]:
                mentioned.setdefault(concept_id, span)
    return mentioned


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
# the query has for one of its ends. What a chat model found is left out where all chunks that say it are switched off.
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
WHERE fact.knowledge_base_id = ANY(ARRAY({visible})) AND (
    fact.origin <> 'llm' OR coalesce((
        SELECT bool_or(chunk.enabled IS NOT FALSE)
        FROM kb_factsource source LEFT JOIN kb_chunk chunk ON chunk.id = source.chunk_id WHERE source.fact_id = fact.id
    ), true)
)
ORDER BY best.characters DESC, fact.id
LIMIT %s
"""


def _entities(kb_ids: Sequence[int], text: str) -> list[str]:
    """The keys of entities that stand in a text; what is visible of their facts the facts themselves are asked."""
    searched = SearchedText(text)
    values = {"kbs": list(kb_ids), "prefixes": searched.prefixes(), "text": searched.folded}
    if not values["prefixes"]:
        return []
    found = {key for (key,) in fetch_all(ENTITIES.format(prefix=PREFIX_CHARACTERS), values)}
    return [span.key for span in searched.spans(found)]
