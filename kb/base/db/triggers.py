"""Triggers by which versions belong to the database: every writer moves them, whoever it is (design decision 1).

They fire once a statement, inside its transaction. A sequence value is never used twice, not after a rollback either.
What other stores than PostgreSQL have to take in is noted likewise.
"""

import pgtrigger

# A statement that changes more chunks than this ends the log: reading them all would cost as much as rebuilding.
MAX_LOGGED_ROWS = 10_000

_HIDE_VECTORS = """
    UPDATE kb_chunkembedding e SET enabled = switched.enabled
        FROM (SELECT id, enabled FROM new_rows EXCEPT SELECT id, enabled FROM old_rows) switched
        WHERE e.chunk_id = switched.id;
    """
_TAKE_VERSION = """
    PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN ({affected})
        ORDER BY v.knowledge_base_id FOR UPDATE;
    UPDATE kb_versions v SET version = nextval('kb_version_seq') WHERE v.knowledge_base_id IN ({affected});
"""
_LOG = """
    IF (SELECT count(*) FROM ({changes}) c) > {limit} THEN
        INSERT INTO kb_chunkchange (knowledge_base_id, version, chunk_id, operation)
            SELECT DISTINCT v.knowledge_base_id, v.version, NULL::bigint, 'reset'
            FROM ({changes}) c JOIN kb_versions v ON v.knowledge_base_id = c.knowledge_base_id;
    ELSE
        INSERT INTO kb_chunkchange (knowledge_base_id, version, chunk_id, operation)
            SELECT v.knowledge_base_id, v.version, c.chunk_id, '{operation}'
            FROM ({changes}) c JOIN kb_versions v ON v.knowledge_base_id = c.knowledge_base_id;
    END IF;
"""
_END_LOG = """
    INSERT INTO kb_chunkchange (knowledge_base_id, version, chunk_id, operation)
        SELECT v.knowledge_base_id, v.version, NULL, 'reset' FROM kb_versions v WHERE v.knowledge_base_id IN ({affected});
"""
_ACTIVE_ROWS = """
    SELECT r.knowledge_base_id, r.chunk_id FROM {rows} r
    JOIN kb_knowledgebase k ON k.id = r.knowledge_base_id AND k.tokenizer_id = r.tokenizer_id"""
_SEARCHED_ROWS = """
    SELECT r.knowledge_base_id FROM {rows} r
    JOIN kb_knowledgebase k ON k.id = r.knowledge_base_id AND k.embedding_model = r.model"""
_BASES_OF = "SELECT knowledge_base_id FROM ({changes}) c"
_WITH_CHUNK = " WHERE EXISTS (SELECT 1 FROM kb_chunk c WHERE c.id = r.chunk_id)"
# A session keeps the plan of a trigger's first call, and a join of old with new rows planned for one row compares each
# with each. Set operations sort or hash them at any size.
_SWITCHED = """
    (SELECT knowledge_base_id, id AS chunk_id FROM
        (SELECT id, knowledge_base_id, enabled FROM new_rows EXCEPT SELECT id, knowledge_base_id, enabled FROM old_rows) n)
    UNION
    (SELECT knowledge_base_id, id FROM
        (SELECT id, knowledge_base_id, enabled FROM old_rows EXCEPT SELECT id, knowledge_base_id, enabled FROM new_rows) o)"""
_SWAPPED = """
    SELECT id AS knowledge_base_id FROM
        (SELECT id, tokenizer_id FROM new_rows EXCEPT SELECT id, tokenizer_id FROM old_rows) swapped"""
# A cascade or a foreign key's SET NULL runs one statement a deleted row, mostly one that changes nothing.
_TAKE_CONTENT_VERSION = """
    IF EXISTS ({affected}) THEN
        PERFORM 1 FROM kb_versions v WHERE v.knowledge_base_id IN ({affected})
            ORDER BY v.knowledge_base_id FOR UPDATE;
        UPDATE kb_versions v SET content_version = nextval('kb_version_seq')
            WHERE v.knowledge_base_id IN ({affected});
    END IF;
"""
_CHANGED = """
    SELECT {kb} AS knowledge_base_id FROM (
        (SELECT {columns} FROM new_rows EXCEPT SELECT {columns} FROM old_rows)
        UNION ALL
        (SELECT {columns} FROM old_rows EXCEPT SELECT {columns} FROM new_rows)) changed"""
