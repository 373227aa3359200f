"""The inbox of failed queries: what searches did not find, and what somebody found of no help."""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Func, OuterRef, Q, TextField, Value
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Membership, Principal, User, members_by_group
from kb.answers.models import Message
from kb.assistants.models import Assistant, Visitor
from kb.base.errors import NotAllowed, Rejected, ServiceError, found_in
from kb.base.text import storable
from kb.content.models import Chunk
from kb.index.filters import Filters
from kb.profiles.services import name_and_version
from kb.quality.eval_sets.services.sets import (
    eval_set_named,
    mark_unanswerable,
    query_of,
    require_editable,
    require_editable_rows,
)
from kb.quality.models import EvalQuery, EvalSet, FailedQuery
from kb.search.models import SearchedQuerySet, SearchLog
from kb.search.services.search import SearchRequest, search
from retrieval.errors import DegradationCode, InvalidConfiguration, NoChannelAvailable
from retrieval.types import CutBy

# Degradations that follow from the settings of a knowledge base or of its profile, and so are a curator's to fix. Any other is a
# matter of the server and strikes all queries alike; the first page of the admin counts those.
FIXABLE = frozenset(
    {DegradationCode.BM25_POSTINGS_OUTDATED, DegradationCode.MODEL_UNAVAILABLE, DegradationCode.THRESHOLD_NOT_APPLIED}
)
LONGEST_ANSWER = timedelta(hours=1)
MOST_RECHECKED = 10
MOST_REMARKS = 500
# Sorted, so that two writers never wait for each other's rows.
_NOTE = """
INSERT INTO kb_failedquery
    (key, knowledge_base_ids, assistant_ids, query, reasons, count, state, last_search_id, first_seen, last_seen)
SELECT new.key, new.kb_ids, new.assistant_ids, new.query, new.reasons, new.count, 'open',
       (SELECT id FROM kb_searchlog WHERE id = new.last_search), new.first_seen, new.last_seen
FROM jsonb_to_recordset(%s::jsonb) AS new (
    key text, kb_ids bigint[], assistant_ids bigint[], query text, reasons jsonb, count integer, last_search uuid,
    first_seen timestamptz, last_seen timestamptz
)
ORDER BY new.key
ON CONFLICT (key) DO UPDATE SET
    query = excluded.query,
    assistant_ids = ARRAY(SELECT DISTINCT unnest(kb_failedquery.assistant_ids || excluded.assistant_ids) ORDER BY 1),
    reasons = (
        SELECT jsonb_object_agg(
            reason,
            coalesce((kb_failedquery.reasons ->> reason)::integer, 0)
                + coalesce((excluded.reasons ->> reason)::integer, 0)
        )
        FROM jsonb_object_keys(kb_failedquery.reasons || excluded.reasons) AS reason
    ),
    count = kb_failedquery.count + excluded.count,
    state = CASE kb_failedquery.state WHEN 'resolved' THEN 'open' ELSE kb_failedquery.state END,
    last_search_id = coalesce(excluded.last_search_id, kb_failedquery.last_search_id),
    last_seen = greatest(excluded.last_seen, kb_failedquery.last_seen)
"""


# -- What goes in --------------------------------------------------------------------------------------------------------
def note_failures(rows: Iterable[SearchLog]) -> None:
    """Takes those of the searches that failed, and whose query is known, into the inbox, in one statement.

    The same words, whatever their case and spacing, in the same knowledge bases are one query. One that was resolved is
    open again, one that is ignored stays so.
    """
    _note([(row, reasons) for row in rows if (reasons := _reasons(row))])


def note_unanswered(search: SearchLog, *, is_weak: bool) -> None:
    """Takes in a question for which passages were found that do not answer it or, if weak, are hardly about it."""
    _note([(search, {FailedQuery.Reason.WEAK if is_weak else FailedQuery.Reason.UNANSWERED})])


