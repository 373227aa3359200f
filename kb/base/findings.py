"""Results of checks: what a health check found, and remarks on a document that was read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial, wraps
from typing import Final


class State(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and its remedy, empty where none is needed."""

    name: str
    state: State
    detail: str
    remedy: str = ""


# For what `check` names: each takes what was found, and what to do about it.
ok = partial(Finding, "", State.OK)
degraded = partial(Finding, "", State.DEGRADED)
broken = partial(Finding, "", State.BROKEN)


def check(name: str) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """Gives what a health check finds the name of what it looks at."""

    def decorate(look: Callable[[], Finding]) -> Callable[[], Finding]:
        @wraps(look)
        def named() -> Finding:
            return replace(look(), name=name)

        return named

    return decorate


def listed(names: Iterable[str], shown: int = 5) -> str:
    names = list(names)
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(repr(name) for name in names[:shown]) + rest


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class RemarkCode(StrEnum):
    ATTACHMENTS_LEFT_OUT = "attachments_left_out"
    ATTACHMENTS_NOT_READ = "attachments_not_read"
    FORMULAS_WITHOUT_VALUE = "formulas_without_value"
    HIDDEN_LEFT_OUT = "hidden_left_out"
    MODEL_DID_NOT_READ = "model_did_not_read"
    PAGES_RECOGNISED = "pages_recognised"
    PAGES_WITHOUT_TEXT = "pages_without_text"
    PICTURES_BEYOND = "pictures_beyond"
    PICTURES_DAMAGED = "pictures_damaged"
    PICTURES_DRAWN = "pictures_drawn"
    PICTURES_NOT_DESCRIBED = "pictures_not_described"
    PICTURES_UNREAD = "pictures_unread"
    PARSER_DID_NOT_READ = "parser_did_not_read"
    READ_IN_PART = "read_in_part"


@dataclass(frozen=True, slots=True)
class Remark:
    """What the curator of a document that could be read should know of it."""

    code: RemarkCode
    params: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def message(self) -> str:
        return REMARKS[self.code].format(**self.params)


def gettext_noop(message: str) -> str:
    """Marks a message for makemessages; it is translated where it is shown."""
    return message


REMARKS: Final[Mapping[str, str]] = {
    RemarkCode.ATTACHMENTS_LEFT_OUT: gettext_noop(
        "These attachments of the mail became no documents: {names}. The page of the upload says why."
    ),
    RemarkCode.ATTACHMENTS_NOT_READ: gettext_noop("The attachments of the mail became no documents: {reason}"),
    RemarkCode.FORMULAS_WITHOUT_VALUE: gettext_noop(
        "These cells hold formulas without a stored result and were left out: {names}. "
        "Open the file in Excel or LibreOffice, save it again and upload that."
    ),
    RemarkCode.HIDDEN_LEFT_OUT: gettext_noop(
        "These are hidden in the file and were left out: {names}. Show them in the program that made it to have them read."
    ),
    RemarkCode.MODEL_DID_NOT_READ: gettext_noop(
        "The chat model did not read {count} of its chunks: these have extracted keywords and no questions of its own. "
        "Fix the cause and process the document again: {reason}"
    ),
    RemarkCode.PAGES_RECOGNISED: gettext_noop(
        "These pages were read by text recognition (OCR), which makes mistakes: {pages}. Compare them with the original."
    ),
    RemarkCode.PAGES_WITHOUT_TEXT: gettext_noop(
        "These pages of the PDF show pictures and have little text layer or none: {pages}. "
        "If they are scans, run text recognition (OCR) on the file and upload the result."
    ),
    RemarkCode.PICTURES_BEYOND: gettext_noop(
        "Pictures were left out: {count}. Of a document at most {most} are kept, of {megabytes} MB together, and opening them "
        "may take a part of the time that the document has. Split it into smaller files to have all of them."
    ),
    RemarkCode.PICTURES_DAMAGED: gettext_noop(
        "Pictures that are damaged, too large or of an unknown kind were left out: {count}. "
        "Insert them again as PNG or JPEG to have them shown."
    ),
    RemarkCode.PICTURES_DRAWN: gettext_noop(
        "Drawings (SVG, EMF or WMF) were left out: {count}. Insert them as PNG or JPEG to have them shown."
    ),
    RemarkCode.PICTURES_NOT_DESCRIBED: gettext_noop(
        "The vision model has not described pictures of the document: {count}. "
        "Fix the cause and process the document again: {reason}"
    ),
    RemarkCode.PICTURES_UNREAD: gettext_noop(
        "The text on pictures was not read for lack of time: {count}. Split the document into smaller files, or set "
        "PARSE_SECONDS higher and process it again."
    ),
    RemarkCode.PARSER_DID_NOT_READ: gettext_noop(
        "{parser} did not read this document, so the built-in reader did: {reason}. "
        "Once it works, process the document again."
    ),
    RemarkCode.READ_IN_PART: gettext_noop(
        "{parser} read this document only in part. Compare it with the original; its log says what was left out."
    ),
}
