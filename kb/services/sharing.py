"""Who may use a knowledge base: its owner, and members with the roles viewer, editor and owner.

A change locks the knowledge base and then looks whether who asks is an owner still: of two owners who remove each other at
the same moment one stays, and who has just been removed changes nothing more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from kb.models import KnowledgeBase, Membership, Principal, ScopedQuerySet, User
from kb.models.locks import lock_knowledge_bases
from kb.services.errors import NotAllowed, NotVisible, Rejected

Role = Membership.Role


@dataclass(frozen=True, slots=True)
class Member:
    """Someone who may use a knowledge base.

    Attributes:
        user: who.
        role: `viewer`, `editor` or `owner`.
        is_primary: whether the knowledge base is theirs: there is one such owner, who leaves only by handing it over.
    """

    user: User
    role: str
    is_primary: bool

    @property
    def role_in_words(self) -> str:
        return str(Role(self.role).label)


def members_of(kb: KnowledgeBase) -> list[Member]:
    """All members, the owner of the knowledge base first, then by name."""
    rows = Membership.objects.filter(knowledge_base=kb).exclude(user=kb.owner_id).select_related("user")
    others = [Member(row.user, row.role, is_primary=False) for row in rows.order_by("user__username")]
    return [Member(kb.owner, Role.OWNER, is_primary=True), *others]


def member_of(kb: KnowledgeBase, user_id: int) -> Member:
    """The member who is this user.

    Raises:
        NotVisible: the user is none.
    """
    found = next((member for member in members_of(kb) if member.user.pk == user_id), None)
    if found is None:
        raise NotVisible(_("There is no such member."))
    return found


def member_add(*, kb: KnowledgeBase, by: Principal, username: str, role: str = Role.VIEWER) -> Member:
    """Shares a knowledge base with a user.

    A name that nobody has and that of an inactive account get one and the same answer.

    Raises:
        NotVisible: the knowledge base is gone, or `by` may not see it any more.
        NotAllowed: `by` is no owner of it any more.
        Rejected: there is no active user of this name, or they are a member already.
    """
    with _held(kb, by):
        user = _user_of(username)
        if user.pk == kb.owner_id or Membership.objects.filter(knowledge_base=kb, user=user).exists():
            message = _("%(username)s is a member already: change the role instead.")
            raise Rejected("already_member", message % {"username": user.username})
        Membership.objects.create(knowledge_base=kb, user=user, role=role)
    return Member(user, role, is_primary=False)


def member_change(*, kb: KnowledgeBase, by: Principal, user_id: int, role: str) -> Member:
    """Gives a member another role.

    Raises:
        NotVisible: the user is no member, or as for `member_add`.
        NotAllowed: as for `member_add`.
        Rejected: the knowledge base would be left without an owner who can act.
    """
    with _held(kb, by):
        member = member_of(kb, user_id)
        if role != Role.OWNER:
            _check_owner_is_left(kb, member)
        if not member.is_primary:
            Membership.objects.filter(knowledge_base=kb, user=user_id).update(role=role)
    return Member(member.user, role, is_primary=member.is_primary)


def member_remove(*, kb: KnowledgeBase, by: Principal, user_id: int) -> None:
    """Ends a membership; the user's sessions and API keys lose the knowledge base with their next request.

    Raises:
        NotVisible: the user is no member, or as for `member_add`.
        NotAllowed: as for `member_add`.
        Rejected: the knowledge base would be left without an owner who can act.
    """
    with _held(kb, by):
        _check_owner_is_left(kb, member_of(kb, user_id))
        Membership.objects.filter(knowledge_base=kb, user=user_id).delete()


def ownership_transfer(*, kb: KnowledgeBase, by: Principal, username: str) -> Member:
    """Hands a knowledge base over to another user; who had it stays as a member with the role owner.

    Raises:
        Rejected: there is no active user of this name, they have it already, or they have another one of its name.
    """
    user = _user_of(username)
    try:
        with _held(kb, by):
            if user.pk == kb.owner_id:
                message = _("The knowledge base belongs to %(username)s already.")
                raise Rejected("already_owner", message % {"username": user.username})
            Membership.objects.filter(knowledge_base=kb, user=user).delete()
            Membership.objects.update_or_create(knowledge_base=kb, user_id=kb.owner_id, defaults={"role": Role.OWNER})
            kb.owner = user
            kb.save(update_fields=["owner", "updated_at"])
    except IntegrityError as error:
        message = _("%(username)s has a knowledge base named “%(name)s” already: rename one of the two first.")
        raise Rejected("name_taken", message % {"username": user.username, "name": kb.name}) from error
    return Member(user, Role.OWNER, is_primary=True)


@contextmanager
def _held(kb: KnowledgeBase, by: Principal) -> Iterator[None]:
    """A transaction in which nobody else changes who may use a knowledge base, and `by` is an owner of it."""
    with transaction.atomic():
        lock_knowledge_bases([kb.pk])
        if not KnowledgeBase.objects.visible_to(by).filter(pk=kb.pk).exists():
            raise NotVisible(_("There is no such object."))
        check_owner(kb, KnowledgeBase.objects.owned_by(by))
        kb.refresh_from_db(fields=["owner"])
        yield


def check_owner(kb: KnowledgeBase, owned: ScopedQuerySet) -> None:
    """Refuses who is no owner of a knowledge base.

    Args:
        kb: one that the caller may see.
        owned: those whose sharing the caller may see, or change.

    Raises:
        NotAllowed: it is none of them.
    """
    if not owned.filter(pk=kb.pk).exists():
        raise NotAllowed(_("Only an owner may see and change who uses a knowledge base."))


def _user_of(username: str) -> User:
    user = None if "\0" in username else User.objects.filter(username=username, is_active=True).first()
    if user is None:
        message = _("There is no active user of this name: ask the person for the exact user name.")
        raise Rejected("unknown_user", message)
    return user


def _check_owner_is_left(kb: KnowledgeBase, without: Member) -> None:
    if without.is_primary:
        message = _("%(username)s cannot leave or step back: hand the knowledge base over to another user first.")
        raise Rejected("last_owner", message % {"username": without.user.username})
    others = [each for each in members_of(kb) if each.role == Role.OWNER and each.user.pk != without.user.pk]
    if not any(owner.user.is_active for owner in others):
        message = _("No owner with an active account would be left: make another member an owner first.")
        raise Rejected("last_owner", message)
