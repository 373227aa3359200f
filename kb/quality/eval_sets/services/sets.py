"""Evaluation sets: their queries as curators make them, and graded judgments, anchored so that they outlive imports."""

import hashlib
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from django.db import IntegrityError, models, transaction
from django.db.models import Count, Exists, OuterRef, Q, Subquery
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, ScopedQuerySet
from kb.base.errors import NotVisible, Rejected, found_in, not_editable
from kb.base.models import count_of
from kb.base.text import storable
from kb.content.models import Chunk, Document
from kb.quality.models import DEFAULT_SET, MAX_GRADE, EvalQuery, EvalRun, EvalSet, Judgment
from kb.search.models import SearchedQuerySet
from retrieval.eval.judged_sets import anchor_hash, same_passage, squeezed

NAME_CHARACTERS, QUERY_CHARACTERS = 120, 2_000
QUERIES_AT_ONCE, CHUNKS_READ = 5_000, 2_000
_ID_DIGITS = 12
IRRELEVANT, PARTLY, RELEVANT = range(3)  # relevant, as in trec_eval, is all from PARTLY on


def require_editable(principal: Principal, eval_set: EvalSet) -> None:
    """Raises `NotVisible` where the set does not exist for the principal, `NotAllowed` where they may not change it."""
    require_editable_rows(
        principal, EvalSet.objects.filter(pk=eval_set.pk), _("There is no such evaluation set: choose one of the list.")
    )


def require_editable_base(principal: Principal, knowledge_base: KnowledgeBase) -> None:
    """As `require_editable`, of a knowledge base."""
    require_editable_rows(
        principal,
        KnowledgeBase.objects.filter(pk=knowledge_base.pk),
        _("There is no knowledge base with the id %(ids)s.") % {"ids": knowledge_base.pk},
    )


def require_editable_rows(principal: Principal, rows: ScopedQuerySet | SearchedQuerySet, missing: str) -> None:
    """As `require_editable`, of one of some rows; `missing` is the message of `NotVisible`."""
    if not rows.editable_by(principal).exists():
        if rows.visible_to(principal).exists():
            raise not_editable()
        raise NotVisible(missing)


def eval_set_named(principal: Principal, knowledge_base: KnowledgeBase, name: str = "") -> EvalSet:
    """The set of that name, made on first use; blank: the default one.

    Raises as `require_editable_base` and, where the name is too long, `Rejected`.
    """
    require_editable_base(principal, knowledge_base)
    return EvalSet.objects.get_or_create(knowledge_base=knowledge_base, name=set_name(name))[0]


def eval_set_by_name(knowledge_base: KnowledgeBase, name: str) -> EvalSet:
    """The set of a name; `NotVisible`, where there is none, names those that there are."""
    rows = EvalSet.objects.filter(knowledge_base=knowledge_base)
    found: EvalSet | None = rows.filter(name=name).select_related("knowledge_base").first()
    if found is None:
        names = ", ".join(rows.values_list("name", flat=True)) or "–"
        raise NotVisible(
            _("“%(kb)s” has no evaluation set “%(name)s”: choose one of %(names)s, or import one.")
            % {"kb": knowledge_base, "name": name, "names": names}
        )
    return found


def set_name(name: str) -> str:
    """The name as it is stored; `Rejected` where it is too long."""
    name = _one_line(name) or DEFAULT_SET
    if len(name) > NAME_CHARACTERS:
        raise Rejected(
            "name_too_long",
            _("The name is longer than %(length)d characters: choose a shorter one."),
            length=NAME_CHARACTERS,
        )
    return name


