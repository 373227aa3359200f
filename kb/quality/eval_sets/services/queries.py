"""Evaluation sets and their queries, as curators make them."""

import hashlib
import secrets
from collections.abc import Iterable
from typing import Any, cast

from django.db import IntegrityError, models, transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, ScopedQuerySet
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.base.text import storable
from kb.quality.models import EvalQuery, EvalRun, EvalSet, Judgment
from kb.search.models import SearchedQuerySet

DEFAULT_SET = "curated"
"""The set that clicks go to where none is named: apart from imported ones, whose figures they would change."""

NAME_CHARACTERS, QUERY_CHARACTERS = 120, 2_000
QUERIES_AT_ONCE = 5_000
_ID_DIGITS = 12
RELEVANT = 1
"""The least grade of what is relevant, as in trec_eval."""


def require_editable(principal: Principal, eval_set: EvalSet) -> None:
    """Returns where the principal may change the set.

    Raises:
        NotVisible: it does not exist for the principal.
        NotAllowed: the principal may see but not change it.
    """
    require_editable_rows(
        principal, EvalSet.objects.filter(pk=eval_set.pk), _("There is no such evaluation set: choose one of the list.")
    )


def require_editable_base(principal: Principal, knowledge_base: KnowledgeBase) -> None:
    """Returns where the principal may change the knowledge base; raises as `require_editable`."""
    require_editable_rows(
        principal,
        KnowledgeBase.objects.filter(pk=knowledge_base.pk),
        _("There is no knowledge base with the id %(ids)s.") % {"ids": knowledge_base.pk},
    )


def require_editable_rows(principal: Principal, rows: ScopedQuerySet | SearchedQuerySet, missing: str) -> None:
    """Returns where the principal may change one of the rows; raises as `require_editable`, with `missing`."""
    if not rows.editable_by(principal).exists():
        if rows.visible_to(principal).exists():
            raise NotAllowed(_("You may see this, but not change it: ask its owner to make you an editor."))
        raise NotVisible(missing)


def eval_set_named(principal: Principal, knowledge_base: KnowledgeBase, name: str = "") -> EvalSet:
    """The set of that name, made on first use; blank: the default one.

    Raises:
        NotVisible: the knowledge base does not exist for the principal.
        NotAllowed: the principal may see but not change it.
        Rejected: the name is too long.
    """
    require_editable_base(principal, knowledge_base)
    return EvalSet.objects.get_or_create(knowledge_base=knowledge_base, name=set_name(name))[0]


def eval_set_by_name(knowledge_base: KnowledgeBase, name: str) -> EvalSet:
    """The set of a name.

    Raises:
        NotVisible: there is none; the message names those that there are.
    """
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
    """The name as it is stored.

    Raises:
        Rejected: it is too long.
    """
    name = _one_line(name) or DEFAULT_SET
    if len(name) > NAME_CHARACTERS:
        raise Rejected(
            "name_too_long",
            _("The name is longer than %(length)d characters: choose a shorter one.") % {"length": NAME_CHARACTERS},
        )
    return name


def eval_set_create(principal: Principal, knowledge_base: KnowledgeBase, name: str) -> EvalSet:
    """A new set.

    Raises:
        NotVisible, NotAllowed: as `eval_set_named`.
        Rejected: the name is blank, too long, or that of another set of the knowledge base.
    """
    require_editable_base(principal, knowledge_base)
    eval_set = EvalSet(knowledge_base=knowledge_base)
    _save_as(eval_set, name)
    return eval_set


def eval_set_rename(principal: Principal, eval_set: EvalSet, name: str) -> None:
    """Gives a set another name.

    Raises:
        NotVisible, NotAllowed: as `require_editable`.
        Rejected: the name is blank, too long, or that of another set of the knowledge base.
    """
    require_editable(principal, eval_set)
    _save_as(eval_set, name)


def _save_as(eval_set: EvalSet, name: str) -> None:
    if not name.strip():
        raise Rejected("name_blank", _("Give the evaluation set a name."))
    former, eval_set.name = eval_set.name, set_name(name)
    try:
        with transaction.atomic():
            eval_set.save()
    except IntegrityError as error:
        name, eval_set.name = eval_set.name, former
        raise Rejected(
            "name_taken",
            _("The knowledge base has an evaluation set named “%(name)s” already: choose another name.")
            % {"name": name},
        ) from error


def find_query(eval_set: EvalSet, text: str) -> EvalQuery | None:
    """The query of that text; the first, should an imported set hold it twice."""
    rows = EvalQuery.objects.filter(eval_set=eval_set, text__in=spellings(text))
    return cast(EvalQuery | None, rows.order_by("pk").first())


def spellings(text: str) -> set[str]:
    """How sets may hold a query: an imported one keeps its white space."""
    return {storable(text), storable(text).strip(), _one_line(text)}


def query_of(eval_set: EvalSet, text: str) -> EvalQuery:
    """The query of that text, added where the set lacks it.

    Raises:
        Rejected: the text is blank or too long.
    """
    text = query_text(text)
    if found := find_query(eval_set, text):
        return found
    _add(eval_set, [text])
    return cast(EvalQuery, EvalQuery.objects.filter(eval_set=eval_set, text=text).earliest("pk"))


