from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from kb.access.models.accounts import ScopedQuerySet
from kb.access.models.knowledge import KnowledgeBase
from kb.base.messages import MessageField


class Reembedding(models.Model):
    """The last move of a knowledge base to another embedding model, as every process can show it.

    Which model searches use, which is on its way and which is kept for a return stands in the knowledge base itself. How
    far the move is follows from the vectors that there are.

    Attributes:
        dimension: of the new vectors; None until a worker has loaded the model.
        swaps: whether searches change over as soon as every chunk has its vector, and not only when they are told to.
        counted_from: how many chunks had their vector at `counted_at`, when this run of the work began.
        told_at: when its process last told of progress; one that has been silent for long is dead.
        swapped_at: when searches changed over.
    """

    class Status(models.TextChoices):
        BUILDING = "building", _("embedding")
        INDEXING = "indexing", _("making the vector index")
        READY = "ready", _("ready to swap")
        SWAPPED = "swapped", _("in use")
        CANCELLED = "cancelled", _("cancelled")
        FAILED = "failed", _("failed")

    knowledge_base = models.OneToOneField(KnowledgeBase, models.CASCADE, primary_key=True, related_name="reembedding")
    model = models.CharField(_("embedding model"), max_length=255)
    dimension = models.PositiveIntegerField(_("dimension"), null=True)
    status = models.CharField(_("status"), max_length=10, choices=Status, default=Status.BUILDING)
    swaps = models.BooleanField(default=False)
    error = MessageField(_("error"), blank=True)
    counted_from = models.PositiveIntegerField(default=0)
    counted_at = models.DateTimeField(default=timezone.now)
    told_at = models.DateTimeField(default=timezone.now)
    swapped_at = models.DateTimeField(null=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("change of the embedding model")
        verbose_name_plural = _("changes of the embedding model")

    def __str__(self) -> str:
        return f"{self.knowledge_base_id} → {self.model}"
