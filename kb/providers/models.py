from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.access.models import KnowledgeBase, ScopedQuerySet, User
from kb.base.db.audit_triggers import PROVIDER_MODEL
from kb.base.encryption import SecretsField
from kb.base.messages import MessageField
from kb.base.models import InternalRow
from kb.base.net.addresses import URL_CHARACTERS
from kb.providers.recommended import Role


class TokenizerSettings(InternalRow):
    """What a knowledge base's editors wrote for a tokenizer that it has or is moving to.

    The id of the tokenizer holds a hash of the options, so that rows of one id mean the same, whatever their comments
    and the order of their lines. An id without a row is that of the default options.
    """

    class Engine(models.TextChoices):
        JIEBA = "jieba", "jieba"
        RJIEBA = "rjieba", "rjieba"

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="tokenizer_settings")
    tokenizer_id = models.CharField(max_length=120)
    engine = models.CharField(_("engine"), max_length=12, choices=Engine, default=Engine.JIEBA)
    dictionary = models.TextField(_("dictionary"), blank=True)
    stop_words = models.TextField(_("stop words"), blank=True)
    simplify = models.BooleanField(_("traditional to simplified Chinese"), default=False)
    error = MessageField(blank=True, default="", db_default="", editable=False)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("tokenizer settings")
        verbose_name_plural = _("tokenizer settings")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "tokenizer_id"], name="settings_once_per_tokenizer"),
        ]
        indexes: ClassVar = [models.Index(fields=["tokenizer_id"], name="settings_by_tokenizer")]


class ProviderModel(models.Model):
    """A model of this installation, which superusers name and knowledge bases choose.

    Attributes:
        slug: never changes and is never given again, since vectors carry it.
        provider: a key of the presets; "local" for weights on this server.
        base_url: what comes before `/embeddings` or `/chat/completions`, or of a rerank server as its form has it.
        model: the id at the server, or the weights' id.
        secrets: "api_key", encrypted, never shown.
        dimension: as its vectors were last seen; None: not yet, or of another role.
        options: those of `OPTIONS` in `kb.providers.services`.
        allows_private: whether a superuser confirmed that the server may be at a private address.
        is_default: of its role; where none is, the environment's model serves.
        variable: the environment variable that makes the row, which then cannot be edited; blank: people made it.
        test_ok: how the last test ended; None: not tested yet.
    """

    role = models.CharField(
        _("role"),
        max_length=12,
        choices=[
            (Role.EMBEDDING.value, _("embedding")),
            (Role.RERANK.value, _("reranking")),
            (Role.CHAT.value, _("chat")),
        ],
    )
    name = models.CharField(_("name"), max_length=120)
    slug = models.CharField(max_length=100, unique=True, editable=False)
    provider = models.CharField(_("provider"), max_length=40)
    base_url = models.CharField(_("address"), max_length=URL_CHARACTERS, blank=True, db_default="")
    model = models.CharField(_("model"), max_length=200)
    secrets = SecretsField(_("API key"))
    dimension = models.PositiveIntegerField(_("dimension"), null=True, editable=False)
    options = models.JSONField(_("options"), default=dict, db_default={}, blank=True)
    allows_private = models.BooleanField(_("private address confirmed"), default=False, db_default=False)
    is_default = models.BooleanField(_("default"), default=False, db_default=False, editable=False)
    is_enabled = models.BooleanField(_("enabled"), default=True, db_default=True)
    variable = models.CharField(max_length=40, blank=True, default="", db_default="", editable=False)
    tested_at = models.DateTimeField(_("last test"), null=True, editable=False)
    test_ok = models.BooleanField(null=True, editable=False)
    test_latency_ms = models.PositiveIntegerField(null=True, editable=False)
    test_message = MessageField(blank=True, default="", db_default="", editable=False)
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    class Meta:
        verbose_name = _("model")
        verbose_name_plural = _("models")
        ordering = ("role", "name", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["role", "name"], condition=models.Q(variable=""), name="model_name_per_role"
            ),
            models.UniqueConstraint(fields=["role"], condition=models.Q(is_default=True), name="one_default_per_role"),
        ]
        triggers: ClassVar = PROVIDER_MODEL.triggers()

    def __str__(self) -> str:
        return self.name
