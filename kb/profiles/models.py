from typing import ClassVar, Self

import pgtrigger
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from kb.access.models import KnowledgeBase, Principal
from kb.base.db.audit_triggers import PROFILE


class RetrievalProfileQuerySet(models.QuerySet["RetrievalProfile"]):
    """Shared profiles are everyone's to use and a superuser's to change; those of a knowledge base follow its rights."""

    def visible_to(self, principal: Principal) -> Self:
        if not principal.user.is_active:
            return self.none()
        return self.filter(Q(knowledge_base=None) | Q(knowledge_base__in=KnowledgeBase.objects.visible_to(principal)))

    def editable_by(self, principal: Principal) -> Self:
        own = Q(knowledge_base__in=KnowledgeBase.objects.editable_by(principal))
        may_all = principal.user.is_superuser and principal.kb_ids is None and principal.can_write
        return self.filter(own | Q(knowledge_base=None) if may_all else own)

    def versions_of(self, profile: "RetrievalProfile") -> Self:
        """The versions of the profile that this is one of: those of its name at its place."""
        return self.filter(name=profile.name, knowledge_base=profile.knowledge_base_id)

    def live(self, name: str) -> "RetrievalProfile":
        """What the name of a shared profile stands for: its published version, or its newest where none is published.

        Raises:
            RetrievalProfile.DoesNotExist: there is none of that name.
        """
        return self.filter(name=name, knowledge_base=None).order_by("-published", "-version")[:1].get()


class RetrievalProfile(models.Model):
    """One version of named retrieval settings; what it leaves out is inherited from the environment.

    A version never changes: an edit makes the next one. Of a profile at most one version is published, which is the one
    that the name stands for in requests and that the knowledge bases with this profile use; where none is, it is the newest.
    A profile is known by its place and its name: knowledge bases may each have one of the same name.

    Attributes:
        knowledge_base: whose own profile it is, in all its versions; None: shared.
        copied_from: a version of another profile, with whose settings it began; None: none, or it was deleted.
    """

    name = models.CharField(_("name"), max_length=80)
    version = models.PositiveIntegerField(_("version"), default=1)
    knowledge_base = models.ForeignKey(
        "kb.KnowledgeBase",
        models.CASCADE,
        null=True,
        blank=True,
        related_name="own_profiles",
        verbose_name=_("knowledge base"),
    )
    description = models.TextField(_("description"), blank=True)
    settings = models.JSONField(_("settings"), default=dict, blank=True)
    published = models.BooleanField(_("published"), default=False)
    published_at = models.DateTimeField(_("published at"), null=True, editable=False)
    copied_from = models.ForeignKey(
        "self", models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("copied from")
    )
    created_by = models.ForeignKey(
        "kb.User", models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = RetrievalProfileQuerySet.as_manager()

    class Meta:
        verbose_name = _("retrieval profile")
        verbose_name_plural = _("retrieval profiles")
        ordering = ("name", "-version")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "name", "version"], name="profile_version_once"),
            models.UniqueConstraint(
                fields=["name", "version"], condition=Q(knowledge_base=None), name="shared_profile_version_once"
            ),
            models.UniqueConstraint(
                fields=["knowledge_base", "name"], condition=Q(published=True), name="profile_published_once"
            ),
            models.UniqueConstraint(
                fields=["name"], condition=Q(knowledge_base=None, published=True), name="shared_profile_published_once"
            ),
        ]
        triggers: ClassVar = [
            pgtrigger.ReadOnly(name="profile_never_changes", fields=["name", "version", "knowledge_base", "settings"]),
            *PROFILE.triggers(),
        ]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"

    def is_version_of_same(self, other: "RetrievalProfile") -> bool:
        return (self.name, self.knowledge_base_id) == (other.name, other.knowledge_base_id)