def eval_set_save(principal: Principal, eval_set: EvalSet, name: str) -> None:
    """Saves a new set, or one that is there, under a name.

    Raises as `require_editable`, also where it is deleted meanwhile, and `Rejected` where the name is blank, too long, or
    that of another set of the base.
    """
    if eval_set.pk is None:
        require_editable_base(principal, eval_set.knowledge_base)
    else:
        require_editable(principal, eval_set)
    if not name.strip():
        raise Rejected("name_blank", _("Give the evaluation set a name."))
    former, eval_set.name = eval_set.name, set_name(name)
    try:
        with transaction.atomic():
            if eval_set.pk is not None:  # held, or saving it would make one again that another user deletes
                rows = EvalSet.objects.select_for_update(no_key=True).filter(pk=eval_set.pk)
                found_in(rows, _("There is no such evaluation set: choose one of the list."))
            eval_set.save()
    except IntegrityError as error:
        name, eval_set.name = eval_set.name, former
        raise Rejected(
            "name_taken",
            _("The knowledge base has an evaluation set named “%(name)s” already: choose another name."),
            name=name,
        ) from error


def find_query(eval_set: EvalSet, text: str) -> EvalQuery | None:
    """The query of that text; the first, should an imported set hold it twice."""
    return cast(EvalQuery | None, EvalQuery.objects.filter(eval_set=eval_set, text__in=spellings(text)).first())


def spellings(text: str) -> set[str]:
    """How sets may hold a query: an imported one keeps its white space."""
    return {storable(text), storable(text).strip(), _one_line(text)}


def query_of(eval_set: EvalSet, text: str) -> EvalQuery:
    """The query of that text, added where the set lacks it; `Rejected` where the text is blank or too long."""
    text = query_text(text)
    if found := find_query(eval_set, text):
        return found
    _add(eval_set, [text])
    return cast(EvalQuery, EvalQuery.objects.filter(eval_set=eval_set, text=text).earliest("pk"))


def queries_add(principal: Principal, eval_set: EvalSet, texts: Iterable[str]) -> int:
    """Adds queries, one a text, and returns how many; blank ones and those that the set has are passed over.

    Raises as `require_editable`, and `Rejected` where one is too long or they are too many; nothing was added then.
    """
    require_editable(principal, eval_set)
    wanted = {text: None for text in map(_one_line, texts) if text}
    if len(wanted) > QUERIES_AT_ONCE:
        raise Rejected(
            "too_many",
            _("These are more than %(count)d queries: import them as a file, or add them in several parts."),
            count=QUERIES_AT_ONCE,
        )
    for text in wanted:
        query_text(text)
    return _add(eval_set, wanted)


def _add(eval_set: EvalSet, texts: Iterable[str]) -> int:
    """Adds those of the texts that the set lacks; returns how many.

    Callers take turns, so that two of them add a query once. Its id is made of its words, unless a query that has other
    words by now holds that one.
    """
    with transaction.atomic():
        EvalSet.objects.select_for_update(no_key=True).get(pk=eval_set.pk)
        ids = {text: f"q-{hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]}" for text in texts}
        rows = EvalQuery.objects.filter(eval_set=eval_set)
        known = set(rows.filter(text__in=ids).values_list("text", flat=True))
        held = set(rows.filter(external_id__in=ids.values()).values_list("external_id", flat=True))
        fresh = [
            EvalQuery(
                eval_set=eval_set,
                external_id=f"q-{secrets.token_hex(_ID_DIGITS // 2)}" if own in held else own,
                text=text,
            )
            for text, own in ids.items()
            if text not in known
        ]
        EvalQuery.objects.bulk_create(fresh, batch_size=500)
    return len(fresh)


def query_update(
    principal: Principal, query: EvalQuery, *, text: str | None = None, answerable: bool | None = None
) -> None:
    """Changes a query, which comes with its set; what is None stays as it is.

    Raises as `require_editable`, `NotVisible` also where the query is gone, and `Rejected` where the text is blank, too
    long or that of another query of the set, or passages are judged relevant to one that shall have no answer.
    """
    require_editable(principal, query.eval_set)
    with transaction.atomic():
        rows = EvalQuery.objects.select_for_update(no_key=True)
        held = found_in(rows.filter(pk=query.pk), _("The query is gone."))
        if text is not None and text != held.text:
            held.text = query_text(text)
            if EvalQuery.objects.filter(eval_set=held.eval_set_id, text=held.text).exclude(pk=held.pk).exists():
                raise Rejected(
                    "query_known",
                    _("The set has the query “%(query)s” already: change that one, or delete this one."),
                    query=held.text,
                )
        if answerable is not None:
            held.answerable = answerable
        if not held.answerable:
            _require_nothing_relevant(held)
        held.save(update_fields=["text", "answerable"])
    query.text, query.answerable = held.text, held.answerable


