"""The concepts of knowledge bases' taxonomies, as queries name them and filters use them."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from django.db import connection

from kb.models import Concept, Principal
from kb.models.names import PREFIX_CHARACTERS
from kb.stores.names_in_text import SearchedText, longest
from kb.stores.scope import visible_knowledge_bases
from retrieval.types import ConceptMention

# Names that begin as some place of the text does, and of those the ones that stand in it: as many look-ups in the index
# as the text has characters, however long the names are.
MENTIONED = """
SELECT concept.id, concept.knowledge_base_id, concept.name, mentioned.key, other.key, other.text
FROM (
    SELECT term.concept_id, term.key FROM kb_conceptterm term
    WHERE term.knowledge_base_id = ANY(%s) AND left(term.key, {prefix}) = ANY(%s) AND strpos(%s, term.key) > 0
) mentioned
JOIN kb_concept concept ON concept.id = mentioned.concept_id
JOIN kb_conceptterm other ON other.concept_id = concept.id
WHERE concept.knowledge_base_id = ANY(ARRAY({visible}))
ORDER BY concept.id, other.kind <> 'name', other.id
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
        found = self._found(kb_ids, searched)
        return tuple(each for kb_id in dict.fromkeys(kb_ids) for each in _mentions(searched, found.get(kb_id, ())))

    def concept_and_descendants(self, concept_ids: Collection[int]) -> frozenset[int]:
        """The concepts and all narrower ones, as far as they are visible."""
        visible = Concept.objects.visible_to(self._principal).order_by()
        met: set[int] = set()
        new = set(visible.filter(pk__in=concept_ids).values_list("pk", flat=True))
        while new:
            met |= new
            new = set(visible.filter(parent__in=new).values_list("pk", flat=True)) - met
        return frozenset(met)

    def _found(self, kb_ids: Sequence[int], searched: SearchedText) -> Mapping[int, list["_Named"]]:
        """By knowledge base, the concepts of which a name is part of the text, be it within a word."""
        scope, prefixes = visible_knowledge_bases(self._principal), searched.prefixes()
        by_kb: dict[int, list[_Named]] = defaultdict(list)
        if scope is None or not kb_ids or not prefixes:
            return by_kb
        visible, values = scope
        concepts: dict[int, _Named] = {}
        with connection.cursor() as cursor:
            statement = MENTIONED.format(prefix=PREFIX_CHARACTERS, visible=visible)
            cursor.execute(statement, [list(kb_ids), prefixes, searched.folded, *values])
            for concept_id, kb_id, name, key, other_key, other in cursor.fetchall():
                if concept_id not in concepts:
                    concepts[concept_id] = _Named(concept_id, kb_id, name)
                    by_kb[kb_id].append(concepts[concept_id])
                concepts[concept_id].mentioned.add(key)
                concepts[concept_id].terms.setdefault(other_key, other)
        return by_kb


class _Named:
    """A concept with its terms by key; `mentioned` are the keys that may stand in the text."""

    def __init__(self, concept_id: int, kb_id: int, name: str) -> None:
        self.concept_id, self.kb_id, self.name = concept_id, kb_id, name
        self.mentioned: set[str] = set()
        self.terms: dict[str, str] = {}


def _mentions(searched: SearchedText, concepts: Sequence[_Named]) -> list[ConceptMention]:
    spans = longest(searched.spans({key for concept in concepts for key in concept.mentioned}))
    mentions: dict[int, ConceptMention] = {}
    for span in spans:
        for concept in concepts:
            if span.key in concept.mentioned and concept.concept_id not in mentions:
                mentions[concept.concept_id] = ConceptMention(
                    concept_id=concept.concept_id,
                    kb_id=concept.kb_id,
                    name=concept.name,
                    mention=searched.written(span),
                    names=tuple(text for key, text in concept.terms.items() if key != span.key),
                )
    return list(mentions.values())
