"""What a database holds, row by row, as it was before an upgrade and is after it."""

import psycopg
from psycopg import sql

Rows = dict[str, dict[str, str]]
"""By table: a digest of each row by its primary key."""

# Values that migrations spell otherwise, by table and column: what they were, and are now.
RENAMED = {("kb_auditentry", "object_type"): {"web_source": "source"}}


def columns(connection: psycopg.Connection) -> dict[str, list[str]]:
    """The columns of the product's tables."""
    found: dict[str, list[str]] = {}
    for table, column in connection.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        " AND (table_name LIKE 'kb\\_%' OR table_name IN ('bm25_indexes', 'django_session', 'django_admin_log'))"
        " ORDER BY table_name, ordinal_position"
    ):
        found.setdefault(table, []).append(column)
    return found


def rows(connection: psycopg.Connection, of: dict[str, list[str]]) -> Rows:
    """Digests over these columns of every row, with the values of `RENAMED` as they are now."""
    found: Rows = {}
    for table, names in of.items():
        [(key,)] = connection.execute(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
            " WHERE i.indrelid = %s::regclass AND i.indisprimary",
            [table],
        ).fetchall()
        statement = sql.SQL("SELECT {key}::text, md5(ROW({columns})::text) FROM {table}").format(
            key=sql.Identifier(key),
            columns=sql.SQL(", ").join(_value(table, name) for name in names),
            table=sql.Identifier(table),
        )
        found[table] = dict(connection.execute(statement).fetchall())
    return found


def _value(table: str, column: str) -> sql.Composable:
    value: sql.Composable = sql.Identifier(column)
    for was, now in RENAMED.get((table, column), {}).items():
        value = sql.SQL("regexp_replace({}, {}, {})").format(value, f"^{was}$", now)
    return value


def changed(before: Rows, after: Rows) -> dict[str, list[str]]:
    """By table the keys of rows that are not what they were."""
    differing = {
        table: [key for key, digest in kept.items() if after.get(table, {}).get(key) != digest]
        for table, kept in before.items()
    }
    return {table: keys for table, keys in differing.items() if keys}


def lost(before: Rows, after: Rows) -> dict[str, list[str]]:
    """By table the keys of rows that are no longer there."""
    gone = {table: sorted(set(kept) - set(after.get(table, {}))) for table, kept in before.items()}
    return {table: keys for table, keys in gone.items() if keys}
