"""What a connector does for the run that reads its place."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple, Self

from django.utils.translation import gettext as _

from kb.base.errors import Rejected
from kb.base.net.addresses import MESSAGES, FetchError, Owner, nobody
from kb.sources.fields import Field

MOST_FILES: Final = 200_000  # of a place, those that its source leaves out too


@dataclass(frozen=True, slots=True)
class Item:
    """One file of a place, as its listing has it.

    Attributes:
        key: what names it within its source: a path, the key of an object, an address.
        version: of its content as the place says it: an ETag, the hash of a blob. While it is the same, the file is not
            fetched. Blank: the place does not say.
        digest: SHA-256 of the content in hexadecimal, where the place says it, so that a file that moved is known without
            being fetched.
        name: of the file, whose extension says how it is read.
        size: in bytes; None: the place does not say.
        url: where people open it; blank: nowhere.
        address: where the connector fetches it, if the key does not say that.
    """

    key: str
    version: str = ""
    digest: str = ""
    name: str = ""
    title: str = ""
    size: int | None = None
    modified: datetime | None = None
    url: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    address: str = ""


class Portion(NamedTuple):
    """A part of a listing, such as a folder, and where the listing goes on; None: there is no more."""

    items: Sequence[Item]
    position: Any


class Connector(ABC):
    """A place for the time of one run, as a context manager that closes its connections.

    It is made from a value for each of `fields`, secrets among them. Every method raises FetchError: with the code "gone" of
    an item that is not there any more, and with one of UNAVAILABLE where the place as a whole cannot be read now.
    """

    fields: ClassVar[tuple[Field, ...]]

    @abstractmethod
    def __init__(self, values: Mapping[str, Any], *, owner: Owner) -> None: ...

    @classmethod
    def check(cls, values: Mapping[str, Any], owner: Owner = nobody) -> None:
        """Raises Rejected, whose code begins with the name of a field, where no place can be read; contacts nobody."""
        try:
            cls(values, owner=owner)
        except FetchError as error:
            raise Rejected("url_invalid", _(MESSAGES[error.code]).format(**error.params)) from error

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *exception: object) -> None: ...

    def items(self) -> Iterator[Item]:
        """All that the place has now."""
        for portion in self.portions(None):
            yield from portion.items

    @abstractmethod
    def portions(self, position: Any) -> Iterator[Portion]:
        """All that the place has for its source now, in an order that stays the same, from a position of before on.

        A portion costs one request or a few, and comes even where nothing in it is taken. A position is what JSON can hold, and
        is enough for another connector, on another day, to go on; None: from the beginning. What the place had before and is
        not in any portion has gone, so one that cannot be listed to its end raises.
        """

    @abstractmethod
    def fetch(self, item: Item, into: BinaryIO, most: int) -> Item:
        """Writes the content; returns the item with the version of what was written, which may be a newer one.

        Raises FetchError("too_large") as soon as more than `most` bytes come.
        """


# Codes of FetchError after which no other item of the place need be asked.
UNAVAILABLE = frozenset(
    {
        "forbidden_address",
        "unknown_host",
        "unreachable",
        "tls_failed",
        "timeout",
        "too_many_requests",
        "folder_not_allowed",
        "folder_missing",
        "no_bucket",
        "bad_credentials",
        "git_missing",
        "git_failed",
        "repository_too_large",
        "host_key",
    }
)
