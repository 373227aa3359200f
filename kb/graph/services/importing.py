"""Imports of entities, facts and concepts from CSV files: first a plan of what would change, then the change itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.base.db.row_locks import lock_knowledge_bases
from kb.base.errors import Rejected
from kb.graph.services.import_concepts import plan_concepts
from kb.graph.services.import_entities import plan_entities
from kb.graph.services.import_facts import plan_facts
from kb.graph.services.import_plan import Effect, PlannedRow
from kb.graph.services.tables import Row, Table, read_table

_PLANS: Mapping[Table, Callable[[KnowledgeBase, Sequence[Row]], tuple[list[PlannedRow], Callable[[], None]]]] = {
    Table.ENTITIES: plan_entities,
    Table.FACTS: plan_facts,
    Table.CONCEPTS: plan_concepts,
}


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What a file would do, row by row."""

    table: Table
    rows: Sequence[PlannedRow]

    def count(self, effect: Effect) -> int:
        return sum(row.effect is effect for row in self.rows)

    @property
    def errors(self) -> list[PlannedRow]:
        return [row for row in self.rows if row.effect is Effect.ERROR]

    @property
    def counts(self) -> dict[str, int]:
        return {effect.value: self.count(effect) for effect in Effect}


def graph_import_plan(kb: KnowledgeBase, table: Table, text: str) -> ImportPlan:
    """What importing a file would change; nothing is changed.

    Raises:
        Rejected: the file as a whole cannot be read.
    """
    rows, _apply = _PLANS[table](kb, read_table(text, table))
    return ImportPlan(table, rows)


def graph_import(kb: KnowledgeBase, table: Table, text: str, *, skip_errors: bool = False) -> ImportPlan:
    """Imports a file, all of it or nothing.

    Args:
        kb: the caller has checked that the user may write there.
        table: what the file holds.
        text: the file.
        skip_errors: leave lines with errors out; else one such line refuses the file.

    Raises:
        Rejected: the file cannot be read, or has lines with errors.
    """
    rows = read_table(text, table)
    with transaction.atomic():
        lock_knowledge_bases([kb.pk])
        planned, apply = _PLANS[table](kb, rows)
        plan = ImportPlan(table, planned)
        if plan.errors and not skip_errors:
            first = plan.errors[0]
            message = _("Line %(line)d: %(error)s Nothing was imported.")
            raise Rejected("bad_lines", message % {"line": first.line, "error": first.message})
        apply()
    return plan
