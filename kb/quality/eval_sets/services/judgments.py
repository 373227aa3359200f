"""Graded judgments by click: of a passage to a query, anchored so that they outlive chunks and imports."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import Rejected
from kb.content.models import Chunk, Document
from kb.quality.eval_sets.services.queries import find_query, query_of, require_editable, spellings
from kb.quality.models import MAX_GRADE, EvalQuery, EvalSet, Judgment
from retrieval.eval.judged_sets import anchor_hash, same_passage, squeezed

IRRELEVANT, PARTLY, RELEVANT = range(3)


def source_label(document: Document) -> str:
    """What a judgment knows a document by: its source, or its title where it has none."""
    return document.source or document.title


def documents_by_label(kb: KnowledgeBase, labels: Iterable[str]) -> Mapping[str, list[int]]:
    """The ids of the documents that judgments know by these labels, newest first."""
    found: dict[str, list[int]] = defaultdict(list)
    wanted = set(labels) - {""}
    rows = Document.objects.filter(Q(source__in=wanted) | Q(source="", title__in=wanted), knowledge_base=kb)
    for pk, source, title in rows.order_by("-pk").values_list("pk", "source", "title"):
        found[source or title].append(pk)
    return found


def judge(principal: Principal, eval_set: EvalSet, query_text: str, chunk: Chunk, grade: int) -> Judgment:
    """Judges a passage; the judgments that it had are replaced, also those of an earlier chunking.

    A query that the set lacks is added to it; one without an answer has one once a passage is relevant.

    Args:
        principal: who judges.
        eval_set: of the chunk's knowledge base.
        query_text: the query.
        chunk: with its document.
        grade: 0 irrelevant, 1 partly relevant, 2 relevant, 3 for sets that grade finer.

    Raises:
        NotVisible: the set does not exist for the principal.
        NotAllowed: the principal may see but not change it.
        Rejected: the grade or the query is none, or the chunk is of another knowledge base.
    """
    _require_grade(grade)
    _require_pair(principal, eval_set, chunk)
    document = chunk.document
    quote_hash = anchor_hash(chunk.text)
    with transaction.atomic():
        query = _locked(query_of(eval_set, query_text))
        if grade > IRRELEVANT and not query.answerable:
            query.answerable = True
            query.save(update_fields=["answerable"])
        held = _judgments_held(query, chunk)
        stays = next((each for each in held if each.document_id == document.pk and each.quote_hash == quote_hash), None)
        Judgment.objects.filter(pk__in=[each.pk for each in held if each is not stays]).delete()
        judgment = stays or Judgment(query=query, document=document, quote_hash=quote_hash)
        judgment.source, judgment.quote, judgment.grade = source_label(document), chunk.text, grade
        judgment.created_by_id = principal.user.pk
        judgment.save()
    return judgment


def unjudge(principal: Principal, eval_set: EvalSet, query_text: str, chunk: Chunk) -> int:
    """Takes the judgments of a passage back; the query stays in the set.

    Returns:
        How many there were.

    Raises:
        NotVisible, NotAllowed: as `judge`.
        Rejected: the chunk is of another knowledge base, or its document is judged as a whole and has other chunks.
    """
    _require_pair(principal, eval_set, chunk)
    with transaction.atomic():
        query = find_query(eval_set, query_text)
        if query is None:
            return 0
        held = _judgments_held(_locked(query), chunk)
        if not held and _of_document(query, chunk.document).filter(quote="").exists():
            raise Rejected(
                "whole_document",
                _("The document “%(title)s” was judged as a whole: change that on the evaluation set’s page.")
                % {"title": chunk.document},
            )
        Judgment.objects.filter(pk__in=[each.pk for each in held]).delete()
        return len(held)


def judgments_regrade(principal: Principal, query: EvalQuery, grades: Mapping[int, int | None]) -> int:
    """Changes judgments of a query, which comes with its set.

    Args:
        principal: who judges.
        query: whose judgments they are; others are left alone.
        grades: by judgment id; None: the judgment is taken back.

    Returns:
        How many were changed or taken back.

    Raises:
        NotVisible: the set does not exist for the principal.
        NotAllowed: the principal may see but not change it.
        Rejected: a grade is none.
    """
    require_editable(principal, query.eval_set)
    for grade in grades.values():
        _require_grade(grade)
    with transaction.atomic():
        query = _locked(query)
        own = {each.pk: each for each in Judgment.objects.filter(query=query, pk__in=grades)}
        changed = [each for pk, each in own.items() if grades[pk] != each.grade]
        gone = [each.pk for each in changed if grades[each.pk] is None]
        kept = [each for each in changed if grades[each.pk] is not None]
        for each in kept:
            each.grade, each.created_by_id = grades[each.pk], principal.user.pk
        Judgment.objects.filter(pk__in=gone).delete()
        Judgment.objects.bulk_update(kept, ["grade", "created_by"])
        if any(each.grade > IRRELEVANT for each in kept) and not query.answerable:
            EvalQuery.objects.filter(pk=query.pk).update(answerable=True)
    return len(changed)


def judgments_in(
    principal: Principal, eval_sets: Iterable[EvalSet], query_text: str, chunks: Sequence[Chunk]
) -> dict[int, int]:
    """The grades of those chunks that are judged, by chunk id; the chunks come with their documents.

    The sets may be of several knowledge bases. A judgment of the passage comes before one of the whole document; of several passages in a chunk the best counts.
    """
    rows = (
        Judgment.objects.visible_to(principal)
        .filter(query__eval_set__in=[each.pk for each in eval_sets], query__text__in=spellings(query_text))
        .select_related("query__eval_set")
        .order_by("pk")
    )
    anchored = _by_document(rows)
    return {chunk.pk: grade for chunk in chunks if (grade := _grade(chunk, anchored)) is not None}


def anchored_chunks(judgments: Sequence[Judgment], chunks: Iterable[Chunk]) -> dict[int, Chunk]:
    """The first of the chunks that each judgment stands for today, by judgment id; where there is none, it is missing.

    Args:
        judgments: with their query and its set.
        chunks: of the judged documents, with them, in their order.
    """
    anchored = _by_document(judgments)
    found: dict[int, Chunk] = {}
    for chunk in chunks:
        for judgment in _of_chunk(chunk, anchored):
            found.setdefault(judgment.pk, chunk)
    return found


def documents_judged(judgments: Sequence[Judgment]) -> Q:
    """The condition on documents that judgments are of, with those that took the place of deleted ones."""
    condition = Q(pk__in=[each.document_id for each in judgments if each.document_id is not None])
    lost: dict[int, set[str]] = defaultdict(set)
    for judgment in judgments:
        if judgment.document_id is None:
            lost[judgment.query.eval_set.knowledge_base_id].add(judgment.source)
    for kb_id, sources in lost.items():
        condition |= Q(knowledge_base=kb_id) & (Q(source__in=sources) | Q(source="", title__in=sources))
    return condition


_Key = tuple[int, int | str]
_Anchored = Mapping[_Key, Sequence[tuple[Judgment, str]]]
"""Judgments with their squeezed quotes, by knowledge base and document: its id, or its label once it was deleted."""


def _by_document(judgments: Iterable[Judgment]) -> _Anchored:
    anchored: dict[_Key, list[tuple[Judgment, str]]] = defaultdict(list)
    for judgment in judgments:
        if place := judgment.document_id or judgment.source:
            anchored[judgment.query.eval_set.knowledge_base_id, place].append((judgment, squeezed(judgment.quote)))
    return anchored


def _of_chunk(chunk: Chunk, anchored: _Anchored) -> list[Judgment]:
    kb_id, text = chunk.knowledge_base_id, squeezed(chunk.text)
    pairs = [*anchored.get((kb_id, chunk.document_id), ()), *anchored.get((kb_id, source_label(chunk.document)), ())]
    return [judgment for judgment, quote in pairs if not quote or same_passage(quote, text)]


def _grade(chunk: Chunk, anchored: _Anchored) -> int | None:
    judgments = _of_chunk(chunk, anchored)
    return max(
        [judgment.grade for judgment in judgments if judgment.quote] or [judgment.grade for judgment in judgments],
        default=None,
    )


def _judgments_held(query: EvalQuery, chunk: Chunk) -> list[Judgment]:
    """The judgments that a new one of this chunk replaces: of its passage, and of its document where it is all of it."""
    held = _of_chunk(chunk, _by_document(_of_document(query, chunk.document)))
    is_whole = not Chunk.objects.filter(document=chunk.document_id).exclude(pk=chunk.pk).exists()
    return [judgment for judgment in held if judgment.quote or is_whole]


def _of_document(query: EvalQuery, document: Document) -> Any:
    label = source_label(document)
    own = Q(document=document) | Q(document=None, source=label) if label else Q(document=document)
    return Judgment.objects.filter(own, query=query).select_related("query__eval_set").order_by("pk")


def _locked(query: EvalQuery) -> EvalQuery:
    """The query's row until the transaction ends, so that two judgments of one passage take turns."""
    return cast(EvalQuery, EvalQuery.objects.select_for_update(no_key=True).get(pk=query.pk))


def _require_grade(grade: int | None) -> None:
    if grade is not None and not IRRELEVANT <= grade <= MAX_GRADE:
        raise Rejected("invalid_grade", _("Give a grade from 0 to %(most)d.") % {"most": MAX_GRADE})


def _require_pair(principal: Principal, eval_set: EvalSet, chunk: Chunk) -> None:
    require_editable(principal, eval_set)
    if chunk.knowledge_base_id != eval_set.knowledge_base_id:
        raise Rejected(
            "other_knowledge_base",
            _("The passage is in another knowledge base than the evaluation set “%(name)s”: choose a set of its own.")
            % {"name": eval_set.name},
        )
