from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.models.access import ScopedQuerySet
from kb.models.knowledge import Document, KnowledgeBase


class EvalSet(models.Model):
    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="eval_sets")
    name = models.CharField(_("name"), max_length=120)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("evaluation set")
        verbose_name_plural = _("evaluation sets")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "name"], name="eval_set_name_per_kb")
        ]

    def __str__(self) -> str:
        return self.name


class EvalQuery(models.Model):
    eval_set = models.ForeignKey(EvalSet, models.CASCADE, related_name="queries")
    external_id = models.CharField(max_length=200)
    text = models.TextField(_("query"))
    answerable = models.BooleanField(_("answerable"), default=True)

    objects = ScopedQuerySet.through("eval_set__knowledge_base").as_manager()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["eval_set", "external_id"], name="eval_query_once")]

    def __str__(self) -> str:
        return self.text


class Judgment(models.Model):
    """How relevant a document is to a query, graded as in TREC qrels: 0 is irrelevant."""

    query = models.ForeignKey(EvalQuery, models.CASCADE, related_name="judgments")
    document = models.ForeignKey(Document, models.CASCADE, related_name="judgments")
    grade = models.PositiveSmallIntegerField(_("grade"))

    objects = ScopedQuerySet.through("query__eval_set__knowledge_base").as_manager()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["query", "document"], name="judgment_once")]

    def __str__(self) -> str:
        return f"{self.query_id} → {self.document_id}: {self.grade}"