def queries_add(principal: Principal, eval_set: EvalSet, texts: Iterable[str]) -> int:
    """Adds queries, one a text; blank ones and those that the set has are passed over.

    Returns:
        How many were added.

    Raises:
        NotVisible, NotAllowed: as `require_editable`.
        Rejected: a text is too long, or they are too many; nothing was added.
    """
    require_editable(principal, eval_set)
    wanted = {text: None for text in map(_one_line, texts) if text}
    if len(wanted) > QUERIES_AT_ONCE:
        raise Rejected(
            "too_many",
            _("These are more than %(count)d queries: import them as a file, or add them in several parts.")
            % {"count": QUERIES_AT_ONCE},
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

    Raises:
        NotVisible, NotAllowed: as `require_editable`; NotVisible, too, where it is gone.
        Rejected: the text is blank, too long or that of another query of the set, or passages are judged relevant to one
            that shall have no answer.
    """
    require_editable(principal, query.eval_set)
    with transaction.atomic():
        held = EvalQuery.objects.select_for_update(no_key=True).filter(pk=query.pk).first()
        if held is None:
            raise NotVisible(_("The query is gone."))
        if text is not None and text != held.text:
            held.text = query_text(text)
            if EvalQuery.objects.filter(eval_set=held.eval_set_id, text=held.text).exclude(pk=held.pk).exists():
                raise Rejected(
                    "query_known",
                    _("The set has the query “%(query)s” already: change that one, or delete this one.")
                    % {"query": held.text},
                )
        if answerable is not None:
            held.answerable = answerable
        if not held.answerable:
            _require_nothing_relevant(held)
        held.save(update_fields=["text", "answerable"])
    query.text, query.answerable = held.text, held.answerable


def queries_delete(principal: Principal, eval_set: EvalSet, ids: Iterable[int]) -> int:
    """Deletes queries with their judgments; returns how many queries.

    Raises:
        NotVisible, NotAllowed: as `require_editable`.
    """
    require_editable(principal, eval_set)
    _rows, by_model = EvalQuery.objects.filter(eval_set=eval_set, pk__in=list(ids)).delete()
    return by_model.get(EvalQuery._meta.label, 0)


def mark_unanswerable(principal: Principal, eval_set: EvalSet, text: str, is_unanswerable: bool) -> EvalQuery | None:  # noqa: FBT001
    """Says that the knowledge base has no answer to a query, or takes that back.

    Returns:
        The query; None where it was to be taken back of one that the set does not have.

    Raises:
        NotVisible, NotAllowed: as `require_editable`.
        Rejected: passages are judged relevant to it.
    """
    require_editable(principal, eval_set)
    with transaction.atomic():
        query = query_of(eval_set, text) if is_unanswerable else find_query(eval_set, text)
        if query is None:
            return None
        EvalQuery.objects.select_for_update(no_key=True).get(pk=query.pk)
        if is_unanswerable:
            _require_nothing_relevant(query)
        query.answerable = not is_unanswerable
        query.save(update_fields=["answerable"])
    return query


def _require_nothing_relevant(query: EvalQuery) -> None:
    if Judgment.objects.filter(query=query, grade__gt=0).exists():
        raise Rejected(
            "has_relevant",
            _("Passages are judged relevant to “%(query)s”: take these judgments back first.") % {"query": query.text},
        )


def query_text(text: str) -> str:
    """The text on one line, as it is stored.

    Raises:
        Rejected: it is blank or too long.
    """
    text = _one_line(text)
    if not text:
        raise Rejected("blank_query", _("The query is empty: type some words."))
    if len(text) > QUERY_CHARACTERS:
        raise Rejected(
            "query_too_long",
            _("The query “%(start)s…” is longer than %(length)d characters: shorten it.")
            % {"start": text[:40], "length": QUERY_CHARACTERS},
        )
    return text


def _one_line(text: str) -> str:
    return " ".join(storable(text).split())


def eval_set_overview(principal: Principal) -> Any:
    """Sets with `query_count`, `judged_count` (queries with judgments), `unanswerable_count` and `judgment_count`.

    Of the last run that is done: `last_run_id`, `last_run_at` and `last_figures`, those of the reranked stage.
    """
    queries = EvalQuery.objects.filter(eval_set=OuterRef("pk"))
    runs = EvalRun.objects.filter(eval_set=OuterRef("pk"), status=EvalRun.Status.DONE).order_by("-created_at", "-pk")
    rows = EvalSet.objects.visible_to(principal).select_related("knowledge_base")
    return rows.annotate(
        query_count=_count(queries, "eval_set"),
        judged_count=_count(queries.filter(Exists(Judgment.objects.filter(query=OuterRef("pk")))), "eval_set"),
        unanswerable_count=_count(queries.filter(answerable=False), "eval_set"),
        judgment_count=_count(Judgment.objects.filter(query__eval_set=OuterRef("pk")), "query__eval_set"),
        last_run_id=Subquery(runs.values("pk")[:1]),
        last_run_at=Subquery(runs.values("finished_at")[:1]),
        last_figures=Subquery(runs.values("report__stages__reranked")[:1], output_field=models.JSONField()),
    )


def eval_query_overview(principal: Principal, eval_set: EvalSet) -> Any:
    """The queries of a set with `judgment_count` and `relevant_count`."""
    rows = EvalQuery.objects.visible_to(principal).filter(eval_set=eval_set)
    return rows.annotate(
        judgment_count=Count("judgments"), relevant_count=Count("judgments", filter=Q(judgments__grade__gte=RELEVANT))
    )


def _count(rows: QuerySet[Any], path: str) -> Coalesce:
    """A subquery of its own for each count: two joined ones would multiply each other's rows."""
    groups = rows.order_by().annotate(group=F(path)).values("group")
    return Coalesce(Subquery(groups.annotate(rows=Count("pk")).values("rows")), 0)
