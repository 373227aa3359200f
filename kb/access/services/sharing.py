"""Who may use a knowledge base: its owner, and members with the roles viewer, editor and owner, users as well as groups.

Nobody becomes a member or an owner unasked: an owner invites, and the user accepts. Only a superuser makes members at once,
and so it is a superuser who gives a role to a group (`kb.access.services.groups`).

A change locks the knowledge base and then looks whether who asks is an owner still: of two owners who remove each other
one stays, and who has just been removed changes nothing more. It raises NotVisible where the principal may not see it
any more, and NotAllowed where the principal owns it no more, or may only read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.access.models import Invitation, KnowledgeBase, Membership, Principal, ScopedQuerySet, User
from kb.base.db.transactions import holding_knowledge_bases
from kb.base.errors import NotAllowed, NotVisible, Rejected

Role = Membership.Role

# Open ones that a user may have made, over all knowledge bases.
MOST_INVITATIONS = 20
PAUSE_AFTER_DECLINE = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Member:
    """Someone who may use a knowledge base, or is invited to.

    Attributes:
        is_primary: whether the knowledge base is theirs: there is one such owner, who leaves only by handing it over.
        is_pending: whether the user has not accepted yet, and so may not use it.
        is_offered: whether the user has only to accept for the knowledge base to become theirs.
    """

    user: User
    role: str
    is_primary: bool
    is_pending: bool = False
    is_offered: bool = False

    @property
    def role_text(self) -> str:
        return str(Role(self.role).label)


def members_of(kb: KnowledgeBase) -> list[Member]:
    """All members, the owner of the knowledge base first, then by name, those who are invited last."""
    rows = Membership.objects.filter(knowledge_base=kb).exclude(user=kb.owner_id).select_related("user")
    invitations = Invitation.objects.open().filter(knowledge_base=kb).select_related("user").order_by("user__username")
    offered = {each.user_id for each in invitations if each.transfers}
    members = [
        Member(row.user, row.role, is_primary=False, is_offered=row.user_id in offered)
        for row in rows.order_by("user__username")
    ]
    known = {member.user.pk for member in members}
    pending = [
        Member(each.user, each.role, is_primary=False, is_pending=True, is_offered=each.transfers)
        for each in invitations
        if each.user_id not in known
    ]
    return [Member(kb.owner, Role.OWNER, is_primary=True), *members, *pending]


def member_of(kb: KnowledgeBase, user_id: int) -> Member:
    """The member who is this user; raises NotVisible where the user is none."""
    for member in members_of(kb):
        if member.user.pk == user_id:
            return member
    raise NotVisible(_("There is no such member."))


def member_add(*, kb: KnowledgeBase, by: Principal, username: str, role: str = Role.VIEWER) -> Member:
    """Invites a user to a knowledge base; a superuser makes the user a member at once.

    Raises Rejected where no active user has this name (an inactive one gets the same answer), the user is a member, is
    invited already or has declined lately, or `by` has too many open invitations.
    """
    with locked(kb, by, as_owner=True):
        user = _user_of(username)
        if user.pk == kb.owner_id or Membership.objects.filter(knowledge_base=kb, user=user).exists():
            raise Rejected(
                "already_member", _("%(username)s is a member already: change the role instead."), username=username
            )
        invitations = Invitation.objects.filter(knowledge_base=kb, user=user, declined_at=None)
        if by.user.is_superuser:
            invitations.delete()
            Membership.objects.create(knowledge_base=kb, user=user, role=role)
            return Member(user, role, is_primary=False)
        if invitations.open().exists():
            message = _("%(username)s is invited already: withdraw the invitation to make another.")
            raise Rejected("already_invited", message, username=username)
        _invite(kb, cast(User, by.user), user, role)
    return Member(user, role, is_primary=False, is_pending=True)


def member_change(*, kb: KnowledgeBase, by: Principal, user_id: int, role: str) -> Member:
    """Gives a member another role; raises NotVisible for who is none.

    Raises Rejected where the user has not accepted yet, or nobody would be left who owns the knowledge base and can
    act.
    """
    with locked(kb, by, as_owner=True):
        member = member_of(kb, user_id)
        if member.is_pending:
            message = _("%(username)s has not accepted yet: withdraw the invitation, and make one with another role.")
            raise Rejected("not_accepted", message, username=member.user.username)
        if role != Role.OWNER:
            _check_owner_is_left(kb, member)
        if not member.is_primary:
            membership = Membership.objects.get(knowledge_base=kb, user=user_id)
            membership.role = role
            membership.save(update_fields=["role"])
    return Member(member.user, role, is_primary=member.is_primary)


def member_remove(*, kb: KnowledgeBase, by: Principal, user_id: int) -> None:
    """Ends a membership, or withdraws an invitation; sessions and API keys of the user lose it with their next request.

    Raises NotVisible for who is no member, and Rejected where nobody would be left who owns it and can act.
    """
    with locked(kb, by, as_owner=True):
        _remove(kb, member_of(kb, user_id))


def member_leave(*, kb: KnowledgeBase, principal: Principal) -> None:
    """Ends the principal's own membership; raises as `member_remove`."""
    _check_may_write(principal)
    with locked(kb, principal):
        member = member_of(kb, cast(int, principal.user.pk))
        if member.is_pending:
            raise NotVisible(_("There is no such member."))
        _remove(kb, member)


