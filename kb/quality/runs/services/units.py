"""What is judged, and which of it a chunk of today is: rankings are measured by judged units, not by chunks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kb.access.models.knowledge import KnowledgeBase
from kb.content.models.documents import Chunk, Document
from kb.quality.models import EvalQuery, Judgment
from retrieval.eval.anchors import same_passage, squeezed

QUERIES_AT_ONCE, DOCUMENTS_AT_ONCE = 2_000, 100
RELEVANT = 1
"""The least grade of what is relevant, as in trec_eval."""


@dataclass(slots=True)
class Judged:
    """The judgments of one query, on the documents and chunks of today.

    A document judged as a whole is one unit, and so is a judged passage, in whatever chunks it stands: those that hold its
    words or are held by them, or have a run of characters in common with them that is at least half of the shorter text
    (`retrieval.eval.anchors.same_passage`).

    Attributes:
        grades: by unit.
        documents: the unit of each document that is judged as a whole.
        passages: the units of each chunk in which judged passages stand.
        unanchored: the relevant judgments that nothing in the knowledge base answers to any more; they have a unit all
            the same, which no search finds.
        by_passage: whether passages are judged, and not only documents.
    """

    grades: dict[str, int] = field(default_factory=dict)
    documents: dict[int, str] = field(default_factory=dict)
    passages: dict[int, list[str]] = field(default_factory=dict)
    unanchored: list[Judgment] = field(default_factory=list)
    by_passage: bool = False

    @property
    def relevant(self) -> frozenset[str]:
        return frozenset(unit for unit, grade in self.grades.items() if grade >= RELEVANT)

    def units(self, chunk_id: int, document_id: int) -> Sequence[str]:
        """What a found chunk counts as: its judged passages, else its document, else itself.

        A document counts where it is judged as a whole, and everywhere for a query that judges documents only.
        """
        if found := self.passages.get(chunk_id):
            return found
        if unit := self.documents.get(document_id):
            return (unit,)
        return (f"chunk:{chunk_id}" if self.by_passage else str(document_id),)


def load_judged(knowledge_base: KnowledgeBase, queries: Iterable[EvalQuery]) -> dict[int, Judged]:
    """The judgments of queries by the queries' ids, anchored to what the knowledge base holds now.

    A judgment whose document is gone belongs to the documents of the same source, or of the same title where that is what
    it was known by.
    """
    ids = [query.pk for query in queries]
    judged: dict[int, Judged] = {}
    for start in range(0, len(ids), QUERIES_AT_ONCE):
        rows = Judgment.objects.filter(query__in=ids[start : start + QUERIES_AT_ONCE]).order_by("pk")
        _anchor(knowledge_base, list(rows), judged)
    for of_query in judged.values():
        _keep_best(of_query)
    return judged


def _anchor(knowledge_base: KnowledgeBase, judgments: Sequence[Judgment], judged: dict[int, Judged]) -> None:
    homes = _homes(knowledge_base, judgments)
    chunks = _matching_chunks(judgments, homes)
    for judgment in judgments:
        of_query = judged.setdefault(judgment.query_id, Judged())
        if judgment.quote:
            anchors: Sequence[int] = chunks.get(judgment.pk, ())
            _anchor_passage(of_query, judgment, anchors)
        else:
            anchors = homes.get(judgment.pk, ())
            _anchor_document(of_query, judgment, anchors)
        if not anchors and judgment.grade >= RELEVANT:
            of_query.grades[_own_unit(judgment)] = judgment.grade
            of_query.unanchored.append(judgment)


def _own_unit(judgment: Judgment) -> str:
    return f"judgment:{judgment.pk}"


def _anchor_passage(judged: Judged, judgment: Judgment, chunk_ids: Sequence[int]) -> None:
    judged.by_passage = True
    for chunk_id in chunk_ids:
        judged.grades[_own_unit(judgment)] = judgment.grade
        judged.passages.setdefault(chunk_id, []).append(_own_unit(judgment))


def _anchor_document(judged: Judged, judgment: Judgment, document_ids: Sequence[int]) -> None:
    """Of two judgments of one document the later one counts."""
    if document_ids:
        known = (judged.documents[each] for each in document_ids if each in judged.documents)
        unit = next(known, str(document_ids[0]))
        judged.documents = dict.fromkeys(document_ids, unit) | judged.documents
        judged.grades[unit] = judgment.grade


def _keep_best(judged: Judged) -> None:
    """A chunk in which relevant and irrelevant passages stand is a relevant one; the best of its passages comes first."""
    for chunk_id, units in judged.passages.items():
        ordered = sorted(units, key=lambda unit: -judged.grades[unit])
        relevant = [unit for unit in ordered if judged.grades[unit] >= RELEVANT]
        judged.passages[chunk_id] = relevant or ordered[:1]


def _homes(knowledge_base: KnowledgeBase, judgments: Sequence[Judgment]) -> dict[int, tuple[int, ...]]:
    """The ids of the documents that each judgment is of, newest first, by the judgment's id."""
    homes: dict[int, tuple[int, ...]] = {
        each.pk: (each.document_id,) for each in judgments if each.document_id is not None
    }
    lost = [each for each in judgments if each.document_id is None and each.source]
    if not lost:
        return homes
    labels = {each.source for each in lost}
    own = Document.objects.filter(knowledge_base=knowledge_base)
    wanted = own.filter(source__in=labels) | own.filter(source="", title__in=labels)
    of_label: dict[str, list[int]] = defaultdict(list)
    for pk, source, title in wanted.order_by("-pk").values_list("pk", "source", "title"):
        of_label[source or title].append(pk)
    return homes | {each.pk: tuple(of_label[each.source]) for each in lost if each.source in of_label}


def _matching_chunks(judgments: Sequence[Judgment], homes: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """The ids of the chunks in which each judged passage stands, by the judgment's id."""
    quotes: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for judgment in judgments:
        if judgment.quote:
            quote = squeezed(judgment.quote)
            for document_id in homes.get(judgment.pk, ()):
                quotes[document_id].append((judgment.pk, quote))
    matching: dict[int, list[int]] = defaultdict(list)
    documents = sorted(quotes)
    for start in range(0, len(documents), DOCUMENTS_AT_ONCE):
        rows = Chunk.objects.filter(document__in=documents[start : start + DOCUMENTS_AT_ONCE])
        for chunk_id, document_id, text in rows.order_by("pk").values_list("pk", "document_id", "text"):
            own = squeezed(text)
            for judgment_id, quote in quotes[document_id]:
                if same_passage(quote, own):
                    matching[judgment_id].append(chunk_id)
    return matching
