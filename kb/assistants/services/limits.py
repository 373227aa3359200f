"""How much may be asked of an assistant in a day: counted in one statement before a chat model is asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _, gettext_noop

from kb.assistants.models import Assistant
from kb.base.errors import ServiceError

# What a question with its passages takes at most, beside the answer; put back once it is known.
PROMPT_TOKENS = 4_000

# In one order, or two requests may wait for each other.
_COUNT = """
INSERT INTO kb_assistantuse (assistant_id, day, whose, questions, tokens)
SELECT %(assistant)s, %(day)s, l.whose, 1, %(tokens)s
FROM unnest(%(whose)s::text[], %(questions)s::bigint[], %(most)s::bigint[]) AS l(whose, questions, most)
ORDER BY l.whose
ON CONFLICT (assistant_id, day, whose) DO UPDATE SET
    questions = kb_assistantuse.questions + 1, tokens = kb_assistantuse.tokens + EXCLUDED.tokens
WHERE NOT EXISTS (
    SELECT FROM unnest(%(whose)s::text[], %(questions)s::bigint[], %(most)s::bigint[]) AS l(whose, questions, most)
    WHERE l.whose = kb_assistantuse.whose
        AND (kb_assistantuse.questions >= l.questions OR kb_assistantuse.tokens + EXCLUDED.tokens > l.most))
RETURNING whose
"""
_SETTLE = """
UPDATE kb_assistantuse SET tokens = greatest(0, tokens + %(more)s), questions = greatest(0, questions - %(questions)s)
WHERE id IN (
    SELECT id FROM kb_assistantuse WHERE assistant_id = %(assistant)s AND day = %(day)s AND whose = ANY(%(whose)s)
    ORDER BY whose FOR UPDATE
)
"""

_REACHED: Mapping[str, str] = {
    "": gettext_noop("This assistant has answered as much as it may today. It answers again tomorrow."),
    "v": gettext_noop("You have asked as much as one visitor may today. You can ask again tomorrow."),
    "a": gettext_noop("As much was asked from your network as may be today. You can ask again tomorrow."),
}


class LimitReached(ServiceError):
    """A limit of today is reached; `whose` is "" (everybody's), "v" (a visitor's) or "a" (a network address's)."""

    def __init__(self, whose: str) -> None:
        super().__init__(_(_REACHED[whose]))
        self.whose = whose


@dataclass(frozen=True, slots=True)
class Counted:
    """A question that was counted, with the tokens that it may take."""

    assistant_id: int
    day: date
    whose: tuple[str, ...]
    tokens: int

    def settle(self, tokens: int) -> None:
        """Puts in place of what it might have taken what it took."""
        self._change(tokens - self.tokens, questions=0)

    def take_back(self) -> None:
        """A question that was not answered, for a fault that is not its asker's."""
        self._change(-self.tokens, questions=1)

    def _change(self, more: int, *, questions: int) -> None:
        values: dict[str, Any] = {"more": more, "questions": questions, "assistant": self.assistant_id, "day": self.day}
        with connection.cursor() as cursor:
            cursor.execute(_SETTLE, values | {"whose": list(self.whose)})


def question_count(assistant: Assistant, visitor_id: UUID, address: str, *, answer_tokens: int) -> Counted:
    """Counts a question against the limits of its visitor, of the network address and of the assistant.

    `address` is blank where nobody's is known. Raises LimitReached, and nothing is counted.
    """
    day = timezone.localdate()
    limits = {
        "": (assistant.total_questions, assistant.total_tokens),
        f"v:{visitor_id}": (assistant.visitor_questions, assistant.visitor_tokens),
    }
    if address:
        hashed = salted_hmac("kb.assistants.address", f"{day} {address}", algorithm="sha256").hexdigest()[:32]
        limits[f"a:{hashed}"] = (assistant.address_questions, assistant.address_tokens)
    # A limit below what one question may take admits one at a time, and none once anything was taken.
    most = min(
        [PROMPT_TOKENS + answer_tokens, *(tokens for _questions, tokens in limits.values() if tokens is not None)]
    )
    counted = Counted(assistant.pk, day, tuple(limits), most)
    given: dict[str, Any] = {
        "assistant": assistant.pk,
        "day": day,
        "tokens": counted.tokens,
        "whose": list(limits),
        "questions": [questions for questions, _tokens in limits.values()],
        "most": [tokens for _questions, tokens in limits.values()],
    }
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(_COUNT, given)
            within = {whose for (whose,) in cursor.fetchall()}
        if beyond := [whose for whose in limits if whose not in within]:
            transaction.set_rollback(True)
            raise LimitReached(beyond[0][:1])
    return counted