def ownership_transfer(*, kb: KnowledgeBase, by: Principal, username: str) -> Member:
    """Offers a knowledge base to a user, who owns it once they accept; at once where a superuser gives or takes it.

    An offer replaces the one before it. Who had the knowledge base stays as a member with the role owner. Raises
    Rejected where no active user has this name, the user has it already or, where it is theirs at once, has another one
    of its name.
    """
    user = _user_of(username)
    with locked(kb, by, as_owner=True):
        if user.pk == kb.owner_id:
            raise Rejected("already_owner", _("The knowledge base belongs to %(username)s already."), username=username)
        Invitation.objects.filter(Q(user=user) | Q(transfers=True), knowledge_base=kb, declined_at=None).delete()
        if not by.user.is_superuser and user.pk != by.user.pk:
            _invite(kb, cast(User, by.user), user, Role.OWNER, transfers=True)
            return member_of(kb, user.pk)
        _hand_over(kb, user)
    return Member(user, Role.OWNER, is_primary=True)


def offer_withdraw(*, kb: KnowledgeBase, by: Principal) -> None:
    """Takes back the offer of a knowledge base; raises as `member_add`, and NotVisible where there is none."""
    with locked(kb, by, as_owner=True):
        if not Invitation.objects.filter(knowledge_base=kb, transfers=True, declined_at=None).delete()[0]:
            raise NotVisible(_("The knowledge base is offered to nobody."))


# -- What the invited do ---------------------------------------------------------------------------------------------------
def invitation_accept(*, principal: Principal, invitation_id: int) -> KnowledgeBase:
    """Makes the principal a member or the owner; raises Rejected where it is to own two knowledge bases of one name."""
    with _invited(principal, invitation_id) as (kb, invitation):
        user = invitation.user
        invitation.delete()
        if invitation.transfers:
            _hand_over(kb, user)
        else:
            Membership.objects.get_or_create(knowledge_base=kb, user=user, defaults={"role": invitation.role})
    return kb


def invitation_decline(*, principal: Principal, invitation_id: int) -> None:
    """Refuses an invitation; for a while neither who made it nor the knowledge base can invite the principal again."""
    with _invited(principal, invitation_id) as (_kb, invitation):
        invitation.declined_at = timezone.now()
        invitation.save(update_fields=["declined_at"])


@contextmanager
def _invited(principal: Principal, invitation_id: int) -> Iterator[tuple[KnowledgeBase, Invitation]]:
    """A transaction in which nobody else answers an invitation or withdraws it; raises NotVisible where it is not open."""
    _check_may_write(principal)
    rows = Invitation.objects.visible_to(principal).filter(pk=invitation_id)
    with holding_knowledge_bases(list(rows.values_list("knowledge_base_id", flat=True))):
        invitation = rows.select_related("knowledge_base__owner", "user").first()
        if invitation is None or invitation.knowledge_base is None:
            raise NotVisible(_("There is no such invitation: it was withdrawn, or is answered already."))
        yield invitation.knowledge_base, invitation


