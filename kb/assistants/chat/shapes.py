"""What visitors send and are sent: nothing else of an answer, a search or a document leaves the server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from kb.answers.models import Conversation
from kb.answers.services.conversations import FEEDBACK_CHARACTERS, TITLE_CHARACTERS
from kb.search.services.search import MAX_QUERY_CHARS, MAX_TURN_CHARS, MAX_TURNS

CREDENTIAL_CHARACTERS = 200

Question = Annotated[str, Meta(min_length=1, max_length=MAX_QUERY_CHARS)]


# -- Sent by visitors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterBody:
    """`visit` is the token of an earlier visit."""

    key: Annotated[str, Meta(max_length=CREDENTIAL_CHARACTERS)] = ""
    password: Annotated[str, Meta(max_length=CREDENTIAL_CHARACTERS)] = ""
    visit: Annotated[str, Meta(max_length=1_000)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTurn:
    role: Literal["user", "assistant"]
    text: Annotated[str, Meta(max_length=MAX_TURN_CHARS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Of a website, on which an embedded chat is open."""

    url: Annotated[str, Meta(max_length=4_000)] = ""
    title: Annotated[str, Meta(max_length=4_000)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBody:
    """`sending_id` is made by the browser, the same one where it sends a question again after a lost connection."""

    question: Question
    sending_id: UUID
    conversation_id: UUID | None = None
    instead_of: int | None = None
    history: Annotated[tuple[HistoryTurn, ...], Meta(max_length=MAX_TURNS)] = ()
    page: Page | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackBody:
    value: Literal[-1, 0, 1]
    text: Annotated[str, Meta(max_length=FEEDBACK_CHARACTERS)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameBody:
    title: Annotated[str, Meta(min_length=1, max_length=TITLE_CHARACTERS)]


# -- Sent to visitors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """Somebody is let in; `keeps` says whether conversations are stored."""

    visit: str
    name: str
    opening: str
    suggested_questions: Sequence[str]
    remembers: bool
    keeps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SentSource:
    """A source or near miss: all but its number is blank where the assistant shows none; `url` is its own on the web."""

    number: int
    label: str = ""
    title: str = ""
    text: str = ""
    url: str = ""
    has_page: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAnswer:
    """`status` is one of `Message.Status`, "unwritten" where the chat model did not answer, or "listed" where there is none.

    No chat model has written the text of the last two: `answer` is blank, and the page says so in its own language.
    """

    message_id: int | None
    conversation_id: str | None
    status: str
    answer: str
    sources: Sequence[SentSource]
    near_misses: Sequence[SentSource] = ()
    follow_ups: Sequence[str] = ()
    feedback: int = 0
    feedback_text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTurn:
    question: str
    answer: SentAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class SentConversation:
    """`earlier` is what `before` asks for the turns before these with; None: there are none."""

    id: str
    title: str
    updated_at: str
    turns: Sequence[SentTurn] = ()
    earlier: int | None = None

    @classmethod
    def listed(cls, row: Conversation) -> "SentConversation":
        return cls(id=str(row.pk), title=row.title, updated_at=row.updated_at.isoformat())


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPassage:
    """A passage where it stands now: with the text around it, and the numbers and labels of the pages that show it."""

    title: str
    headings: Sequence[str]
    before: str
    text: str
    after: str
    pages: Sequence[tuple[int, str]]
    has_original_text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPage:
    """A page with the passage's boxes (left, top, width, height, in per cent), or why it cannot be shown, or not yet."""

    label: str
    width: int = 0
    height: int = 0
    places: Sequence[tuple[float, float, float, float]] = ()
    problem: str = ""
    is_awaited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SentText:
    """The text of a file around a passage as HTML of the server's own making; blank with why it cannot be shown, or not yet."""

    html: str = ""
    problem: str = ""
    is_awaited: bool = False