def forget_searches(rows: Sequence[SearchLog]) -> None:
    """Deletes queries, whatever their state, of whose searches the log holds no more than these, which are deleted.

    Runs in the transaction that deletes them.
    """
    keys = {_key(row.knowledge_base_ids, _normalised(row.query)) for row in rows}
    others = SearchLog.objects.exclude(pk__in=[row.pk for row in rows])
    for failed in FailedQuery.objects.filter(key__in=keys).order_by("key").select_for_update():
        same = others.filter(
            knowledge_base_ids__contains=failed.knowledge_base_ids,
            knowledge_base_ids__contained_by=failed.knowledge_base_ids,
            created_at__gte=failed.first_seen - LONGEST_ANSWER,  # it may be seen only once it is answered
        )
        if not same.annotate(words=_Normalised("query")).filter(words=_Normalised(Value(failed.query))).exists():
            failed.delete()


def feedback(principal: Principal, trace_id: UUID, value: int | None, *, of_visitor: bool = False) -> None:
    """Keeps whether a search was of help, by a value of `SearchLog.Feedback`; one that was not is a failed query.

    Whoever may see the search may say so, also with a key of the scope `read`, and a visitor of an assistant with the
    rights of its publisher; the last one counts, and None takes back what was said. A response that is served again has the trace_id of the search that made it. Raises NotVisible where
    there is no such search for this principal.
    """
    bad = SearchLog.Feedback.BAD
    with transaction.atomic():
        entries = SearchLog.objects.over_visible(principal) if of_visitor else SearchLog.objects.visible_to(principal)
        entries = entries.select_for_update().defer("trace", "configuration", "history")
        otherwise = _(
            "There is no search with the trace id %(id)s, or you may not see all of its knowledge bases; a search that "
            "was run just now appears within a second."
        )
        entry = found_in(entries.filter(pk=trace_id), otherwise % {"id": trace_id})
        before, entry.feedback = entry.feedback, value
        entry.save(update_fields=["feedback"])
        if value == bad != before:
            _note([(entry, {FailedQuery.Reason.DISLIKED})])
        elif before == bad != value:
            _take_back(entry)


def _reasons(row: SearchLog) -> set[FailedQuery.Reason]:
    is_fixable = any(each["code"] in FIXABLE for each in row.degraded)
    reasons = {FailedQuery.Reason.DEGRADED} if is_fixable else set()
    return reasons if row.outcome == SearchLog.Outcome.FOUND else {*reasons, FailedQuery.Reason(row.outcome)}


def _note(failures: Iterable[tuple[SearchLog, set[FailedQuery.Reason]]]) -> None:
    noted: dict[str, dict[str, Any]] = {}
    for row, reasons in failures:
        words = _normalised(row.query)
        if not words:
            continue
        key = _key(row.knowledge_base_ids, words)
        fresh = {"key": key, "reasons": Counter(), "count": 0, "first_seen": row.created_at, "assistant_ids": []}
        kept = noted.setdefault(key, fresh)
        kept["count"] += 1
        kept["reasons"].update(reasons)
        if row.assistant_id is not None and row.assistant_id not in kept["assistant_ids"]:
            kept["assistant_ids"].append(row.assistant_id)
        kept |= {
            "kb_ids": sorted(set(row.knowledge_base_ids)),
            "query": row.query,
            "last_search": str(row.pk),
            "last_seen": row.created_at,
        }
    if noted:
        with connection.cursor() as cursor:
            cursor.execute(_NOTE, [json.dumps(list(noted.values()), default=str)])


def _take_back(entry: SearchLog) -> None:
    """A thumb that was turned down by mistake leaves nothing behind."""
    key = _key(entry.knowledge_base_ids, _normalised(entry.query))
    failed = FailedQuery.objects.select_for_update().filter(key=key).first()
    if failed is None or not failed.reasons.get(FailedQuery.Reason.DISLIKED):
        return
    failed.reasons[FailedQuery.Reason.DISLIKED] -= 1
    failed.reasons = {reason: times for reason, times in failed.reasons.items() if times}
    failed.count = max(0, failed.count - 1)
    if failed.reasons:
        failed.save(update_fields=["reasons", "count"])
    else:
        failed.delete()


