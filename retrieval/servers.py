"""What the clients of models' servers have in common: how they are reached, and what they quote."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from retrieval.errors import AddressRefused, Message, RequestWithdrawn, message_of


@dataclass(frozen=True, slots=True)
class Access:
    """How a server is reached, and what is said where that fails.

    Attributes:
        connect: makes the client, which may refuse addresses: of httpx, for `openai` of httpx2; None: one that does not.
        remedy: what to look at where the server fails; None: the environment variables that name it.
        problem: why it cannot be asked at all.
        model_id: by which its use is counted; blank: the server's name for the model.
        needs_key: whether a server that is not on the loopback is asked with a key only.
    """

    connect: Callable[[], Any] | None = None
    remedy: Message | None = None
    problem: Message | None = None
    model_id: str = ""
    needs_key: bool = True


DIRECT: Final = Access()


def refusal_of(error: BaseException | None) -> Message | None:
    """The message of a client that does not connect to an address, or no more; None for a fault of the server or on the way."""
    while error is not None:
        if isinstance(error, AddressRefused | RequestWithdrawn):
            return cast("Message", message_of(error))
        error = error.__cause__
    return None


def quoted(text: str, api_key: str, most: int = 200) -> str:
    """What a server says is wrong; some repeat the key."""
    return (text.replace(api_key, "***") if api_key else text)[:most]
