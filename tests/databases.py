"""A migrated database, made once a run and copied for each process of it."""

import os
import uuid

from django.conf import settings
from django.db import connection
from django.db.backends.postgresql.creation import DatabaseCreation

SHARED = ("migrated", "stack")
_RUN = "ZHIKU_TEST_RUN"
_LOCK = 4711


def begin_run():
    """In the process that begins a run; those that it starts inherit what they find each other by."""
    os.environ.setdefault(_RUN, uuid.uuid4().hex[:12])
    DatabaseCreation.create_test_db = _create


def shared(name):
    """The name of a database to copy from, to which nobody is connected; "migrated" has what a new installation has."""
    return f"zhiku_{name}_{os.environ[_RUN]}"


def copy(source, name):
    with connection.creation._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} TEMPLATE {source}")


def end_run():
    with connection.creation._nodb_cursor() as cursor:
        for name in SHARED:
            cursor.execute(f"DROP DATABASE IF EXISTS {shared(name)}")


_migrate = DatabaseCreation.create_test_db


def _create(creation, verbosity=1, autoclobber=False, serialize=True, keepdb=False):
    """In place of Django's own, which migrates each database."""
    if keepdb:
        return _migrate(creation, verbosity, autoclobber, serialize, keepdb)
    with creation._nodb_cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
        cursor.execute("SELECT FROM pg_database WHERE datname = %s", [shared("migrated")])
        if cursor.fetchone() is None:
            _make_template(creation, cursor)
        test = creation.connection.settings_dict["TEST"]
        test["TEMPLATE"] = shared("migrated")
        creation._create_test_db(verbosity, autoclobber)
        cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
    _lead_to(creation, creation._get_test_db_name())
    with creation.connection.cursor() as cursor:
        cursor.execute("UPDATE kb_installation SET id = gen_random_uuid()")  # or two would share their keys in Redis
    return creation._get_test_db_name()


def _make_template(creation, cursor):
    """Under another name until it is whole."""
    test, before = creation.connection.settings_dict["TEST"], creation.connection.settings_dict["NAME"]
    own, unfinished = test["NAME"], f"{shared('migrated')}_new"
    test["NAME"] = unfinished
    _migrate(creation, verbosity=0, autoclobber=True, serialize=False)
    test["NAME"] = own
    _lead_to(creation, before)
    cursor.execute(f"ALTER DATABASE {unfinished} RENAME TO {shared('migrated')}")


def _lead_to(creation, name):
    creation.connection.close()
    creation.connection.close_pool()
    settings.DATABASES[creation.connection.alias]["NAME"] = creation.connection.settings_dict["NAME"] = name
