"""What assistants were asked: questions of nearly the same words together, with how they were answered and what they cost."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime

import numpy as np
from django.db import connection
from django.db.models import F
from django.utils import timezone
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase, Principal
from kb.assistants.models import Assistant
from kb.base.errors import NotVisible
from kb.base.text import normalized_key
from kb.profiles.services import find_version, name_and_version
from kb.providers.embedding_models import load_tokenizer, query_vectors
from kb.quality.models import EvalRun, EvalSet
from kb.search.wiring import vector_scope
from retrieval.clusters import clusters
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.rewrite import core_intent

# The newest turns that are looked at, and how many questions of different words of them are compared.
MOST_TURNS, MOST_QUESTIONS = 20_000, 1_500

_TURNS = """
SELECT question.text, answer.hit, answer.status, answer.feedback, answer.created_at, v.id,
    coalesce(answer.input_tokens, 0), coalesce(answer.output_tokens, 0)
FROM kb_visitor v
JOIN kb_conversation c ON c.visitor_id = v.id
JOIN kb_message answer ON answer.conversation_id = c.id AND answer.role = 'assistant'
JOIN LATERAL (
    SELECT text FROM kb_message m WHERE m.conversation_id = c.id AND m.id < answer.id ORDER BY m.id DESC LIMIT 1
) question ON TRUE
WHERE v.assistant_id = %s AND answer.created_at >= %s AND c.knowledge_base_ids <@ %s::bigint[]
ORDER BY answer.id DESC LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and how it was answered."""

    question: str
    hit: bool | None
    status: str
    feedback: int | None
    at: datetime
    visitor_id: object
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """Questions of nearly the same words.

    Attributes:
        question: in the words that were used most.
        others: further words of it, the most used first.
        answered: the share of those that are finished whose answer rests on passages, 0 to 1; None: none is finished.
        by_day: how often it was asked on each day that it was.
    """

    question: str
    others: tuple[str, ...]
    count: int
    visitors: int
    answered: float | None
    helpful: int
    unhelpful: int
    input_tokens: int
    output_tokens: int
    by_day: dict[date, int]
    last: datetime


@dataclass(frozen=True, slots=True)
class Questions:
    """What an assistant was asked since some time.

    Attributes:
        unread: turns whose words are not kept, or that are too many to compare.
    """

    clusters: tuple[Cluster, ...]
    turns: int
    unread: int


def questions_asked(
    principal: Principal, assistant: Assistant, since: datetime, *, only_unanswered: bool = False
) -> Questions:
    """What was asked over knowledge bases that the principal may edit, most often first.

    The words of questions are cut as those of the assistant's first knowledge base are.
    """
    editable = list(KnowledgeBase.objects.editable_by(principal).values_list("pk", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(_TURNS, [assistant.pk, since, editable, MOST_TURNS])
        turns = [Turn(*row) for row in cursor.fetchall()]
    if only_unanswered:
        turns = [turn for turn in turns if turn.hit is False]
    by_words: dict[str, list[Turn]] = {}
    for turn in turns:
        if turn.question.strip():
            by_words.setdefault(normalized_key(core_intent(turn.question)), []).append(turn)
    groups = sorted(by_words.values(), key=lambda group: -len(group))[:MOST_QUESTIONS]
    texts = [group[0].question for group in groups]
    bases = sorted(assistant.knowledge_bases.all(), key=lambda kb: kb.pk)
    found = clusters(_terms(bases, texts), [len(group) for group in groups], _vectors(bases, texts))
    made = tuple(_cluster([groups[place] for place in places]) for places in found)
    return Questions(made, len(turns), len(turns) - sum(each.count for each in made))


def sets_of(principal: Principal, assistant: Assistant) -> list[tuple[EvalSet, EvalRun | None]]:
    """The evaluation sets of an assistant's knowledge bases, each with its last run that searched as the assistant does."""
    kb_ids = {kb.pk for kb in assistant.knowledge_bases.all()}
    sets = EvalSet.objects.visible_to(principal).filter(knowledge_base__in=kb_ids).select_related("knowledge_base")
    runs = EvalRun.objects.filter(eval_set__in=sets, status=EvalRun.Status.DONE, overrides={})
    if chosen := assistant.published_settings.profile:
        try:
            runs = runs.filter(profile=find_version(principal, *name_and_version(chosen), scope=kb_ids))
        except NotVisible:
            runs = runs.none()
    else:
        runs = runs.filter(profile=F("eval_set__knowledge_base__profile"))
    last = {run.eval_set_id: run for run in runs.order_by("eval_set_id", "-created_at", "-pk").distinct("eval_set_id")}
    return [(each, last.get(each.pk)) for each in sets]


def _terms(bases: Sequence[KnowledgeBase], texts: Iterable[str]) -> list[list[str]]:
    cut = load_tokenizer(bases[0].tokenizer_id if bases else "")
    return [cut(core_intent(text)) for text in texts]


def _vectors(bases: Sequence[KnowledgeBase], texts: Sequence[str]) -> list[NDArray[np.float32] | None]:
    """As the searches for them have left them in the caches, if they have; hashed ones know no more than the terms do."""
    if not bases or bases[0].embedding_model == HASHING_MODEL_ID:
        return []
    vectors, scope = query_vectors(bases[0].embedding_model), vector_scope(kb.pk for kb in bases)
    return [vectors.known(text, scope) for text in texts]


def _cluster(groups: list[list[Turn]]) -> Cluster:
    turns = [turn for group in groups for turn in group]
    finished = [turn for turn in turns if turn.status == "done" and turn.hit is not None]
    by_day: dict[date, int] = {}
    for turn in turns:
        day = timezone.localdate(turn.at)
        by_day[day] = by_day.get(day, 0) + 1
    return Cluster(
        question=_in_most_words(groups[0]),
        others=tuple(map(_in_most_words, groups[1:])),
        count=len(turns),
        visitors=len({turn.visitor_id for turn in turns}),
        answered=sum(bool(turn.hit) for turn in finished) / len(finished) if finished else None,
        helpful=sum(turn.feedback == 1 for turn in turns),
        unhelpful=sum(turn.feedback == -1 for turn in turns),
        input_tokens=sum(turn.input_tokens for turn in turns),
        output_tokens=sum(turn.output_tokens for turn in turns),
        by_day=dict(sorted(by_day.items())),
        last=max(turn.at for turn in turns),
    )


def _in_most_words(turns: Iterable[Turn]) -> str:
    """The question as most have written it."""
    return Counter(" ".join(turn.question.split()) for turn in turns).most_common(1)[0][0]