def queries_delete(principal: Principal, eval_set: EvalSet, ids: Iterable[int]) -> int:
    """Deletes queries with their judgments; returns how many queries. Raises as `require_editable`."""
    require_editable(principal, eval_set)
    _rows, by_model = EvalQuery.objects.filter(eval_set=eval_set, pk__in=list(ids)).delete()
    return by_model.get(EvalQuery._meta.label, 0)


def mark_unanswerable(principal: Principal, eval_set: EvalSet, text: str, is_unanswerable: bool) -> EvalQuery | None:  # noqa: FBT001
    """Says that the knowledge base has no answer to a query, or takes that back.

    Returns the query; None where that is taken back for one that the set does not have. Raises as `require_editable`,
    and `Rejected` where passages are judged relevant to it.
    """
    require_editable(principal, eval_set)
    with transaction.atomic():
        query = query_of(eval_set, text) if is_unanswerable else find_query(eval_set, text)
        if query is None:
            return None
        _locked(query)
        if is_unanswerable:
            _require_nothing_relevant(query)
        query.answerable = not is_unanswerable
        query.save(update_fields=["answerable"])
    return query


def _require_nothing_relevant(query: EvalQuery) -> None:
    if Judgment.objects.filter(query=query, grade__gt=0).exists():
        raise Rejected(
            "has_relevant",
            _("Passages are judged relevant to “%(query)s”: take these judgments back first."),
            query=query.text,
        )


def query_text(text: str) -> str:
    """The text on one line, as it is stored; `Rejected` where it is blank or too long."""
    text = _one_line(text)
    if not text:
        raise Rejected("blank_query", _("The query is empty: type some words."))
    if len(text) > QUERY_CHARACTERS:
        raise Rejected(
            "query_too_long",
            _("The query “%(start)s…” is longer than %(length)d characters: shorten it."),
            start=text[:40],
            length=QUERY_CHARACTERS,
        )
    return text


def _one_line(text: str) -> str:
    return " ".join(storable(text).split())


def eval_set_overview(principal: Principal) -> Any:
    """Sets with `query_count`, `judged_count` (queries with judgments), `unanswerable_count` and `judgment_count`.

    Of the last run that is done: `last_run_id`, `last_run_at` and `last_figures`, those of the reranked stage.
    """
    queries = EvalQuery.objects
    runs = EvalRun.objects.filter(eval_set=OuterRef("pk"), status=EvalRun.Status.DONE).order_by("-created_at", "-pk")
    rows = EvalSet.objects.visible_to(principal).select_related("knowledge_base")
    return rows.annotate(
        query_count=count_of(queries, "eval_set"),
        judged_count=count_of(queries.filter(Exists(Judgment.objects.filter(query=OuterRef("pk")))), "eval_set"),
        unanswerable_count=count_of(queries.filter(answerable=False), "eval_set"),
        judgment_count=count_of(Judgment.objects, "query__eval_set"),
        last_run_id=Subquery(runs.values("pk")[:1]),
        last_run_at=Subquery(runs.values("finished_at")[:1]),
        last_figures=Subquery(runs.values("report__stages__reranked")[:1], output_field=models.JSONField()),
    )


def eval_query_overview(principal: Principal, eval_set: EvalSet) -> Any:
    """The queries of a set with `judgment_count` and `relevant_count`."""
    rows = EvalQuery.objects.visible_to(principal).filter(eval_set=eval_set)
    return rows.annotate(
        judgment_count=Count("judgments"), relevant_count=Count("judgments", filter=Q(judgments__grade__gte=PARTLY))
    )