def _normalised(query: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", query).casefold().split())


class _Normalised(Func):
    """Nearly the same in the database, whose case folding depends on its locale: only to be compared with itself."""

    template = r"btrim(regexp_replace(lower(normalize(%(expressions)s, NFKC)), '\s+', ' ', 'g'))"
    output_field = TextField()


def _key(kb_ids: Iterable[int], words: str) -> str:
    return hashlib.sha256(json.dumps([sorted(set(kb_ids)), words]).encode()).hexdigest()


# -- What is known of it -------------------------------------------------------------------------------------------------
def remarks_on(
    principal: Principal, rows: Iterable[FailedQuery], assistant_ids: Sequence[int]
) -> dict[int, list[Message]]:
    """What visitors of these assistants said was wrong with the answers to failed queries, by their ids, the newest first.

    Of the newest `MOST_REMARKS`, in conversations over knowledge bases that the principal may see; each answer has its
    conversation with its visitor.
    """
    visible = list(KnowledgeBase.objects.visible_to(principal).values_list("pk", flat=True))
    before = Message.objects.filter(conversation=OuterRef("conversation"), pk__lt=OuterRef("pk")).order_by("-pk")
    answers = Message.objects.filter(
        feedback=SearchLog.Feedback.BAD,
        conversation__visitor__assistant__in=assistant_ids,
        conversation__knowledge_base_ids__contained_by=visible,
    ).exclude(feedback_text="")
    said: dict[tuple[int, str], list[Message]] = {}
    for each in (
        answers.annotate(question=before.values("text")[:1])
        .select_related("conversation__visitor")
        .order_by("-pk")[:MOST_REMARKS]
    ):
        said.setdefault(
            (cast(Visitor, each.conversation.visitor).assistant_id, _normalised(each.question or "")), []
        ).append(each)
    return {
        row.pk: [each for pk in row.assistant_ids for each in said.get((pk, _normalised(row.query)), ())]
        for row in rows
    }


# -- What becomes of it --------------------------------------------------------------------------------------------------
def recheck(principal: Principal, chunk: Chunk, questions: Iterable[str]) -> list[tuple[bool, str]]:
    """Searches again for what waits in these words, now that a chunk answers them, and resolves what finds the chunk.

    Each search is run as the last one that failed: for its assistant, under its profile and filters; live and external sources
    are not asked. Returns whether it is found and a sentence, for those that the principal may edit.
    """
    same = Q.create([("words", _Normalised(Value(storable(each)))) for each in questions], connector=Q.OR)
    rows = FailedQuery.objects.editable_by(principal).filter(state__in=FailedQuery.WAITING)
    waiting = rows.filter(knowledge_base_ids__contains=[chunk.knowledge_base_id]).select_related("last_search")
    told = []
    for failed in waiting.annotate(words=_Normalised("query")).filter(same)[:MOST_RECHECKED]:
        is_found = _finds(principal, failed, chunk)
        if is_found:
            set_state(principal, FailedQuery.objects.filter(pk=failed.pk), FailedQuery.State.RESOLVED)
            sentence = _("“%(query)s” is found now, and is resolved on the to-do list.")
        else:
            sentence = _(
                "A search for “%(query)s” still does not find it, so it stays on the to-do list: find out why."
            )
        told.append((is_found, sentence % {"query": failed.query}))
    return told


def _finds(principal: Principal, failed: FailedQuery, chunk: Chunk) -> bool:
    try:
        result = search(principal, _asked_again(failed)).result
    except (ServiceError, InvalidConfiguration, NoChannelAvailable):  # such as a profile that was deleted
        return False
    as_results = {each.chunk_id for hit in result.hits for each in hit.provenance}
    in_results = {each.chunk_id for each in result.candidates if each.cut_by is CutBy.PARENT}
    return chunk.pk in as_results | in_results


def _asked_again(failed: FailedQuery) -> SearchRequest:
    entry = failed.last_search
    asked = entry.trace.get("request", {}) if entry else {}
    profile, version = asked.get("profile", ""), asked.get("profile_version")
    asked_of = [entry.assistant_id or 0] if entry else failed.assistant_ids[-1:]
    if assistant := Assistant.objects.select_related("published").filter(pk__in=asked_of).first():
        profile, version = name_and_version(assistant.published_settings.profile)
    return SearchRequest(
        query=failed.query,
        knowledge_base_ids=failed.knowledge_base_ids,
        profile=profile,
        profile_version=version,
        overrides={**asked.get("overrides", {}), "external": False},
        filters=Filters.parse(asked["filters"]) if asked.get("filters") else None,
        log=False,
    )


# -- What curators do with it --------------------------------------------------------------------------------------------
def set_state(principal: Principal, rows: SearchedQuerySet, state: FailedQuery.State) -> int:
    """Puts failed queries into a state; returns how many, for those that the principal may not edit are passed over."""
    return rows.editable_by(principal).update(state=state)


def assign(principal: Principal, rows: SearchedQuerySet, user: User | None) -> int:
    """Gives failed queries to a user, or to nobody; an open one that is given to somebody is in progress from then on.

    Returns how many: those that the principal may not edit are passed over. Raises Rejected where the user may not see
    all of their knowledge bases.
    """
    with transaction.atomic():
        mine = FailedQuery.objects.filter(pk__in=list(rows.editable_by(principal).values_list("pk", flat=True)))
        count = len(mine.select_for_update().values_list("pk"))
        if user is not None and mine.visible_to(Principal(user)).count() < count:
            message = _(
                "“%(user)s” may not see every knowledge base of these queries: make that user a member of them, or choose "
                "another."
            )
            raise Rejected("assignee_cannot_see", message, user=user)
        mine.update(assignee=user)
        if user is not None:
            mine.filter(state=FailedQuery.State.OPEN).update(state=FailedQuery.State.IN_PROGRESS)
    return count


def may_name_assignees(principal: Principal, kb_ids: Sequence[int]) -> bool:
    """Whether the principal owns all the knowledge bases of a failed query, and so knows who their members are."""
    return bool(KnowledgeBase.objects.owned_by(principal).filter(pk__in=kb_ids).count() == len(set(kb_ids)))


def assignable_user(principal: Principal, kb_ids: Sequence[int], username: str) -> User:
    """Whom an owner means by a name: a member of all the knowledge bases of a failed query, whom the owner sees anyway.

    Whether any other account has the name is not to be learned here; so superusers take queries themselves. Raises
    NotAllowed where the principal does not own all the knowledge bases, and Rejected where no such member has the name.
    """
    if not may_name_assignees(principal, kb_ids):
        raise NotAllowed(_("Only an owner of all these knowledge bases may name another user."))
    users = User.objects.filter(is_active=True, is_staff=True, username=storable(username))
    for kb_id in kb_ids:
        owner = KnowledgeBase.objects.filter(pk=kb_id).values("owner")
        members = Membership.objects.filter(knowledge_base=kb_id).values("user")
        users = users.filter(Q(pk__in=owner) | Q(pk__in=members) | Q(pk__in=members_by_group(kb_id)))
    found: User | None = users.first()
    if found is None:
        message = _("No member of all the knowledge bases of this query has this name: see the page Members.")
        raise Rejected("unknown_assignee", message)
    return found


def to_eval_query(principal: Principal, failed: FailedQuery, target: EvalSet, *, answerable: bool = True) -> EvalQuery:
    """Makes a failed query, which stays in the inbox, one of an evaluation set, so that runs show when it is fixed.

    The target is a set of one of its knowledge bases; one that is not saved is made, unless there is one of its name.
    Not answerable: the knowledge base has no answer, and finding nothing is right. Returns the set's query of these
    words, which it may have had before. Raises NotVisible or NotAllowed where one of them is not the principal's to
    edit, and Rejected where the set is of another knowledge base, or the query is marked as without an answer, but has
    judgments.
    """
    require_editable_rows(principal, FailedQuery.objects.filter(pk=failed.pk), _("There is no such object."))
    if target.knowledge_base_id not in failed.knowledge_base_ids:
        message = _("The evaluation set belongs to a knowledge base that was not searched: choose another.")
        raise Rejected("other_knowledge_base", message)
    with transaction.atomic():
        if target.pk is None:
            target = eval_set_named(principal, target.knowledge_base, target.name)
        else:
            require_editable(principal, target)
        query = query_of(target, failed.query)
        if query.answerable != answerable:
            query = mark_unanswerable(principal, target, query.text, not answerable) or query
    return query
