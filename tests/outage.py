"""A database that is out of reach for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import connection

KEYS = {"host", "port", "user", "password"}


@contextmanager
def database_out_of_reach() -> Iterator[None]:
    """The tests' database has ended all connections, those that are idle in the pool too, and takes none."""
    ours = connection.settings_dict["NAME"]
    parameters = {key: value for key, value in connection.get_connection_params().items() if key in KEYS}
    with psycopg.connect(**parameters | {"dbname": "postgres"}, autocommit=True) as administrator:
        administrator.execute(f'ALTER DATABASE "{ours}" ALLOW_CONNECTIONS false')
        try:
            _end_connections(administrator, ours)
            yield
        finally:
            administrator.execute(f'ALTER DATABASE "{ours}" ALLOW_CONNECTIONS true')


def _end_connections(administrator: psycopg.Connection, database: str) -> None:
    """Waits for the end of each: one that was only told to end may still answer, and end in the test after."""
    # Autovacuum comes and goes as it likes.
    connected = "FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
    administrator.execute(f"SELECT pg_terminate_backend(pid, 30000) {connected}", [database])
    assert administrator.execute(f"SELECT count(*) {connected}", [database]).fetchone() == (0,)
