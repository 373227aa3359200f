"""Offers of a knowledge base to users who have not asked for it."""

from typing import ClassVar, Self

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.utils.translation import gettext_lazy as _

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase, Membership
from kb.base.db.audit_triggers import INVITATION


class InvitationQuerySet(models.QuerySet["Invitation"]):
    def open(self) -> Self:
        """Those that can be accepted: not declined, and made by one who owns the knowledge base still."""
        owns = Membership.objects.filter(
            knowledge_base=OuterRef("knowledge_base"), user=OuterRef("invited_by"), role=Membership.Role.OWNER
        )
        return self.filter(
            Q(knowledge_base__owner=F("invited_by")) | Q(Exists(owns)),
            knowledge_base__isnull=False,
            invited_by__is_active=True,
            declined_at=None,
        )

    def visible_to(self, principal: Principal) -> Self:
        """The principal's own open ones; a key that is bound to knowledge bases has none, as it opens no others."""
        user = principal.user
        if not user.is_active or isinstance(user, AnonymousUser) or principal.kb_ids is not None:
            return self.none()
        return self.open().filter(user=user)


class Invitation(models.Model):
    """A membership, or the ownership, that a user has not accepted yet: it opens nothing.

    It is never changed but declined, so that a user accepts what the invitation said when it was read.

    Attributes:
        knowledge_base: None once it was deleted; a declined invitation stays, see `kb.access.services.sharing`.
        transfers: whether the knowledge base becomes the user's.
    """

    knowledge_base = models.ForeignKey(KnowledgeBase, models.SET_NULL, null=True, related_name="invitations")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="invitations", verbose_name=_("user")
    )
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", verbose_name=_("invited by")
    )
    role = models.CharField(_("role"), max_length=8, choices=Membership.Role)
    transfers = models.BooleanField(_("hands over"), default=False)
    declined_at = models.DateTimeField(_("declined"), null=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = InvitationQuerySet.as_manager()

    class Meta:
        verbose_name = _("invitation")
        verbose_name_plural = _("invitations")
        ordering = ("-created_at", "-pk")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["knowledge_base", "user"], condition=Q(declined_at=None), name="invitation_once"
            ),
        ]
        triggers: ClassVar = INVITATION.triggers()

    def __str__(self) -> str:
        return f"{self.knowledge_base} · {self.user}"
