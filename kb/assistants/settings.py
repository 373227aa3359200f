"""The settings of an assistant that its versions hold; the form of the admin is made from this one declaration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from django.utils.translation import gettext_noop

from retrieval.settings import setting, settings_of

Shows = Literal["page", "passage", "nothing"]

WELCOME, ANSWERS, SOURCES = gettext_noop("Welcome"), gettext_noop("Answers"), gettext_noop("Sources")

MOST_QUESTIONS, QUESTION_CHARACTERS = 8, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantSettings:
    """How an assistant searches, answers and looks, in the order of its form. Blank is what the knowledge bases or the installation have."""

    opening: str = setting(
        gettext_noop("Opening words"),
        gettext_noop("What visitors read before the first question."),
        group=WELCOME,
        default="",
        most=1_000,
        lines=3,
    )
    suggested_questions: tuple[str, ...] = setting(
        gettext_noop("Suggested questions"),
        gettext_noop("One a line, at most 8. Blank: taken from the knowledge bases."),
        group=WELCOME,
        default=(),
        most=QUESTION_CHARACTERS,
        lines=4,
    )
    follow_ups: bool = setting(
        gettext_noop("Suggests what to ask next"),
        gettext_noop("Below an answer, questions that the documents it rests on answer too."),
        group=WELCOME,
        default=True,
    )
    instructions: str = setting(
        gettext_noop("Instructions"),
        gettext_noop(
            "How it answers: tone, audience, what to mention. They stand in the chat model’s system prompt, below the rules "
            "that keep it to the passages found."
        ),
        group=ANSWERS,
        default="",
        most=4_000,
        lines=6,
    )
    no_answer: str = setting(
        gettext_noop("Answer when nothing is found"),
        gettext_noop("Blank: the sentence of the knowledge base."),
        group=ANSWERS,
        default="",
        most=500,
        lines=2,
    )
    remembers: bool = setting(
        gettext_noop("Remembers the conversation"),
        gettext_noop("Earlier turns complete a question before it is searched, and go to the chat model with it."),
        group=ANSWERS,
        default=True,
    )
    model: str = setting(
        gettext_noop("Chat model"),
        gettext_noop("Blank: the default chat model of this installation."),
        group=ANSWERS,
        default="",
        most=100,
    )
    profile: str = setting(
        gettext_noop("Retrieval profile"),
        gettext_noop("Blank: each knowledge base’s own."),
        group=ANSWERS,
        default="",
        most=110,
    )
    temperature: float = setting(
        gettext_noop("Temperature"),
        gettext_noop("0 answers the same question in the same words; higher varies them."),
        group=ANSWERS,
        default=0.0,
        between=(0.0, 2.0),
    )
    answer_tokens: int = setting(
        gettext_noop("Longest answer, tokens"),
        gettext_noop(
            "The chat model stops there. A Chinese character is about one token, an English word a little more."
        ),
        group=ANSWERS,
        default=1_024,
        between=(64, 16_384),
    )
    shows: Shows = setting(
        gettext_noop("What a citation opens"),
        gettext_noop("The original page shows everything that stands on it; nothing hides names of documents too."),
        group=SOURCES,
        default="page",
        choices={
            "page": gettext_noop("the passage on its original page"),
            "passage": gettext_noop("the passage alone"),
            "nothing": gettext_noop("nothing"),
        },
    )
    near_misses: bool = setting(
        gettext_noop("Shows near misses"),
        gettext_noop(
            "Where nothing reaches the relevance threshold, what lies just below it is shown as perhaps helpful."
        ),
        group=SOURCES,
        default=True,
    )

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Settings as a version holds them; what this release does not know is left out."""
        known: dict[str, Any] = {
            name: tuple(value) if name == "suggested_questions" else value
            for name, value in stored.items()
            if name in SETTINGS
        }
        return cls(**known)

    def stored(self) -> dict[str, Any]:
        """What a version holds: the settings that are not at their defaults."""
        default = type(self)()
        values = {name: getattr(self, name) for name in SETTINGS if getattr(self, name) != getattr(default, name)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


SETTINGS = settings_of(AssistantSettings)


def differences(before: AssistantSettings, after: AssistantSettings) -> list[tuple[str, Any, Any]]:
    """The settings that differ, in the order of the form: name, value before, value after."""
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in SETTINGS)
    return [(name, old, new) for name, old, new in pairs if old != new]
