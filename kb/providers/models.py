from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.access.models import KnowledgeBase, ScopedQuerySet


class TokenizerSettings(models.Model):
    """What a knowledge base's editors wrote for a tokenizer that it has or is moving to.

    The id of the tokenizer holds a hash of the options, so that rows of one id mean the same, whatever their comments
    and the order of their lines. An id without a row is that of the default options.
    """

    is_derived = True

    class Engine(models.TextChoices):
        JIEBA = "jieba", "jieba"
        RJIEBA = "rjieba", "rjieba"

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="tokenizer_settings")
    tokenizer_id = models.CharField(max_length=120)
    engine = models.CharField(_("engine"), max_length=12, choices=Engine, default=Engine.JIEBA)
    dictionary = models.TextField(_("dictionary"), blank=True)
    stop_words = models.TextField(_("stop words"), blank=True)
    simplify = models.BooleanField(_("traditional to simplified Chinese"), default=False)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("tokenizer settings")
        verbose_name_plural = _("tokenizer settings")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "tokenizer_id"], name="settings_once_per_tokenizer"),
        ]
        indexes: ClassVar = [models.Index(fields=["tokenizer_id"], name="settings_by_tokenizer")]

    def __str__(self) -> str:
        return self.tokenizer_id