_SOURCED = """
    SELECT knowledge_base_id FROM (
        SELECT knowledge_base_id, id, source_chunk_id FROM new_rows WHERE source_chunk_id IS NOT NULL
        EXCEPT SELECT knowledge_base_id, id, source_chunk_id FROM old_rows) sourced"""
_SHOWN_OF_KNOWLEDGE_BASE = (
    "id, name, language, no_answer, profile_id, embedding_model, target_embedding_model, dimension, keyword_vectors,"
    " tokenizer_id, lacks_postings, store"
)
_NEW = "SELECT knowledge_base_id FROM new_rows"
_OLD = "SELECT knowledge_base_id FROM old_rows"
# Those that searches use and those that are being filled.
_NOTE = """
    INSERT INTO kb_storechange (knowledge_base_id, store, chunk_id, model)
        SELECT c.knowledge_base_id, s.store, c.chunk_id, c.model
        FROM ({changes}) c
        JOIN kb_knowledgebase k ON k.id = c.knowledge_base_id
        CROSS JOIN LATERAL (VALUES (k.store), (k.target_store)) s (store)
        WHERE s.store NOT IN ('', 'postgres');
"""
_CHUNKS = "SELECT knowledge_base_id, id AS chunk_id, '' AS model FROM {rows}"
_CHANGED_CHUNKS = """
    SELECT knowledge_base_id, id AS chunk_id, '' AS model FROM
        (SELECT {columns} FROM new_rows EXCEPT SELECT {columns} FROM old_rows) n
    UNION
    SELECT knowledge_base_id, id, '' FROM
        (SELECT {columns} FROM old_rows EXCEPT SELECT {columns} FROM new_rows) o"""
# A title stands in the text that is indexed of a chunk: where it changes, the postings are made again.
_POSTINGS = """
    SELECT DISTINCT r.knowledge_base_id, r.chunk_id, '' AS model FROM new_rows r
    JOIN kb_knowledgebase b ON b.id = r.knowledge_base_id AND b.tokenizer_id = r.tokenizer_id"""
_GONE = """
    DELETE FROM kb_storechange c USING old_rows o WHERE c.knowledge_base_id = o.id;
    INSERT INTO kb_storechange (knowledge_base_id, store)
        SELECT DISTINCT o.id, s.store FROM old_rows o
        CROSS JOIN LATERAL (VALUES (o.store), (o.target_store)) s (store)
        WHERE s.store NOT IN ('', 'postgres');
"""
# Another language cuts texts into other terms.
_OTHER_LANGUAGE = """
    INSERT INTO kb_storechange (knowledge_base_id, store, chunk_id)
        SELECT n.id, s.store, c.id
        FROM new_rows n
        JOIN old_rows o ON o.id = n.id AND o.language <> n.language
        CROSS JOIN LATERAL (VALUES (n.store), (n.target_store)) s (store)
        JOIN kb_chunk c ON c.knowledge_base_id = n.id
        WHERE s.store NOT IN ('', 'postgres')
        ORDER BY c.id;
"""


def _log(changes: str, operation: str) -> str:
    """Writes the change log under the version just taken; `changes` selects knowledge_base_id and chunk_id."""
    return _LOG.format(changes=changes, operation=operation, limit=MAX_LOGGED_ROWS)


def statement_trigger(name: str, operation: pgtrigger.Operation, func: str) -> pgtrigger.Trigger:
    """A trigger that runs once after a statement of one kind, which it sees as `new_rows` and `old_rows`."""
    referencing = {
        pgtrigger.Insert: pgtrigger.Referencing(new="new_rows"),
        pgtrigger.Update: pgtrigger.Referencing(old="old_rows", new="new_rows"),
        pgtrigger.Delete: pgtrigger.Referencing(old="old_rows"),
    }
    return pgtrigger.Trigger(
        name=name,
        level=pgtrigger.Statement,
        when=pgtrigger.After,
        operation=operation,
        referencing=referencing[operation],
        func=func,
    )


