"""Zero downtime as a rule: the code of the release before works on the schema of this one. See docs/deploying.md."""

import importlib

import pytest
from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models import NOT_PROVIDED

from tests.deployment.compose import ROOT

# Those before were written before the rule.
LAST_WITHOUT_RULE = 17
LARGE = {"chunk", "chunkpostings", "chunkembedding", "chunkchange", "chunklexeme", "document", "searchlog"}
FORBIDDEN = (
    migrations.RemoveField,
    migrations.RenameField,
    migrations.DeleteModel,
    migrations.RenameModel,
    migrations.AlterModelTable,
)


def numbered():
    for path in sorted((ROOT / "kb/migrations").glob("[0-9]*.py")):
        if int(path.name[:4]) > LAST_WITHOUT_RULE:
            yield path.stem


def faults(migration):
    """What of a migration the release before would stumble over, or queue behind."""
    new = {operation.name_lower for operation in migration.operations if isinstance(operation, migrations.CreateModel)}
    return [fault for operation in operations(migration) if (fault := fault_of(operation, new, migration))]


def operations(migration):
    for operation in migration.operations:
        if isinstance(operation, migrations.SeparateDatabaseAndState):
            yield from operation.database_operations
        else:
            yield operation


def fault_of(operation, new, migration):
    model = getattr(operation, "model_name", "").lower()
    concurrent = isinstance(operation, (AddIndexConcurrently, RemoveIndexConcurrently))
    why = ""
    if model in new:
        return ""
    if isinstance(operation, FORBIDDEN):
        why = "the release before reads it; leave it unused for one release"
    elif isinstance(operation, migrations.AddField) and not is_free(operation.field):
        why = "the release before writes no value; make it null or give it db_default"
    elif isinstance(operation, migrations.AlterField) and not operation.field.null and is_required(operation.field):
        why = "a column that may become NOT NULL; add a check that is NOT VALID instead"
    elif concurrent and migration.atomic:
        why = "needs atomic = False"
    elif isinstance(operation, (migrations.AddIndex, migrations.AddConstraint)) and not concurrent and model in LARGE:
        why = "locks a large table; use AddIndexConcurrently"
    return why and f"{operation.describe()}: {why}"


def is_free(field):
    """Whether a row can be written without naming the field."""
    return field.many_to_many or field.null or field.db_default is not NOT_PROVIDED


def is_required(field):
    """AlterField does not say what the field was; one with a database default is safe either way."""
    return field.db_default is NOT_PROVIDED and not field.has_default() and not field.blank


@pytest.mark.parametrize("name", [*numbered()] or [None])
def test_the_release_before_works_on_the_new_schema(name):
    if name is None:
        assert max(int(path.name[:4]) for path in (ROOT / "kb/migrations").glob("[0-9]*.py")) == LAST_WITHOUT_RULE
        return
    assert faults(importlib.import_module(f"kb.migrations.{name}").Migration("name", "kb")) == []


def migration(*wanted, atomic=True):
    made = migrations.Migration("0099_made", "kb")
    made.operations, made.atomic = list(wanted), atomic
    return made


INDEX = models.Index(fields=["status"], name="made")


@pytest.mark.parametrize(
    "bad",
    [
        migrations.RemoveField("document", "title"),
        migrations.RenameField("document", "title", "name"),
        migrations.DeleteModel("Document"),
        migrations.RenameModel("Document", "Paper"),
        migrations.AddField("document", "more", models.TextField(default="")),
        migrations.AlterField("document", "title", models.TextField()),
        migrations.AddIndex("document", INDEX),
        AddIndexConcurrently("document", INDEX),
        migrations.AddConstraint("chunk", models.UniqueConstraint(fields=["position"], name="made")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_would_break_or_stop_it_is_found(bad):
    assert len(faults(migration(bad))) == 1


def test_what_does_neither_is_not():
    model = migrations.CreateModel("New", [("id", models.BigAutoField(primary_key=True))])
    fine = migration(
        model,
        migrations.AddIndex("new", INDEX),
        migrations.AddField("document", "a", models.TextField(null=True)),
        migrations.AddField("document", "b", models.TextField(db_default="")),
        migrations.AddIndex("eval_set", INDEX),
    )
    assert faults(fine) == []
    assert faults(migration(AddIndexConcurrently("document", INDEX), atomic=False)) == []
