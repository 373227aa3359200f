"""Assistants: chats over knowledge bases for people who have no admin."""

import uuid
from typing import Any, ClassVar, Self

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import NOT_PROVIDED, Exists, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from kb.access.models import KnowledgeBase, Principal, User
from kb.assistants.settings import AssistantSettings
from kb.base.db.audit_triggers import ASSISTANT, ASSISTANT_BASE_TRIGGERS, SHARE_LINK

PICTURE_BYTES = 64 * 1024


class AssistantQuerySet(models.QuerySet["Assistant"]):
    def editable_by(self, principal: Principal) -> Self:
        """Those of whose knowledge bases the principal may edit every one.

        One whose knowledge bases were all deleted is its publisher's and superusers' to delete, or to give others.
        """
        rows = self._over(KnowledgeBase.objects.editable_by(principal))
        user = principal.user
        if principal.kb_ids is not None or not principal.can_write or not user.is_active:
            return rows
        named = Assistant.knowledge_bases.through.objects.filter(assistant=OuterRef("pk"))
        bare = self.exclude(Exists(named))
        mine = bare if user.is_superuser else bare.filter(publisher=user.pk)
        return self.filter(Q(pk__in=rows.values("pk")) | Q(pk__in=mine.values("pk")))

    def answering(self) -> Self:
        """Those that answer anybody."""
        return self.exclude(published=None).exclude(publisher=None)

    def open_to(self, principal: Principal) -> Self:
        """Those of whose knowledge bases, one at least, the principal may see every one: it is their member."""
        return self.answering()._over(KnowledgeBase.objects.visible_to(principal))

    def usable_by(self, principal: Principal) -> Self:
        """Those that an API key opens: a member's, and to a key that is bound to no knowledge base those of every user."""
        members = self.open_to(principal)
        if principal.kb_ids is not None:
            return members
        everyones = Q(access__in=[Assistant.Access.PUBLIC, Assistant.Access.SIGNED_IN], password="")
        return self.answering().filter(everyones | Q(pk__in=members.values("pk")))

    def _over(self, bases: models.QuerySet[KnowledgeBase]) -> Self:
        named = Assistant.knowledge_bases.through.objects.filter(assistant=OuterRef("pk"))
        return self.filter(Exists(named)).exclude(Exists(named.exclude(knowledgebase__in=bases)))


def _limit(label: Any, default: Any = NOT_PROVIDED) -> "models.PositiveIntegerField[int | None, int | None]":
    """None: unlimited."""
    return models.PositiveIntegerField(label, null=True, blank=True, default=default, validators=[MinValueValidator(1)])


