"""The audit log: who changed what, when and from where. The database's triggers write it (kb.base.db.audit_triggers)."""

from typing import Any, ClassVar, Self

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import models
from django.db.models import Exists, Model, OuterRef, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from kb.access.models.accounts import Principal, ScopedQuerySet
from kb.access.models.knowledge import KnowledgeBase


class AuditQuerySet(ScopedQuerySet):
    def visible_to(self, principal: Principal) -> Self:
        """Entries of the knowledge bases that the principal owns, and what a user has done beside any that is left.

        A key that is bound to knowledge bases shows entries of these only.
        """
        user = principal.user
        of_owned = self.managed_by(principal)
        if isinstance(user, AnonymousUser) or user.is_superuser or principal.kb_ids is not None:
            return of_owned
        if not user.is_active:
            return self.none()
        is_left = Exists(KnowledgeBase.objects.filter(pk=OuterRef("knowledge_base_id")))
        owned = KnowledgeBase.objects.managed_by(principal).values("pk")
        return self.filter(Q(knowledge_base__in=owned) | Q(~is_left, user=user.pk))


class AuditEntry(models.Model):
    """One change. It refers to nothing by a constraint: names are kept, so that it outlives what it tells of.

    Attributes:
        object_id: of the row; of an API key its prefix; blank where one statement changed many rows.
        amount: how many rows the entry stands for.
        changes: what was there before and what came after, by field; two nulls: changed, but not kept, as of a password.
        via: the route of the API or the admin, without ids, or the name of the command.
    """

    class How(models.TextChoices):
        API = "api", _("API")
        ADMIN = "admin", _("admin")
        COMMAND = "command", _("command line")
        TASK = "task", _("background task")
        OTHER = "other", _("another program")

    class Action(models.TextChoices):
        CREATE = "create", pgettext_lazy("audit log", "created")
        UPDATE = "update", pgettext_lazy("audit log", "changed")
        DELETE = "delete", pgettext_lazy("audit log", "deleted")
        BIND = "bind", pgettext_lazy("audit log", "bound")
        UNBIND = "unbind", pgettext_lazy("audit log", "unbound")

    at = models.DateTimeField(_("time"), db_default=Now(), db_index=True)
    how = models.CharField(_("by way of"), max_length=8, choices=How)
    via = models.CharField(_("operation"), max_length=200, blank=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        related_name="+",
        verbose_name=_("user"),
    )
    username = models.CharField(_("user"), max_length=150, blank=True)
    api_key = models.CharField(_("API key"), max_length=8, blank=True)
    address = models.CharField(_("address"), max_length=45, blank=True)
    request_id = models.CharField(_("request"), max_length=64, blank=True)
    knowledge_base = models.ForeignKey(
        KnowledgeBase,
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        related_name="+",
        verbose_name=_("knowledge base"),
    )
    knowledge_base_name = models.CharField(_("knowledge base"), max_length=120, blank=True)
    action = models.CharField(_("action"), max_length=8, choices=Action)
    object_type = models.CharField(_("kind"), max_length=40)
    object_id = models.CharField(_("id"), max_length=40, blank=True)
    object_name = models.CharField(_("name"), max_length=300, blank=True)
    amount = models.PositiveIntegerField(_("rows"), default=1)
    changes = models.JSONField(_("changes"), default=dict)

    objects = AuditQuerySet.as_manager()

    class Meta:
        verbose_name = _("entry of the audit log")
        verbose_name_plural = _("audit log")
        ordering = ("-pk",)
        indexes: ClassVar[list[Any]] = [
            models.Index(fields=["knowledge_base", "-id"], name="audit_by_kb"),
            models.Index(fields=["user", "-id"], name="audit_by_user"),
            models.Index(fields=["object_type", "object_id", "-id"], name="audit_by_object"),
        ]

    def __str__(self) -> str:
        return f"{self.get_action_display()}: {self.object_name or self.amount}"


MODELS = {
    "knowledge_base": "KnowledgeBase",
    "membership": "Membership",
    "invitation": "Invitation",
    "document": "Document",
    "chunk": "Chunk",
    "api_key": "ApiKey",
    "user": "User",
    "retrieval_profile": "RetrievalProfile",
    "concept": "Concept",
    "concept_term": "ConceptTerm",
    "entity": "Entity",
    "fact": "GraphFact",
    "web_source": "WebSource",
    "external_source": "SearchProvider",
    "eval_set": "EvalSet",
    "eval_query": "EvalQuery",
    "judgment": "Judgment",
}


def kind_of(row: Model) -> str:
    """What the log calls objects of a model; blank: it has none of them."""
    return next((kind for kind, name in MODELS.items() if name == type(row).__name__), "")
