"""What Google's client library raises, in the words of a search."""

from collections.abc import Iterator
from contextlib import contextmanager

from kb.sources.external.providers.faults import not_configured, over_quota, refused, too_late, unavailable
from retrieval.errors import ChannelUnavailable


@contextmanager
def in_our_words(source: str) -> Iterator[None]:
    """Makes the library's errors those of a channel.

    Raises:
        ChannelUnavailable: with one of the codes EXTERNAL_...
    """
    import requests  # noqa: PLC0415 - they come with the library, which is an optional extra
    from google.api_core.exceptions import GoogleAPIError  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

    try:
        yield
    except GoogleAuthError as error:
        raise refused(source, type(error).__name__) from error
    except requests.Timeout as error:
        raise too_late(source) from error
    except requests.RequestException as error:
        raise unavailable(source, type(error).__name__) from error
    except OSError as error:  # the file of the credentials
        raise refused(source, type(error).__name__) from error
    except GoogleAPIError as error:
        raise _told(source, error) from error


def _told(source: str, error: Exception) -> ChannelUnavailable:
    from google.api_core import exceptions as google  # noqa: PLC0415

    name = type(error).__name__
    if isinstance(error, google.DeadlineExceeded | google.GatewayTimeout | google.RetryError):
        return too_late(source)
    if isinstance(error, google.TooManyRequests):  # ResourceExhausted is one
        return over_quota(source)
    if isinstance(error, google.Forbidden | google.Unauthorized):  # PermissionDenied and Unauthenticated are such
        return refused(source, name)
    if isinstance(error, google.BadRequest | google.NotFound):  # InvalidArgument and FailedPrecondition are such
        said = " ".join(str(getattr(error, "message", "")).split())[:300]
        return not_configured(source, f"{name}: {said}")
    return unavailable(source, name)
