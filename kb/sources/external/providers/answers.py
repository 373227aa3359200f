"""Why a search service has not answered, with what to do about it."""

from django.utils.translation import gettext_noop

from retrieval.errors import ChannelUnavailable, DegradationCode, Message

ANSWERS = {
    DegradationCode.EXTERNAL_NOT_CONFIGURED: gettext_noop("The external source “{source}” cannot be asked: {reason}"),
    DegradationCode.EXTERNAL_REFUSED: gettext_noop(
        "The external source “{source}” lets this server not in ({reason}): check its credentials, and that they may "
        "search the data store."
    ),
    DegradationCode.EXTERNAL_QUOTA: gettext_noop(
        "The external source “{source}” has been asked more often than its quota allows: wait, or ask for a higher one."
    ),
    DegradationCode.EXTERNAL_TIMEOUT: gettext_noop(
        "The external source “{source}” did not answer in time: allow it more milliseconds, or try again later."
    ),
    DegradationCode.EXTERNAL_UNAVAILABLE: gettext_noop(
        "The external source “{source}” is out of reach or failed ({reason}): try again later, and look whether its "
        "service is up."
    ),
}


def unanswered(code: DegradationCode, source: str, **details: str) -> ChannelUnavailable:
    """Why a source has not answered; `details` has the reason, where the message of the code names one."""
    return ChannelUnavailable(code, Message(ANSWERS[code], source=source, **details))
