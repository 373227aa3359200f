from django.db import models
from django.utils.translation import gettext_lazy as _


class TokenizerSettings(models.Model):
    """The options behind a tokenizer id that knowledge bases use; a row never changes, as its id holds their hash.

    An id without a row is that of the default options.
    """

    class Engine(models.TextChoices):
        JIEBA = "jieba", "jieba"
        RJIEBA = "rjieba", "rjieba"

    id = models.CharField(max_length=120, primary_key=True)
    engine = models.CharField(_("engine"), max_length=12, choices=Engine, default=Engine.JIEBA)
    dictionary = models.TextField(_("dictionary"), blank=True)
    stop_words = models.TextField(_("stop words"), blank=True)
    simplify = models.BooleanField(_("traditional to simplified Chinese"), default=False)

    class Meta:
        verbose_name = _("tokenizer settings")
        verbose_name_plural = _("tokenizer settings")

    def __str__(self) -> str:
        return self.id
