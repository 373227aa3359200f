"""Who may see what: every read goes through `visible_to(principal)`, every write through `editable_by(principal)`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.apps import apps
from django.contrib.auth.models import AnonymousUser
from django.db import models
from django.db.models import Q

if TYPE_CHECKING:
    from kb.access.models.accounts import User


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: a user, narrowed by the scope of the API key in use.

    Attributes:
        user: whose memberships count.
        kb_ids: the knowledge bases that an API key is bound to; None: all that the user may see.
        can_write: False for a key with the scope `read`.
    """

    user: "User | AnonymousUser"
    kb_ids: frozenset[int] | None = None
    can_write: bool = True


class ScopedQuerySet(models.QuerySet[Any]):
    """Rows that belong to a knowledge base; `kb_path` is the lookup that leads to it ("" for the base itself)."""

    kb_path: ClassVar[str] = "knowledge_base"

    @classmethod
    def through(cls, kb_path: str) -> type["ScopedQuerySet"]:
        """The same query set for a model whose knowledge base is reached by another lookup."""
        return type(cls.__name__, (cls,), {"kb_path": kb_path})

    def visible_to(self, principal: Principal) -> Self:
        """Rows of the knowledge bases that the principal owns or is a member of; a superuser sees all."""
        return self._granted(principal, roles=None)

    def joined_by(self, principal: Principal) -> Self:
        """Visible rows of the knowledge bases that the principal chose to have: as owner, as member, or in the key's scope.

        That a superuser sees all others too does not put their texts before the superuser's agents.
        """
        if principal.kb_ids is not None or isinstance(principal.user, AnonymousUser):
            return self.visible_to(principal)
        return self.visible_to(principal).filter(**{f"{self.kb_path or 'pk'}__in": _joined(principal.user, roles=None)})

    def editable_by(self, principal: Principal) -> Self:
        """Rows that the principal may change: as owner, or as a member with the role editor or owner."""
        if not principal.can_write:
            return self.none()
        return self._granted(principal, roles=("editor", "owner"))

    def owned_by(self, principal: Principal) -> Self:
        """Rows of the knowledge bases that the principal owns, and so may share or delete."""
        if not principal.can_write:
            return self.none()
        return self._granted(principal, roles=("owner",))

    def managed_by(self, principal: Principal) -> Self:
        """Rows of the knowledge bases of whose sharing and history the principal may know, as their owner.

        A key with the scope read suffices: it is for looking. To change them takes `owned_by`.
        """
        return self._granted(principal, roles=("owner",))

    def _granted(self, principal: Principal, roles: tuple[str, ...] | None) -> Self:
        user = principal.user
        if not user.is_active or isinstance(user, AnonymousUser):
            return self.none()
        rows = self
        if principal.kb_ids is not None:
            rows = rows.filter(**{f"{self.kb_path or 'pk'}__in": principal.kb_ids})
        if user.is_superuser:
            return rows
        return rows.filter(**{f"{self.kb_path or 'pk'}__in": _joined(user, roles)})


def _joined(user: "User", roles: tuple[str, ...] | None) -> models.QuerySet[Any]:
    """The ids of the knowledge bases that a user owns, or is a member of in one of the roles."""
    memberships: models.QuerySet[Any] = apps.get_model("kb", "Membership")._default_manager.filter(user=user)
    if roles is not None:
        memberships = memberships.filter(role__in=roles)
    knowledge_bases: models.QuerySet[Any] = apps.get_model("kb", "KnowledgeBase")._default_manager.all()
    granted = knowledge_bases.filter(Q(owner=user) | Q(pk__in=memberships.values("knowledge_base_id")))
    return granted.values("pk")
