"""Evaluation sets as files: import and export in the layouts of BEIR and TREC."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from django.db import models, transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Prefetch, Q, QuerySet, Subquery, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal, User
from kb.base.errors import NotVisible, Rejected
from kb.base.text import storable
from kb.content.models import Chunk, Document
from kb.quality.eval_sets.services.judgments import documents_by_label, source_label
from kb.quality.eval_sets.services.queries import require_editable_base, set_name
from kb.quality.models import EvalQuery, EvalRun, EvalSet, Judgment
from retrieval.eval.judged_sets import (
    JudgedQuery,
    JudgedSet,
    Layout,
    SourceJudgment,
    anchor_hash,
    read_judged_set,
    squeezed,
    write_judged_set,
)
from retrieval.eval.qrels import write_json_lines

BATCH = 500
DOCUMENTS_AT_ONCE = 200
_SHORTEST_OVERLAP = 8
"""Characters: an overlap of chunks is of whole sentences."""


@dataclass(frozen=True, slots=True)
class ImportedSet:
    """What an import made.

    Attributes:
        missing: how many judgments are of documents that the knowledge base does not have; they count once it does.
    """

    eval_set: EvalSet
    queries: int
    judgments: int
    missing: int


def eval_set_import(
    principal: Principal,
    knowledge_base: KnowledgeBase,
    directory: Path,
    name: str = "",
    *,
    layout: Layout | None = None,
    replace: bool = False,
) -> ImportedSet:
    """Reads a folder as an evaluation set of a knowledge base.

    Args:
        principal: who imports.
        knowledge_base: whose documents are judged; they are known by their source.
        directory: holds the files.
        name: of the set; blank: the one in the files.
        layout: None: as the files are.
        replace: whether a set of the name gives its queries and judgments up; its runs stay.

    Raises:
        SetFormatError: a file is missing or wrong; nothing was changed.
        NotVisible: the knowledge base does not exist for the principal.
        NotAllowed: the principal may see but not change it.
        Rejected: there is a set of the name, and it is not to be replaced.
    """
    require_editable_base(principal, knowledge_base)
    judged = read_judged_set(directory, layout)
    name = set_name(name or judged.name)
    if not replace and EvalSet.objects.filter(knowledge_base=knowledge_base, name=name).exists():
        raise Rejected(
            "name_taken",
            _("The knowledge base has an evaluation set named “%(name)s” already: replace it, or choose another name.")
            % {"name": name},
        )
    return write_eval_set(knowledge_base, name, judged, user=principal.user)


def write_eval_set(kb: KnowledgeBase, name: str, judged: JudgedSet, *, user: Any = None) -> ImportedSet:
    """Writes a set in one transaction, in place of the queries and judgments of one of the same name.

    Queries that stay, by their ids, keep their rows, so that earlier runs still lead to them.
    """
    judgments = _distinct(
        SourceJudgment(storable(each.query_id), storable(each.source), each.grade, storable(each.quote))
        for each in judged.judgments
    )
    by_label = documents_by_label(kb, {each.source for each in judgments})
    with transaction.atomic():
        eval_set, _is_new = EvalSet.objects.get_or_create(knowledge_base=kb, name=name)
        EvalSet.objects.select_for_update(no_key=True).get(pk=eval_set.pk)
        queries = _write_queries(eval_set, judged.queries)
        rows = [
            Judgment(
                query_id=queries[each.query_id],
                # Where several have the source, the judgment is of the one that holds its words.
                document_id=by_label[each.source][0] if len(by_label.get(each.source, ())) == 1 else None,
                source=each.source,
                quote=each.quote,
                quote_hash=anchor_hash(each.quote) if each.quote else "",
                grade=each.grade,
                created_by=user if isinstance(user, User) else None,
            )
            for each in judgments
        ]
        Judgment.objects.bulk_create(rows, batch_size=BATCH)
    return ImportedSet(eval_set, len(queries), len(rows), sum(row.source not in by_label for row in rows))


def eval_set_export(
    principal: Principal, eval_set: EvalSet, directory: Path, layout: Layout, *, with_documents: bool = True
) -> None:
    """Writes a set into a folder, from which `eval_set_import` makes the same one.

    Args:
        principal: who exports.
        eval_set: with its knowledge base.
        directory: where to; it is made.
        layout: of the files.
        with_documents: write the texts of all documents beside, as corpus.jsonl, for an installation that lacks them
            (`manage.py import_beir`).

    Raises:
        NotVisible: the set does not exist for the principal.
    """
    if not EvalSet.objects.visible_to(principal).filter(pk=eval_set.pk).exists():
        raise NotVisible(_("There is no such evaluation set: choose one of the list."))
    kb = eval_set.knowledge_base
    write_judged_set(
        directory, judged_set(eval_set), layout, documents=frozenset(_labelled(kb).values_list("label", flat=True))
    )
    if with_documents:
        write_json_lines(directory / "corpus.jsonl", corpus(kb))


def judged_set(eval_set: EvalSet) -> JudgedSet:
    """A set as its files hold it: documents are known by their source; of equal judgments the best counts."""
    queries = EvalQuery.objects.filter(eval_set=eval_set).order_by("pk")
    rows = Judgment.objects.filter(query__eval_set=eval_set).select_related("document", "query").order_by("query", "pk")
    judgments = (
        SourceJudgment(
            row.query.external_id,
            source_label(row.document) if row.document else row.source,
            row.grade,
            row.quote,
        )
        for row in rows.iterator(BATCH)
    )
    return JudgedSet(
        eval_set.name,
        tuple(JudgedQuery(query.external_id, query.text, query.answerable) for query in queries.iterator(BATCH)),
        _distinct(judgments),
    )


def corpus(kb: KnowledgeBase) -> Iterator[dict[str, str]]:
    """The documents as lines of corpus.jsonl: by source, each with the text of its chunks; those of one source are one."""
    chunks = Prefetch("chunks", Chunk.objects.only("document", "text").order_by("position"))
    rows = _labelled(kb).order_by("label", "pk").prefetch_related(chunks).iterator(DOCUMENTS_AT_ONCE)
    for label, documents in groupby(rows, key=lambda document: document.label):
        same = list(documents)
        texts = (joined_text([chunk.text for chunk in each.chunks.all()]) for each in same)
        yield {"_id": label, "title": same[0].title, "text": "\n\n".join(texts)}


def joined_text(texts: Iterable[str]) -> str:
    """The text that chunks were cut from, with what they repeat of each other left out."""
    whole = ""
    for text in texts:
        repeated = _overlap(whole, text)
        whole += text[repeated:] if repeated else f"\n{text}"
    return whole.strip()


def _overlap(before: str, text: str) -> int:
    """How many characters at the start of a chunk stand at the end of the text before it."""
    start = text[:_SHORTEST_OVERLAP]
    tail = before[-len(text) :]
    at = tail.find(start)
    while at >= 0:
        if len(start) == _SHORTEST_OVERLAP and text.startswith(tail[at:]):
            return len(tail) - at
        at = tail.find(start, at + 1)
    return 0


def _labelled(kb: KnowledgeBase) -> Any:
    """The documents that can be found, with the `label` that judgments know them by."""
    label = Case(When(source="", then=F("title")), default=F("source"))
    return (
        Document.objects.filter(Exists(Chunk.objects.filter(document=OuterRef("pk"))), knowledge_base=kb)
        .annotate(label=label)
        .exclude(label="")
    )


def _write_queries(eval_set: EvalSet, queries: Iterable[JudgedQuery]) -> dict[str, int]:
    wanted = {storable(query.id): query for query in queries}
    own = EvalQuery.objects.filter(eval_set=eval_set)
    Judgment.objects.filter(query__eval_set=eval_set).delete()
    own.exclude(external_id__in=wanted).delete()
    EvalQuery.objects.bulk_create(
        [
            EvalQuery(eval_set=eval_set, external_id=key, text=storable(query.text), answerable=query.answerable)
            for key, query in wanted.items()
        ],
        batch_size=BATCH,
        update_conflicts=True,
        unique_fields=["eval_set", "external_id"],
        update_fields=["text", "answerable"],
    )
    return dict(own.values_list("external_id", "pk"))


def _distinct(judgments: Iterable[SourceJudgment]) -> tuple[SourceJudgment, ...]:
    """Each passage once, whatever its white space, with the best grade."""
    best: dict[tuple[str, str, str], SourceJudgment] = {}
    for each in judgments:
        key = (each.query_id, each.source, squeezed(each.quote))
        if key not in best or best[key].grade < each.grade:
            best[key] = each
    return tuple(best.values())


RELEVANT = 1
"""The least grade of what is relevant, as in trec_eval."""


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
