"""Why a search service has not answered, each with what to do about it."""

from django.utils.translation import gettext as _

from retrieval.errors import ChannelUnavailable
from retrieval.trace import DegradationCode


def not_configured(source: str, reason: str) -> ChannelUnavailable:
    """It cannot be asked as it is set up."""
    message = _("The external source “%(source)s” cannot be asked: %(reason)s")
    return ChannelUnavailable(DegradationCode.EXTERNAL_NOT_CONFIGURED, message % {"source": source, "reason": reason})


def refused(source: str, reason: str) -> ChannelUnavailable:
    """It does not let this server in."""
    message = _(
        "The external source “%(source)s” lets this server not in (%(reason)s): check its credentials, and that they may "
        "search the data store."
    )
    return ChannelUnavailable(DegradationCode.EXTERNAL_REFUSED, message % {"source": source, "reason": reason})


def over_quota(source: str) -> ChannelUnavailable:
    """It has been asked too often."""
    message = _(
        "The external source “%(source)s” has been asked more often than its quota allows: wait, or ask for a higher one."
    )
    return ChannelUnavailable(DegradationCode.EXTERNAL_QUOTA, message % {"source": source})


def too_late(source: str) -> ChannelUnavailable:
    """It did not answer in time."""
    message = _(
        "The external source “%(source)s” did not answer in time: allow it more milliseconds, or try again later."
    )
    return ChannelUnavailable(DegradationCode.EXTERNAL_TIMEOUT, message % {"source": source})


def unavailable(source: str, reason: str) -> ChannelUnavailable:
    """It is out of reach, or failed."""
    message = _(
        "The external source “%(source)s” is out of reach or failed (%(reason)s): try again later, and look whether its "
        "service is up."
    )
    return ChannelUnavailable(DegradationCode.EXTERNAL_UNAVAILABLE, message % {"source": source, "reason": reason})
