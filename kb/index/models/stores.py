from typing import ClassVar

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from kb.access.models.accounts import ScopedQuerySet
from kb.access.models.knowledge import KnowledgeBase
from kb.base.messages import MessageField


class StoreChange(models.Model):
    """What another store than PostgreSQL has yet to take in.

    The database's triggers write it, and whoever has applied it deletes it.

    A row says only that something has changed, and not how: whoever applies it reads what there is then. So a row that is
    applied twice, or together with a later one, does no harm.

    Attributes:
        chunk_id: None: all that the store holds of the knowledge base goes first.
        model: whose vectors of the chunk have changed; blank: anything of the chunk.
    """

    knowledge_base = models.ForeignKey(KnowledgeBase, models.DO_NOTHING, db_constraint=False, related_name="+")
    store = models.CharField(max_length=10)
    chunk_id = models.BigIntegerField(null=True)
    model = models.CharField(max_length=255, blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["knowledge_base", "store", "id"], name="store_changes_in_order"),
            models.Index(
                fields=["knowledge_base", "store", "model"], include=["chunk_id"], name="store_changes_by_model"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.store} {self.knowledge_base_id}: {self.chunk_id or 'all'} {self.model}"


class StoreState(models.Model):
    """A knowledge base's copy in a store, as every process can show it.

    Which store searches use and which is on its way stands in the knowledge base itself; what a copy lacks, in the changes
    that are not applied.

    Attributes:
        total: how many changes there were to apply when the copy was begun.
        checked: what was measured before searches changed over: counts and recall.
        error: why the last try to apply changes, or to finish the copy, has failed; blank: it has not.
        failures: in a row.
        retry_at: when to try again.
        applied_version: of the knowledge base, when nothing was left to apply.
        told_at: when its process last told of progress; one that has been silent for long is dead.
    """

    class Status(models.TextChoices):
        FILLING = "filling", _("copying")
        CHECKING = "checking", _("being checked")
        IN_USE = "in_use", _("in use")
        FAILED = "failed", _("failed")

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="store_states")
    store = models.CharField(_("store"), max_length=10, choices=KnowledgeBase.Store)
    status = models.CharField(_("status"), max_length=10, choices=Status, default=Status.FILLING)
    total = models.PositiveIntegerField(default=0)
    checked = models.JSONField(default=dict)
    error = MessageField(_("error"), blank=True)
    failures = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    applied_version = models.BigIntegerField(null=True)
    applied_at = models.DateTimeField(null=True)
    told_at = models.DateTimeField(db_default=Now())

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("state of a store")
        verbose_name_plural = _("states of stores")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "store"], name="state_once_per_store")
        ]

    def __str__(self) -> str:
        return f"{self.knowledge_base_id}: {self.store} {self.status}"