def statement_triggers(prefix: str, *, insert: str = "", update: str = "", delete: str = "") -> list[pgtrigger.Trigger]:
    """A trigger for each kind of statement that has a body, in PL/pgSQL without its RETURN."""
    bodies = ((pgtrigger.Insert, insert), (pgtrigger.Update, update), (pgtrigger.Delete, delete))
    return [
        statement_trigger(f"{prefix}_{str(operation).lower()}", operation, f"{body} RETURN NULL;")
        for operation, body in bodies
        if body
    ]


def _of_rows(template: str) -> tuple[str, str]:
    """A query for the rows after a statement, and for those before it."""
    return template.format(rows="new_rows"), template.format(rows="old_rows")


def _content_triggers(**affected: str) -> list[pgtrigger.Trigger]:
    """A new content version; by kind of statement, what selects the knowledge bases that it has changed."""
    bodies = {kind: _TAKE_CONTENT_VERSION.format(affected=each) for kind, each in affected.items()}
    return statement_triggers("content", **bodies)


def _store_triggers(**changes: str) -> list[pgtrigger.Trigger]:
    """Notes for other stores; by kind of statement, what selects the chunks that it has changed."""
    return statement_triggers("store", **{kind: _NOTE.format(changes=each) for kind, each in changes.items()})


# A new version for every change of chunks; switching a chunk off also hides its vectors. The log takes what a keyword index
# would miss otherwise: deletions, and chunks switched on or off or moved. A new chunk and a new text change an index through
# their postings.
CHUNK_TRIGGERS = [
    *statement_triggers(
        "version",
        insert=_TAKE_VERSION.format(affected=_NEW),
        # The vectors' own trigger locks some of the version rows, and must not do so before this one has locked them all.
        update=_TAKE_VERSION.format(affected=f"{_OLD} UNION {_NEW}") + _HIDE_VECTORS + _log(_SWITCHED, "write"),
        delete=_TAKE_VERSION.format(affected=_OLD)
        + _log("SELECT knowledge_base_id, id AS chunk_id FROM old_rows", "delete"),
    ),
    *_store_triggers(
        insert=_CHUNKS.format(rows="new_rows"),
        update=_CHANGED_CHUNKS.format(columns="id, knowledge_base_id, text, heading_path, enabled"),
        delete=_CHUNKS.format(rows="old_rows"),
    ),
]


def _logged(changes: str, operation: str) -> str:
    return _TAKE_VERSION.format(affected=_BASES_OF.format(changes=changes)) + _log(changes, operation)


# A new version for every change of the postings that searches use: those of the active tokenizer. A cascade from chunks
# deletes postings one statement a row, when the chunk is gone and its own trigger has taken the version already: such rows
# are passed over.
_NEW_ACTIVE, _OLD_ACTIVE = _of_rows(_ACTIVE_ROWS)
POSTINGS_TRIGGERS = [
    *statement_triggers(
        "version",
        insert=_logged(_NEW_ACTIVE, "write"),
        update=_logged(f"{_OLD_ACTIVE} UNION {_NEW_ACTIVE}", "write"),
        delete=_logged(_OLD_ACTIVE + _WITH_CHUNK, "delete"),
    ),
    *_store_triggers(insert=_POSTINGS, update=_POSTINGS),
]

# A new content version for every change of the vectors that searches use: those of the knowledge base's model. Not for those
# that go with their chunk, which has moved on, and not for those of a model that is on its way or kept for a return: while
# they are made or dropped, responses stay as they are. Stores take in vectors of any model: one that is on its way is there
# when searches change over to it.
_NEW_SEARCHED, _OLD_SEARCHED = _of_rows(_SEARCHED_ROWS)
_NEW_VECTORS, _OLD_VECTORS = _of_rows("SELECT DISTINCT knowledge_base_id, chunk_id, model FROM {rows}")
EMBEDDING_TRIGGERS = [
    *_content_triggers(
        insert=_NEW_SEARCHED, update=f"{_OLD_SEARCHED} UNION {_NEW_SEARCHED}", delete=_OLD_SEARCHED + _WITH_CHUNK
    ),
    # Vectors of a chunk that is gone have gone with it, one statement a chunk, and its own trigger has noted it.
    *_store_triggers(
        insert=_NEW_VECTORS, update=f"{_OLD_VECTORS} UNION {_NEW_VECTORS}", delete=f"{_OLD_VECTORS} r{_WITH_CHUNK}"
    ),
]

