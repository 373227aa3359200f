import pytest

from tests.deployment.stack import Stack


@pytest.fixture(scope="session")
def _prepared(django_db_setup, django_db_blocker):
    """A stack to copy: its database is migrated and has a user with a key, and its static files are collected."""
    with django_db_blocker.unblock():
        stack = Stack()
    with stack:
        stack.run(stack.command("migrate"))
        stack.manage("collectstatic", "--no-input", "--verbosity", "0")
        stack.environment["DJANGO_SUPERUSER_PASSWORD"] = "not-a-secret-4711"
        stack.manage("createsuperuser", "--no-input", "--username", "admin", "--email", "a@example.org")
        stack.key = stack.manage("create_api_key", "--user", "admin", "--scope", "write").stdout.strip().split()[-1]
        yield stack


@pytest.fixture(scope="module")
def servers(_prepared, django_db_blocker):
    """A stack for the tests of a file, which start its processes themselves."""
    with django_db_blocker.unblock():
        stack = Stack(copied=_prepared)
    with stack:
        yield stack