# -- Judgments ---------------------------------------------------------------------------------------------------------
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

    A query that the set lacks is added to it; one without an answer has one once a passage is relevant. The chunk comes
    with its document; grades are 0 irrelevant, 1 partly relevant, 2 relevant, 3 for sets that grade finer.

    Raises as `require_editable`, and `Rejected` where there is no such grade, the query is blank or too long, or the
    chunk is of another base.
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
    """Takes the judgments of a passage back, and returns how many there were; the query stays in the set.

    Raises as `require_editable`, and `Rejected` where the chunk is of another knowledge base, or its document is judged
    as a whole and has other chunks.
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
                _("The document “%(title)s” was judged as a whole: change that on the evaluation set’s page."),
                title=chunk.document,
            )
        Judgment.objects.filter(pk__in=[each.pk for each in held]).delete()
        return len(held)


def judgments_regrade(principal: Principal, query: EvalQuery, grades: Mapping[int, int | None]) -> int:
    """Changes judgments of a query, which comes with its set, and returns how many.

    `grades` are by judgment id, of which those of other queries are left alone; None takes a judgment back. Raises as
    `require_editable`, and `Rejected` where there is no such grade.
    """
    require_editable(principal, query.eval_set)
    for grade in grades.values():
        _require_grade(grade)
    with transaction.atomic():
        query = _locked(query)
        own = Judgment.objects.filter(query=query, pk__in=grades)
        changed = [each for each in own if grades[each.pk] != each.grade]
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

    The sets may be of several knowledge bases. A judgment of the passage comes before one of the whole document; of
    several passages in a chunk the best counts.
    """
    rows = (
        Judgment.objects.visible_to(principal)
        .filter(query__eval_set__in=[each.pk for each in eval_sets], query__text__in=spellings(query_text))
        .select_related("query__eval_set")
        .order_by("pk")
    )
    anchored = _by_document(rows)
    found = {chunk.pk: _of_chunk(chunk, anchored) for chunk in chunks}
    return {pk: max((bool(each.quote), each.grade) for each in own)[1] for pk, own in found.items() if own}


def anchored_chunks(judgments: Sequence[Judgment]) -> dict[int, Chunk]:
    """The first chunk that each judgment stands for today, with its document, by judgment id; at most one query.

    The judgments come with their query and its set; those without such a chunk are missing.
    """
    if not judgments:
        return {}
    anchored = _by_document(judgments)
    condition = Q(pk__in=[each.document_id for each in judgments if each.document_id is not None])
    lost: dict[int, set[str]] = defaultdict(set)
    for judgment in judgments:
        if judgment.document_id is None:
            lost[judgment.query.eval_set.knowledge_base_id].add(judgment.source)
    for kb_id, sources in lost.items():
        condition |= Q(knowledge_base=kb_id) & (Q(source__in=sources) | Q(source="", title__in=sources))
    chunks = Chunk.objects.filter(document__in=Document.objects.filter(condition)).select_related("document")
    found: dict[int, Chunk] = {}
    for chunk in chunks.order_by("document_id", "position")[:CHUNKS_READ]:
        for judgment in _of_chunk(chunk, anchored):
            found.setdefault(judgment.pk, chunk)
    return found


_Key = tuple[int, int | str]
# Judgments with their squeezed quotes, by knowledge base and document: its id, or its label once it was deleted.
_Anchored = Mapping[_Key, Sequence[tuple[Judgment, str]]]


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


def _judgments_held(query: EvalQuery, chunk: Chunk) -> list[Judgment]:
    """The judgments that a new one of this chunk replaces: of its passage, and of its document if it has no other."""
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
        raise Rejected("invalid_grade", _("Give a grade from 0 to %(most)d."), most=MAX_GRADE)


def _require_pair(principal: Principal, eval_set: EvalSet, chunk: Chunk) -> None:
    require_editable(principal, eval_set)
    if chunk.knowledge_base_id != eval_set.knowledge_base_id:
        raise Rejected(
            "other_knowledge_base",
            _("The passage is in another knowledge base than the evaluation set “%(name)s”: choose a set of its own."),
            name=eval_set.name,
        )