def _invite(kb: KnowledgeBase, by: User, user: User, role: str, *, transfers: bool = False) -> None:
    """Makes an invitation, unless it would be one too many, or too soon after any that its maker or the knowledge base made."""
    since = timezone.now() - PAUSE_AFTER_DECLINE
    made = Invitation.objects.filter(invited_by=by)
    made.filter(Q(declined_at__lt=since) | Q(declined_at=None, knowledge_base=None)).delete()
    declined = Invitation.objects.filter(Q(invited_by=by) | Q(knowledge_base=kb), user=user, declined_at__gte=since)
    if declined.exists():
        message = _("%(username)s has declined an invitation within the last %(days)d days: wait, or ask a superuser.")
        raise Rejected("declined_lately", message, username=user.username, days=PAUSE_AFTER_DECLINE.days)
    User.objects.select_for_update(no_key=True).get(pk=by.pk)  # two knowledge bases at once would each leave one free
    if made.open().count() >= MOST_INVITATIONS:
        message = _("You have %(most)d open invitations: wait until some are answered, or withdraw some.")
        raise Rejected("too_many_invitations", message, most=MOST_INVITATIONS)
    Invitation.objects.filter(
        knowledge_base=kb, user=user, declined_at=None
    ).delete()  # of one who is no owner any more
    Invitation.objects.create(knowledge_base=kb, user=user, invited_by=by, role=role, transfers=transfers)


def _hand_over(kb: KnowledgeBase, user: User) -> None:
    try:
        with transaction.atomic():
            Membership.objects.filter(knowledge_base=kb, user=user).delete()
            Membership.objects.update_or_create(knowledge_base=kb, user_id=kb.owner_id, defaults={"role": Role.OWNER})
            kb.owner = user
            kb.save(update_fields=["owner", "updated_at"])
    except IntegrityError as error:
        message = _("%(username)s has a knowledge base named “%(name)s” already: rename one of the two first.")
        raise Rejected("name_taken", message, username=user.username, name=kb.name) from error


def _remove(kb: KnowledgeBase, member: Member) -> None:
    if not member.is_pending:
        _check_owner_is_left(kb, member)
    Membership.objects.filter(knowledge_base=kb, user=member.user).delete()
    Invitation.objects.filter(knowledge_base=kb, user=member.user, declined_at=None).delete()


@contextmanager
def locked(kb: KnowledgeBase, principal: Principal, *, as_owner: bool = False) -> Iterator[None]:
    """A transaction in which nobody else changes who may use a knowledge base that the principal may see, or owns."""
    with holding_knowledge_bases([kb.pk]):
        if not KnowledgeBase.objects.visible_to(principal).filter(pk=kb.pk).exists():
            raise NotVisible(_("There is no such object."))
        if as_owner:
            check_owner(kb, KnowledgeBase.objects.owned_by(principal))
        kb.refresh_from_db(fields=["owner"])
        yield


def _check_may_write(principal: Principal) -> None:
    if not principal.can_write:
        raise NotAllowed(_("This API key may only read: use one with the scope write."))


def check_owner(kb: KnowledgeBase, owned: ScopedQuerySet) -> None:
    """Raises NotAllowed where a knowledge base that the caller may see is not among `owned`, which are the caller's."""
    if not owned.filter(pk=kb.pk).exists():
        raise NotAllowed(_("Only an owner may see and change who uses a knowledge base."))


def _user_of(username: str) -> User:
    user = None if "\0" in username else User.objects.filter(username=username, is_active=True).first()
    if user is None:
        raise Rejected(
            "unknown_user", _("There is no active user of this name: ask the person for the exact user name.")
        )
    return user


def _check_owner_is_left(kb: KnowledgeBase, without: Member) -> None:
    if without.is_primary:
        message = _("%(username)s cannot leave or step back: hand the knowledge base over to another user first.")
        raise Rejected("last_owner", message, username=without.user.username)
    if not any(
        each.role == Role.OWNER and each.user.is_active and not each.is_pending and each.user.pk != without.user.pk
        for each in members_of(kb)
    ):
        raise Rejected(
            "last_owner", _("No owner with an active account would be left: make another member an owner first.")
        )
