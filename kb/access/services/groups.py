"""Roles of groups in a knowledge base, for all who are in them at the provider at their last sign-in.

Groups are those that the claims of a provider have made, by the names that they have there.
"""

from dataclasses import dataclass

from django.contrib.auth.models import Group
from django.db.models import Count
from django.utils.translation import gettext as _

from kb.access.models import GROUP_PREFIX, GroupMembership, KnowledgeBase, Membership, Principal
from kb.access.services.sharing import locked
from kb.base.errors import NotAllowed, NotVisible, Rejected

LONGEST_NAME = 150 - len(GROUP_PREFIX)


@dataclass(frozen=True, slots=True)
class MemberGroup:
    """A group that may use a knowledge base.

    Attributes:
        user_count: how many users were in it at their last sign-in.
    """

    group_id: int
    name: str
    role: str
    user_count: int

    @property
    def role_text(self) -> str:
        return str(Membership.Role(self.role).label)


def member_groups_of(kb: KnowledgeBase) -> list[MemberGroup]:
    rows = GroupMembership.objects.filter(knowledge_base=kb).annotate(users=Count("group__user"))
    found = rows.order_by("group__name").values_list("group", "group__name", "role", "users")
    return [MemberGroup(pk, name.removeprefix(GROUP_PREFIX), role, users) for pk, name, role, users in found]


def member_group_of(kb: KnowledgeBase, group_id: int) -> MemberGroup:
    """The group that has a role in a knowledge base; raises NotVisible where it has none."""
    for found in member_groups_of(kb):
        if found.group_id == group_id:
            return found
    raise NotVisible(_("There is no such group."))


def known_groups(most: int) -> list[str]:
    """The names of groups that people were in when they signed in, up to so many."""
    named = Group.objects.filter(name__startswith=GROUP_PREFIX).order_by("name").values_list("name", flat=True)
    return [name.removeprefix(GROUP_PREFIX) for name in named[:most]]


def group_add(*, kb: KnowledgeBase, by: Principal, name: str, role: str = Membership.Role.VIEWER) -> MemberGroup:
    """Gives a role to all who are in a group, now and later; for superusers only, since nobody is asked.

    Nobody need have been in the group yet. Raises Rejected where it has a role already.
    """
    with locked(kb, by, as_owner=True):
        if not by.user.is_superuser:
            raise NotAllowed(_("Only a superuser gives a role to a group, since its members are not asked."))
        group, _made = Group.objects.get_or_create(name=f"{GROUP_PREFIX}{name}")
        if GroupMembership.objects.filter(knowledge_base=kb, group=group).exists():
            raise Rejected("already_member", _("The group %(name)s has a role already: change it instead."), name=name)
        GroupMembership.objects.create(knowledge_base=kb, group=group, role=role)
        return member_group_of(kb, group.pk)


def group_change(*, kb: KnowledgeBase, by: Principal, group_id: int, role: str) -> MemberGroup:
    """Gives a group another role; raises NotVisible where it has none, and NotAllowed as `group_add` where it is a higher one."""
    with locked(kb, by, as_owner=True):
        found = member_group_of(kb, group_id)
        ranks = Membership.Role.values
        if ranks.index(role) > ranks.index(found.role) and not by.user.is_superuser:
            raise NotAllowed(_("Only a superuser gives a group a higher role."))
        membership = GroupMembership.objects.get(knowledge_base=kb, group=group_id)
        membership.role = role
        membership.save(update_fields=["role"])
        return member_group_of(kb, group_id)


def group_remove(*, kb: KnowledgeBase, by: Principal, group_id: int) -> None:
    """Takes the role of a group away; its members lose it with their next request. Raises NotVisible where it has none."""
    with locked(kb, by, as_owner=True):
        member_group_of(kb, group_id)
        GroupMembership.objects.filter(knowledge_base=kb, group=group_id).delete()
