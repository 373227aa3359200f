"""The concepts of knowledge bases' taxonomies, as queries name them and filters use them."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from django.db import connection

from kb.access.models.accounts import Principal
from kb.access.scope import visible_knowledge_bases
from kb.base.text import PREFIX_CHARACTERS
from kb.graph.models import Concept
from kb.graph.names_in_text import SearchedText, Span, longest
from retrieval.types import ConceptMention

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


class ConceptReader:
    """Concepts of the knowledge bases that a principal may see."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    def mentions(self, kb_ids: Sequence[int], text: str) -> tuple[ConceptMention, ...]:
        """Each concept once, with its first mention; in the order of the knowledge bases, then of the text.

        Concepts of one knowledge base that share a name are all mentioned by it; mentions in different ones do not compete.
        """
        searched = SearchedText(text)
        mentioned = _mentioned(kb_ids, searched)
        concepts = self._concepts(mentioned)
        return tuple(
            concepts[concept_id].mentioned_as(searched.written(span), span.key)
            for concept_id, span in mentioned.items()
            if concept_id in concepts
        )

    def concept_and_descendants(self, concept_ids: Collection[int]) -> frozenset[int]:
        """The concepts and all narrower ones, as far as they are visible."""
        visible = Concept.objects.visible_to(self._principal).order_by()
        met: set[int] = set()
        new = set(visible.filter(pk__in=concept_ids).values_list("pk", flat=True))
        while new:
            met |= new
            new = set(visible.filter(parent__in=new).values_list("pk", flat=True)) - met
        return frozenset(met)

    def _concepts(self, concept_ids: Collection[int]) -> Mapping[int, "_Concept"]:
        scope = visible_knowledge_bases(self._principal)
        if scope is None or not concept_ids:
            return {}
        visible, values = scope
        concepts: dict[int, _Concept] = {}
        with connection.cursor() as cursor:
            cursor.execute(TERMS.format(visible=visible), [list(concept_ids), *values])
            for concept_id, kb_id, name, key, term in cursor.fetchall():
                concept = concepts.setdefault(concept_id, _Concept(concept_id, kb_id, name, {}))
                concept.terms[key] = term
        return concepts


@dataclass(frozen=True, slots=True)
class _Concept:
    """A concept with its terms by key, its name first."""

    concept_id: int
    kb_id: int
    name: str
    terms: dict[str, str]

    def mentioned_as(self, mention: str, key: str) -> ConceptMention:
        others = tuple(term for other, term in self.terms.items() if other != key)
        return ConceptMention(self.concept_id, self.kb_id, self.name, mention, others)


def _mentioned(kb_ids: Sequence[int], searched: SearchedText) -> Mapping[int, Span]:
    """Concepts with their first mentions, in the order of the knowledge bases, then of the text."""
    prefixes = searched.prefixes()
    if not kb_ids or not prefixes:
        return {}
    concepts: dict[tuple[int, str], list[int]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(NAMED.format(prefix=PREFIX_CHARACTERS), [list(kb_ids), prefixes, searched.folded])
        for kb_id, concept_id, key in cursor.fetchall():
            concepts[kb_id, key].append(concept_id)
    mentioned: dict[int, Span] = {}
    for kb_id in dict.fromkeys(kb_ids):
        for span in longest(searched.spans(key for of_kb, key in concepts if of_kb == kb_id)):
            for concept_id in concepts[kb_id, span.key]:
                mentioned.setdefault(concept_id, span)
    return mentioned
