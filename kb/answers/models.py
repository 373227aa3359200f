import uuid
from typing import ClassVar, Self

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.access.models import KnowledgeBase, Principal
from kb.search.models import SearchLog, Speaker


class ConversationQuerySet(models.QuerySet["Conversation"]):
    def visible_to(self, principal: Principal) -> Self:
        """The principal's own conversations, of whose knowledge bases it may see every one now."""
        user = principal.user
        if not user.is_active or isinstance(user, AnonymousUser):
            return self.none()
        visible = KnowledgeBase.objects.visible_to(principal).values_list("pk", flat=True)
        return self.filter(user=user, knowledge_base_ids__contained_by=list(visible)).exclude(knowledge_base_ids=[])


class Conversation(models.Model):
    """Questions and answers of one user over the same knowledge bases, or of a visitor of an assistant."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, null=True, related_name="conversations", verbose_name=_("user")
    )
    visitor = models.ForeignKey(
        "kb.Visitor", models.CASCADE, null=True, related_name="conversations", verbose_name=_("visitor")
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
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(user__isnull=True) ^ models.Q(visitor__isnull=True), name="conversation_of_one"
            )
        ]

    def __str__(self) -> str:
        return self.title or str(self.pk)


class Message(models.Model):
    """A turn of a conversation; what an answer rested on stands beside it, and is blank beside a question.

    Attributes:
        version: of the assistant that answered; None: of Ask.
        is_replaced: the reader asked again, or put the question in other words; what it was stays stored.
        input_tokens: that the chat model read and, in `output_tokens`, wrote, the completion of the question included.
        feedback: of the reader, with what they said of it.
    """

    class Status(models.TextChoices):
        WRITING = "writing", _("being written")
        DONE = "done", _("finished")
        STOPPED = "stopped", _("stopped by the reader")
        BROKEN = "broken", _("broken off")

    Role = Speaker

    conversation = models.ForeignKey(
        Conversation, models.CASCADE, related_name="messages", verbose_name=_("conversation")
    )
    role = models.CharField(_("role"), max_length=9, choices=Role)
    text = models.TextField(_("text"))
    sources = models.JSONField(_("sources"), default=list, blank=True)
    near_misses = models.JSONField(_("near misses"), default=list, db_default=[], blank=True)
    hit = models.BooleanField(_("hit"), null=True)
    confidence = models.FloatField(_("relevance"), null=True)
    trace_id = models.UUIDField(_("trace id"), null=True)
    degraded = models.JSONField(_("degraded"), default=list, blank=True)
    status = models.CharField(
        _("status"), max_length=7, choices=Status, default=Status.DONE, db_default=Status.DONE.value
    )
    version = models.ForeignKey(
        "kb.AssistantVersion", models.SET_NULL, null=True, related_name="+", verbose_name=_("version")
    )
    is_replaced = models.BooleanField(_("replaced"), default=False, db_default=False)
    input_tokens = models.PositiveIntegerField(_("tokens read"), null=True)
    output_tokens = models.PositiveIntegerField(_("tokens written"), null=True)
    feedback = models.SmallIntegerField(_("feedback"), choices=SearchLog.Feedback, null=True)
    feedback_text = models.CharField(_("what the reader says"), max_length=500, blank=True, default="", db_default="")
    created_at = models.DateTimeField(_("time"), auto_now_add=True)

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.role}: {self.text[:80]}"
