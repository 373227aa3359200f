"""Who may use an assistant now: looked at again with every request, so that what is taken back ends at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

from django.contrib.auth.hashers import check_password
from django.contrib.auth.models import AnonymousUser
from django.core import signing
from django.db import models
from django.urls import reverse
from django.utils.crypto import constant_time_compare, salted_hmac

from kb.access.models import Principal, User
from kb.assistants.models import Assistant, ShareLink, Visitor

_LINK, _VISIT = "kb.assistants.link", "kb.assistants.visit"
VISIT_SECONDS: Final = 180 * 24 * 60 * 60


class Requirement(models.TextChoices):
    """What somebody lacks who may not use an assistant; CLOSED: nothing that they could do."""

    SIGN_IN = "sign_in"
    LINK = "link"
    PASSWORD = "password"  # noqa: S105 - the name of a requirement
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody who may use an assistant now.

    Attributes:
        visitor_id: by which conversations are found; a row of Visitor once something was asked.
        user: who is signed in; None: known by the id alone.
        link_id: the link that let a visitor in, if any.
        knows_password: whether the present password was given.
    """

    assistant: Assistant
    visitor_id: UUID
    user: User | None = None
    link_id: UUID | None = None
    knows_password: bool = False

    def token(self) -> str:
        """What a browser keeps and sends; it names who it was given to, and opens nothing once what it was given for has ended."""
        digest = _password_digest(self.assistant) if self.knows_password else ""
        held: dict[str, Any] = {"a": self.assistant.pk, "v": self.visitor_id.hex, "p": digest}
        if self.user is not None:
            held["u"] = self.user.pk
        if self.link_id is not None:
            held["l"] = self.link_id.hex
        return signing.dumps(held, salt=_VISIT)


def link_token(link: ShareLink) -> str:
    """The part of a link's address that nobody can guess."""
    return signing.Signer(salt=_LINK).sign(link.pk.hex)


def chat_path(assistant: Assistant, link: ShareLink | None = None) -> str:
    """Where its chat page is; with a link the address that lets its holder in."""
    return reverse("chat:page", args=[assistant.slug]) + (f"?key={link_token(link)}" if link else "")


def usable_link(assistant: Assistant, token: str) -> ShareLink | None:
    """The link of a token, as long as it is neither revoked nor expired; None where there is none."""
    try:
        pk = UUID(hex=signing.Signer(salt=_LINK).unsign(token))
    except (signing.BadSignature, ValueError):
        return None
    return assistant.links.usable().filter(pk=pk).first()


def visit_of(assistant: Assistant, user: User | AnonymousUser, token: str) -> Visit | None:
    """The visit that a token stands for, if what it was given for still holds; None where it does not."""
    held = _held(assistant, token)
    if held is None:
        return None
    signed_in = user if isinstance(user, User) and user.pk == held.get("u") else None
    if "u" in held and signed_in is None:
        return None  # the session has ended, or is another user's
    link_id = UUID(hex=held["l"]) if "l" in held else None
    knows_password = bool(held["p"]) and constant_time_compare(held["p"], _password_digest(assistant))
    if requirement(assistant, signed_in or AnonymousUser(), link_id=link_id, has_password=knows_password):
        return None
    visitor_id = UUID(hex=held["v"]) if signed_in is None else visitor_of(assistant, signed_in)
    return Visit(assistant, visitor_id, signed_in, link_id, knows_password)


def visitor_of(assistant: Assistant, user: User) -> UUID:
    """The visitor that a user is: the same one in every browser, and a new one after what was kept of it was deleted."""
    known = Visitor.objects.filter(assistant=assistant, user=user).values_list("pk", flat=True).first()
    return known or Visitor.objects.get_or_create(assistant=assistant, user=user)[0].pk


def earlier_visitor(assistant: Assistant, token: str) -> UUID | None:
    """Who a browser was when it was given a token, also where that opens nothing any more; None for a user's: they sign in."""
    held = _held(assistant, token)
    return UUID(hex=held["v"]) if held is not None and "u" not in held else None


def _held(assistant: Assistant, token: str) -> Mapping[str, Any] | None:
    """What `Visit.token` has put into a token; None where it is none, or another assistant's."""
    try:
        held: Mapping[str, Any] = signing.loads(token, salt=_VISIT, max_age=VISIT_SECONDS)
    except signing.BadSignature:
        return None
    return held if held["a"] == assistant.pk else None


def requirement(
    assistant: Assistant, user: User | AnonymousUser, *, link_id: UUID | None = None, has_password: bool = False
) -> Requirement | None:
    """What a user, or somebody who is not signed in, lacks; None: nothing. Members need neither link nor password."""
    if not assistant.is_answering:
        return Requirement.CLOSED
    if user.is_active and Assistant.objects.open_to(Principal(user)).filter(pk=assistant.pk).exists():
        return None
    match assistant.access:
        case Assistant.Access.PRIVATE:
            return Requirement.CLOSED if user.is_active else Requirement.SIGN_IN
        case Assistant.Access.SIGNED_IN if not user.is_active:
            return Requirement.SIGN_IN
        case Assistant.Access.LINK if link_id is None or not assistant.links.usable().filter(pk=link_id).exists():
            return Requirement.LINK
    return Requirement.PASSWORD if assistant.password and not has_password else None


def enter(
    assistant: Assistant,
    user: User | AnonymousUser,
    *,
    link: str = "",
    password: str = "",
    known_as: UUID | None = None,
) -> Visit | Requirement:
    """A visit, or what is lacking for one. `known_as` is the id of an earlier visit of the same browser."""
    found = usable_link(assistant, link) if link else None
    link_id = found.pk if found else None
    is_right = bool(password and assistant.password and check_password(password, assistant.password))
    if lacking := requirement(assistant, user, link_id=link_id, has_password=is_right):
        return lacking
    if isinstance(user, User):
        return Visit(assistant, visitor_of(assistant, user), user, link_id, is_right)
    return Visit(assistant, known_as or uuid4(), None, link_id, is_right)


def _password_digest(assistant: Assistant) -> str:
    """Changes with the password, whose hash it does not give away; blank where there is none."""
    if not assistant.password:
        return ""
    return salted_hmac("kb.assistants.password", assistant.password, algorithm="sha256").hexdigest()[:16]
