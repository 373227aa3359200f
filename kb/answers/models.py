import uuid
from typing import ClassVar, Self

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.access.models import KnowledgeBase, Principal
from kb.search.models import Speaker


class ConversationQuerySet(models.QuerySet["Conversation"]):
    def visible_to(self, principal: Principal) -> Self:
        """The principal's own conversations, of whose knowledge bases it may see every one now."""
        user = principal.user
        if not user.is_active or isinstance(user, AnonymousUser):
            return self.none()
        visible = KnowledgeBase.objects.visible_to(principal).values_list("pk", flat=True)
        return self.filter(user=user, knowledge_base_ids__contained_by=list(visible)).exclude(knowledge_base_ids=[])


class Conversation(models.Model):
    """Questions and answers of one user over the same knowledge bases."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="conversations", verbose_name=_("user")
    )
    knowledge_base_ids = ArrayField(models.BigIntegerField(), verbose_name=_("knowledge bases"))
    title = models.CharField(_("title"), max_length=200, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    objects = ConversationQuerySet.as_manager()

    class Meta:
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")
        ordering = ("-updated_at",)
        indexes: ClassVar = [models.Index(fields=["user", "-updated_at"], name="conversation_by_user")]

    def __str__(self) -> str:
        return self.title or str(self.pk)


class Message(models.Model):
    """A turn of a conversation; what an answer rested on stands beside it, and is blank beside a question."""

    Role = Speaker

    conversation = models.ForeignKey(
        Conversation, models.CASCADE, related_name="messages", verbose_name=_("conversation")
    )
    role = models.CharField(_("role"), max_length=9, choices=Role)
    text = models.TextField(_("text"))
    sources = models.JSONField(_("sources"), default=list, blank=True)
    near_misses = models.JSONField(_("near misses"), default=list, db_default=[], blank=True)
    hit = models.BooleanField(_("hit"), null=True)
    confidence = models.FloatField(_("confidence"), null=True)
    trace_id = models.UUIDField(_("trace id"), null=True)
    degraded = models.JSONField(_("degraded"), default=list, blank=True)
    created_at = models.DateTimeField(_("time"), auto_now_add=True)

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.role}: {self.text[:80]}"
