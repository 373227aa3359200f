"""Database triggers: versions belong to the database, so that every writer moves them (design decision 1).

They fire once a statement, whoever wrote it (the ORM, a cascade, raw SQL, another program), inside the writing
transaction. A sequence value is never used twice, not after a rollback either.
"""

import pgtrigger

_TAKE_VERSION = """
    PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN ({affected})
        ORDER BY v.knowledge_base_id FOR UPDATE;
    UPDATE kb_versions v SET version = nextval('kb_version_seq') WHERE v.knowledge_base_id IN ({affected});
"""
_NEW = "SELECT knowledge_base_id FROM new_rows"
_OLD = "SELECT knowledge_base_id FROM old_rows"


def _statement_trigger(
    name: str, operation: pgtrigger.Operation, referencing: pgtrigger.Referencing, body: str
) -> pgtrigger.Trigger:
    return pgtrigger.Trigger(
        name=name,
        level=pgtrigger.Statement,
        when=pgtrigger.After,
        operation=operation,
        referencing=referencing,
        func=body + " RETURN NULL;",
    )


def _version_triggers(*, on_update: str = "", deleted: str = _OLD) -> list[pgtrigger.Trigger]:
    """A new version for every insert, update and delete; `deleted` selects the bases that a delete touches."""
    return [
        _statement_trigger(
            "version_insert",
            pgtrigger.Insert,
            pgtrigger.Referencing(new="new_rows"),
            _TAKE_VERSION.format(affected=_NEW),
        ),
        _statement_trigger(
            "version_update",
            pgtrigger.Update,
            pgtrigger.Referencing(old="old_rows", new="new_rows"),
            on_update + _TAKE_VERSION.format(affected=f"{_OLD} UNION {_NEW}"),
        ),
        _statement_trigger(
            "version_delete",
            pgtrigger.Delete,
            pgtrigger.Referencing(old="old_rows"),
            _TAKE_VERSION.format(affected=deleted),
        ),
    ]


def chunk_triggers() -> list[pgtrigger.Trigger]:
    """A new version for every change of chunks; switching a chunk off also hides its vectors."""
    hide_vectors = """
    UPDATE kb_chunkembedding e SET enabled = n.enabled
        FROM new_rows n JOIN old_rows o ON o.id = n.id
        WHERE e.chunk_id = n.id AND n.enabled IS DISTINCT FROM o.enabled;
    """
    return _version_triggers(on_update=hide_vectors)


def postings_triggers() -> list[pgtrigger.Trigger]:
    """A new version for every change of postings.

    A cascade from chunks deletes postings one statement a row, when the chunk is gone and its own trigger has
    taken the version already: such rows are passed over.
    """
    with_chunk = f"{_OLD} o WHERE EXISTS (SELECT 1 FROM kb_chunk c WHERE c.id = o.chunk_id)"  # noqa: S608 - constants
    return _version_triggers(deleted=with_chunk)


def knowledge_base_triggers() -> list[pgtrigger.Trigger]:
    """Every knowledge base has its version row from its first moment."""
    return [
        _statement_trigger(
            "version_row",
            pgtrigger.Insert,
            pgtrigger.Referencing(new="new_rows"),
            "INSERT INTO kb_versions (knowledge_base_id, version) SELECT id, nextval('kb_version_seq') FROM new_rows;",
        ),
    ]