class Assistant(models.Model):
    """A chat over knowledge bases, whose visitors search with its publisher's present rights to them, and only read.

    How it answers are its versions' settings; who may use it, and how much, is said here and holds at once.

    Attributes:
        publisher: who published it last; None: that user was deleted, and nobody is answered until somebody else publishes it.
        picture: a PNG; empty: none.
        published: the version that visitors are answered by; None: a draft still.
        password: its hash; blank: none is asked for.
        origins: of pages that may embed it, such as https://www.example.com.
        retention_days: for how long conversations are kept after their last turn; 0: for good.
        keeps_text: False: neither questions nor answers are stored, only that they were.
    """

    class Access(models.TextChoices):
        PRIVATE = "private", _("members of its knowledge bases")
        SIGNED_IN = "signed_in", _("everyone who is signed in")
        LINK = "link", _("everyone who has a link")
        PUBLIC = "public", _("everyone")

    name = models.CharField(_("name"), max_length=80)
    slug = models.SlugField(_("address"), max_length=60, unique=True)
    picture = models.BinaryField(_("picture"), max_length=PICTURE_BYTES, default=bytes, db_default=b"", blank=True)
    knowledge_bases = models.ManyToManyField(
        KnowledgeBase, related_name="assistants", verbose_name=_("knowledge bases")
    )
    publisher = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="assistants", verbose_name=_("published by")
    )
    published = models.ForeignKey(
        "kb.AssistantVersion", models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("published")
    )
    access = models.CharField(_("who may use it"), max_length=9, choices=Access, default=Access.PRIVATE)
    password = models.CharField(max_length=128, blank=True, db_default="", editable=False)
    origins = ArrayField(
        models.CharField(max_length=260), verbose_name=_("may be embedded by"), default=list, db_default=[], blank=True
    )
    visitor_questions = _limit(_("questions a day of one visitor"), default=50)
    visitor_tokens = _limit(_("tokens a day of one visitor"))
    address_questions = _limit(_("questions a day from one network address"), default=200)
    address_tokens = _limit(_("tokens a day from one network address"))
    total_questions = _limit(_("questions a day"), default=2_000)
    total_tokens = _limit(_("tokens a day"), default=5_000_000)
    retention_days = models.PositiveIntegerField(
        _("conversations are kept, days"),
        default=90,
        validators=[MaxValueValidator(3_650)],
        help_text=_("After the last turn; 0: for good."),
    )
    keeps_text = models.BooleanField(
        _("keeps questions and answers"),
        default=True,
        help_text=_("Off: only that something was asked is kept, and what it cost."),
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    objects = AssistantQuerySet.as_manager()

    class Meta:
        verbose_name = _("assistant")
        verbose_name_plural = _("assistants")
        ordering = ("name", "pk")
        triggers: ClassVar = ASSISTANT.triggers()

    def __str__(self) -> str:
        return self.name

    @property
    def published_settings(self) -> AssistantSettings:
        """The defaults where nothing is published."""
        return AssistantSettings.of(self.published.settings if self.published else {})

    @property
    def is_answering(self) -> bool:
        return self.published_id is not None and self.publisher_id is not None


class AssistantKnowledgeBase(Assistant.knowledge_bases.through):  # type: ignore[misc, name-defined]
    """Which knowledge bases assistants answer from, as far as the audit log is concerned."""

    class Meta:
        proxy = True
        triggers: ClassVar = ASSISTANT_BASE_TRIGGERS


class AssistantVersion(models.Model):
    """Settings of an assistant (`AssistantSettings`), which never change: an edit makes the next version.

    The newest one that was never published is the draft.
    """

    assistant = models.ForeignKey(Assistant, models.CASCADE, related_name="versions", verbose_name=_("assistant"))
    number = models.PositiveIntegerField(_("version"))
    settings = models.JSONField(_("settings"), default=dict)
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+", verbose_name=_("by"))
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    published_at = models.DateTimeField(_("published at"), null=True)

    class Meta:
        verbose_name = _("version of an assistant")
        verbose_name_plural = _("versions of assistants")
        ordering = ("-number",)
        constraints: ClassVar = [models.UniqueConstraint(fields=["assistant", "number"], name="assistant_version_once")]
        triggers: ClassVar = [
            pgtrigger.ReadOnly(name="assistant_version_never_changes", fields=["assistant", "number", "settings"])
        ]

    def __str__(self) -> str:
        return f"{self.assistant} v{self.number}"


class ShareLinkQuerySet(models.QuerySet["ShareLink"]):
    def usable(self) -> Self:
        """Those that let somebody in: neither revoked nor expired."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)


class ShareLink(models.Model):
    """Lets whoever has its address use an assistant. The address holds a signature of the row's id, which nobody can guess.

    Attributes:
        expires_at: None: never.
        revoked_at: None: not revoked.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    assistant = models.ForeignKey(Assistant, models.CASCADE, related_name="links", verbose_name=_("assistant"))
    name = models.CharField(_("name"), max_length=80, blank=True, help_text=_("Whom it is for; only you see it."))
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked"), null=True, editable=False)
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = ShareLinkQuerySet.as_manager()

    class Meta:
        verbose_name = _("share link")
        verbose_name_plural = _("share links")
        ordering = ("-created_at", "pk")
        triggers: ClassVar = SHARE_LINK.triggers()

    def __str__(self) -> str:
        return self.name or str(self.pk)[:8]


class Visitor(models.Model):
    """Who uses an assistant: a signed-in user, or a browser that is known by nothing but this id."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    assistant = models.ForeignKey(Assistant, models.CASCADE, related_name="visitors", verbose_name=_("assistant"))
    user = models.ForeignKey(User, models.CASCADE, null=True, related_name="visits", verbose_name=_("user"))
    created_at = models.DateTimeField(_("first seen"), auto_now_add=True)

    class Meta:
        verbose_name = _("visitor")
        verbose_name_plural = _("visitors")
        ordering = ("-created_at", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["assistant", "user"], condition=Q(user__isnull=False), name="one_visitor_per_user"
            )
        ]

    def __str__(self) -> str:
        return str(self.user or str(self.pk)[:8])


class AssistantUse(models.Model):
    """What was asked of an assistant in a day (by the clock of the server): by everybody, by one visitor, or from one network address.

    Attributes:
        whose: blank: everybody's; "v:" and a visitor's id; "a:" and a keyed hash of an address and the day, so that no
            address is stored and none is followed from day to day.
        tokens: read and written by chat models; of answers under way the most that they may take.
    """

    assistant = models.ForeignKey(Assistant, models.CASCADE, related_name="use", verbose_name=_("assistant"))
    day = models.DateField(_("day"))
    whose = models.CharField(max_length=40, blank=True)
    questions = models.PositiveIntegerField(_("questions"), default=0)
    tokens = models.PositiveBigIntegerField(_("tokens"), default=0)

    class Meta:
        verbose_name = _("use of an assistant")
        verbose_name_plural = _("use of assistants")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["assistant", "day", "whose"], name="assistant_use_once")
        ]

    def __str__(self) -> str:
        return f"{self.assistant_id} {self.day} {self.whose}"