# A new content version for every change of rows that belong to a knowledge base.
CONTENT_TRIGGERS = _content_triggers(insert=_NEW, update=f"{_OLD} UNION {_NEW}", delete=_OLD)

# For what queries read of a web source, and not for its runs.
LIVE_SOURCE_TRIGGERS = _content_triggers(
    insert=f"{_NEW} WHERE live",
    update=_CHANGED.format(
        kb="knowledge_base_id",
        columns="knowledge_base_id, id, name, kind, url, enabled, paused, live, include, exclude, max_pages",
    ),
    delete=f"{_OLD} WHERE live",
)

# Not where only the chunk that a fact was taken from has gone: its own trigger knows.
_SHOWN_OF_FACT = "knowledge_base_id, id, subject, predicate, object, subject_key, object_key"
FACT_TRIGGERS = _content_triggers(
    insert=_NEW,
    update=f"{_CHANGED.format(kb='knowledge_base_id', columns=_SHOWN_OF_FACT)} UNION {_SOURCED}",
    delete=_OLD,
)

# A chat model's fact goes with the last of its sources, and tells another of them when one goes.
FACT_SOURCE_TRIGGERS = statement_triggers(
    "fact_sources",
    delete="""
    DELETE FROM kb_graphfact f WHERE f.origin = 'llm' AND f.id IN (SELECT fact_id FROM old_rows)
        AND NOT EXISTS (SELECT 1 FROM kb_factsource s WHERE s.fact_id = f.id);
    UPDATE kb_graphfact f SET source_chunk_id = other.chunk_id
        FROM (SELECT DISTINCT ON (s.fact_id) s.fact_id, s.chunk_id FROM kb_factsource s
              WHERE s.fact_id IN (SELECT fact_id FROM old_rows) AND s.chunk_id IS NOT NULL
              ORDER BY s.fact_id, s.id) other
        WHERE f.id = other.fact_id AND f.origin = 'llm' AND NOT EXISTS
            (SELECT 1 FROM kb_factsource s WHERE s.fact_id = f.id AND s.chunk_id = f.source_chunk_id);
    """,
)

# For what results show and filters read of a document, and not for its progress.
DOCUMENT_TRIGGERS = _content_triggers(
    update=_CHANGED.format(
        kb="knowledge_base_id",
        columns="knowledge_base_id, id, title, source, source_type, metadata, tags, folder_id, created_at",
    )
)

# For moving a folder, which filters by the folders around it read. One that is deleted changes its documents.
FOLDER_TRIGGERS = _content_triggers(
    update=_CHANGED.format(kb="knowledge_base_id", columns="knowledge_base_id, id, parent_id")
)

# For giving a document concepts or taking them.
_NEW_CONCEPTS, _OLD_CONCEPTS = _of_rows(
    "SELECT d.knowledge_base_id FROM {rows} r JOIN kb_document d ON d.id = r.document_id"
)
DOCUMENT_CONCEPT_TRIGGERS = _content_triggers(
    insert=_NEW_CONCEPTS, update=f"{_OLD_CONCEPTS} UNION {_NEW_CONCEPTS}", delete=_OLD_CONCEPTS
)

# Every knowledge base has its version row from its first moment; another tokenizer ends the change log. What a response can
# show of it takes a new content version. It holds the tokenizer too, and its trigger runs first, by name: it locks at least
# the rows that the other one locks, so that both lock them in order. The copies of a knowledge base that is gone are to go
# too, and those of its texts follow its language.
KNOWLEDGE_BASE_TRIGGERS = [
    statement_trigger(
        "version_row",
        pgtrigger.Insert,
        "INSERT INTO kb_versions (knowledge_base_id, version, content_version)"
        " SELECT id, nextval('kb_version_seq'), nextval('kb_version_seq') FROM new_rows; RETURN NULL;",
    ),
    *_content_triggers(update=_CHANGED.format(kb="id", columns=_SHOWN_OF_KNOWLEDGE_BASE)),
    statement_trigger(
        "tokenizer_swap",
        pgtrigger.Update,
        _TAKE_VERSION.format(affected=_SWAPPED) + _END_LOG.format(affected=_SWAPPED) + " RETURN NULL;",
    ),
    *statement_triggers("store", update=_OTHER_LANGUAGE, delete=_GONE),
]
