"""What a kind of search service wants to know, for its check, its form and the documentation of the API.

Why a search service has not answered, each with what to do about it.
"""

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_noop

from retrieval.errors import ChannelUnavailable
from retrieval.messages import Message
from retrieval.trace import DegradationCode


def not_configured(source: str, reason: str) -> ChannelUnavailable:
    """It cannot be asked as it is set up."""
    template = gettext_noop("The external source “{source}” cannot be asked: {reason}")
    return ChannelUnavailable(DegradationCode.EXTERNAL_NOT_CONFIGURED, Message(template, source=source, reason=reason))


def refused(source: str, reason: str) -> ChannelUnavailable:
    """It does not let this server in."""
    template = gettext_noop(
        "The external source “{source}” lets this server not in ({reason}): check its credentials, and that they may "
        "search the data store."
    )
    return ChannelUnavailable(DegradationCode.EXTERNAL_REFUSED, Message(template, source=source, reason=reason))


def over_quota(source: str) -> ChannelUnavailable:
    """It has been asked too often."""
    template = gettext_noop(
        "The external source “{source}” has been asked more often than its quota allows: wait, or ask for a higher one."
    )
    return ChannelUnavailable(DegradationCode.EXTERNAL_QUOTA, Message(template, source=source))


def too_late(source: str) -> ChannelUnavailable:
    """It did not answer in time."""
    template = gettext_noop(
        "The external source “{source}” did not answer in time: allow it more milliseconds, or try again later."
    )
    return ChannelUnavailable(DegradationCode.EXTERNAL_TIMEOUT, Message(template, source=source))


def unavailable(source: str, reason: str) -> ChannelUnavailable:
    """It is out of reach, or failed."""
    template = gettext_noop(
        "The external source “{source}” is out of reach or failed ({reason}): try again later, and look whether its "
        "service is up."
    )
    return ChannelUnavailable(DegradationCode.EXTERNAL_UNAVAILABLE, Message(template, source=source, reason=reason))


class InvalidSettings(Exception):
    """Settings cannot be used; the message says why and what to do.

    Attributes:
        field: the name of the setting, "kind" or "settings".
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Field:
    """A setting.

    Attributes:
        hint: what may be given.
        pattern: a regular expression that a value matches as a whole; blank: any text.
        choices: none: no list of values.
        is_flag: it is true or false.
    """

    name: str
    label: str | Promise
    hint: str | Promise = ""
    default: str | bool = ""
    pattern: str = ""
    choices: tuple[str, ...] = ()
    is_required: bool = False
    is_flag: bool = False
