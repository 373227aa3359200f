from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.base.models import InternalRow


class ModelUse(InternalRow):
    """What a model was asked on a day for a knowledge base, which may have been deleted since (0: for none).

    Of the tokens `estimated_tokens` are reckoned from the length of the texts, since the server does not count them.
    """

    day = models.DateField(_("day"))
    role = models.CharField(_("role"), max_length=12)
    model = models.CharField(_("model"), max_length=200)
    knowledge_base_id = models.BigIntegerField(default=0)
    requests = models.BigIntegerField(_("requests"), default=0)
    input_tokens = models.BigIntegerField(_("tokens read"), default=0)
    output_tokens = models.BigIntegerField(_("tokens written"), default=0)
    estimated_tokens = models.BigIntegerField(_("tokens estimated"), default=0)

    class Meta:
        verbose_name = _("use of a model")
        verbose_name_plural = _("use of models")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["day", "role", "model", "knowledge_base_id"], name="use_once_per_day_model_and_kb"
            ),
        ]
