"""Requests that wait for a server of somebody else: a quarter of the threads at most, so that the others answer on.

It needs no settings, since the library's clients are made before they are read.
"""

import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final

from django.utils.translation import gettext as _

from kb.base.errors import ServiceError
from kb.base.streams import SHARES, Share

RETRY_SECONDS: Final = 10
MOST: Final = max(1, int(os.environ.get("WEB_THREADS", "8")) // 4)


class TooManyWaits(ServiceError):
    """As many requests as may wait for other servers do so already, or one of the same user does."""


@contextmanager
def waiting_outside(user_id: int | None = None) -> Iterator[None]:
    """The block waits for another server: so many requests may at once, and one of a user; `user_id` None: of nobody known.

    Raises TooManyWaits.
    """
    of_user: Mapping[Hashable, int] = {} if user_id is None else {("outside", user_id): 1}
    with (
        closing(
            _place(of_user, _("An earlier request of yours still waits for another server: try again in a moment."))
        ),
        closing(
            _place(
                {"outside": MOST},
                _("Too many requests wait for other servers at the moment: try again in a few seconds."),
            )
        ),
    ):
        yield


def _place(limits: Mapping[Hashable, int], refusal: str) -> Share:
    share = SHARES.take(limits)
    if share is None:
        raise TooManyWaits(refusal)
    return share
