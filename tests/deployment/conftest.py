import json
from types import SimpleNamespace

import pytest
from filelock import FileLock

from tests import databases
from tests.deployment.stack import KNOWLEDGE_BASE, Stack
from tests.serving import collected_static


@pytest.fixture(scope="session")
def _prepared(django_db_setup, django_db_blocker, run_folder):
    """What stacks are copied from, made once a run: static files, and a database with a user who has a key and a
    knowledge base.
    """
    record, static = run_folder / "stack.json", collected_static(run_folder)
    with FileLock(run_folder / "stack.lock"):
        if not record.exists():
            with django_db_blocker.unblock():
                stack = Stack(template=databases.shared("migrated"), DJANGO_SUPERUSER_PASSWORD="not-a-secret-4711")
            with stack:
                document = stack.folder / "a.txt"
                document.write_text("The warranty lasts for two years.")
                kb = ("--kb", KNOWLEDGE_BASE, "--owner", "admin", "--create", "--inline")
                *_, made = stack.manage_in_turn(
                    stack.command("migrate")[2:],
                    ["createsuperuser", "--no-input", "--username", "admin", "--email", "a@example.org"],
                    ["ingest", str(document), *kb],
                    ["create_api_key", "--user", "admin", "--scope", "write"],
                )
                with django_db_blocker.unblock():
                    databases.copy(stack.name, databases.shared("stack"))
                record.write_text(json.dumps({"key": made.stdout.strip().split()[-1]}))
    return SimpleNamespace(name=databases.shared("stack"), static=static, **json.loads(record.read_text()))


@pytest.fixture(scope="module")
def servers(_prepared, django_db_blocker):
    """A stack for the tests of a file, which start its processes themselves."""
    with django_db_blocker.unblock():
        stack = Stack(copied=_prepared)
    with stack:
        yield stack
