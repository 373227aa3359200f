from typing import Any, Final, TypeVar

from django.db import IntegrityError, InterfaceError, OperationalError
from django.db.models import Model, QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from psycopg.errors import ForeignKeyViolation

from kb.base.messages import shown
from retrieval.errors import Message

# What the database's library raises where nothing is wrong with the request: the same one may be answered later.
DATABASE_OUT_OF_REACH: Final = (OperationalError, InterfaceError)

# Retry-After seconds on a write conflict.
COLLISION_SECONDS: Final = 1


class ServiceError(Exception):
    """A request that cannot be met; the message says what the caller can do, in the language in force."""

    def __str__(self) -> str:
        message = self.args[0] if self.args else ""
        return shown(message) if isinstance(message, Message) else super().__str__()


class NotVisible(ServiceError):
    """The object does not exist, or the caller may not see it: the two are not distinguished."""


M = TypeVar("M", bound=Model)


def found_in(rows: QuerySet[M], otherwise: str | Promise) -> M:
    """The only or first of these rows; raises NotVisible with `otherwise` where there is none."""
    found = rows.first()
    if found is None:
        raise NotVisible(otherwise)
    return found


class NotAllowed(ServiceError):
    """The caller may see the object, but not do this with it."""


def not_editable() -> NotAllowed:
    """Who may see an object, but wants to change it."""
    return NotAllowed(_("You may see this, but not change it: ask its owner to make you an editor."))


class AlreadyThere(ServiceError):
    """The same bytes are in the knowledge base already, in the document of this id."""

    def __init__(self, document_id: int, message: str) -> None:
        super().__init__(message)
        self.document_id = document_id


class Rejected(ServiceError):
    """The content itself cannot be taken; `code` is stable, and the values are those that the message has fields for."""

    def __init__(self, code: str, message: str, **values: Any) -> None:
        super().__init__(message % values if values else message)
        self.code = code


def is_collision(error: Exception) -> bool:
    """Whether a row was deleted while another came to point to it; one of the two was not written."""
    return isinstance(error, IntegrityError) and isinstance(error.__cause__, ForeignKeyViolation)


class Superseded(ServiceError):
    """The knowledge base moved to another model or tokenizer while something was derived: nothing was written."""
