"""What other stores than PostgreSQL have to take in, noted by the database itself in the writing transaction.

Statement triggers, as those of the versions: bulk updates, cascades, raw SQL and other programs are covered too.
"""

import pgtrigger

from kb.base.db.triggers import statement_triggers

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
_SEARCHED = "id, knowledge_base_id, text, heading_path, enabled"
_CHANGED_CHUNKS = """
    SELECT knowledge_base_id, id AS chunk_id, '' AS model FROM
        (SELECT {columns} FROM new_rows EXCEPT SELECT {columns} FROM old_rows) n
    UNION
    SELECT knowledge_base_id, id, '' FROM
        (SELECT {columns} FROM old_rows EXCEPT SELECT {columns} FROM new_rows) o"""
# A title stands in the text that is indexed of a chunk: where it changes, the postings are made anew.
_POSTINGS = """
    SELECT DISTINCT r.knowledge_base_id, r.chunk_id, '' AS model FROM {rows} r
    JOIN kb_knowledgebase b ON b.id = r.knowledge_base_id AND b.tokenizer_id = r.tokenizer_id"""
_VECTORS = "SELECT DISTINCT knowledge_base_id, chunk_id, model FROM {rows}"
# Those of a chunk that is gone have gone with it, one statement a chunk, and its own trigger has noted it.
_OF_CHUNKS = " r WHERE EXISTS (SELECT 1 FROM kb_chunk c WHERE c.id = r.chunk_id)"
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


def chunk_store_triggers() -> list[pgtrigger.Trigger]:
    """New chunks and those that are gone, and changes of what a store holds of them."""
    return statement_triggers(
        "store",
        insert=_NOTE.format(changes=_CHUNKS.format(rows="new_rows")),
        update=_NOTE.format(changes=_CHANGED_CHUNKS.format(columns=_SEARCHED)),
        delete=_NOTE.format(changes=_CHUNKS.format(rows="old_rows")),
    )


def postings_store_triggers() -> list[pgtrigger.Trigger]:
    """The texts of chunks whose postings were made again by the tokenizer in use."""
    note = _NOTE.format(changes=_POSTINGS.format(rows="new_rows"))
    return statement_triggers("store", insert=note, update=note)


def embedding_store_triggers() -> list[pgtrigger.Trigger]:
    """Vectors of any model: one that is on its way is there when searches change over to it."""
    new, old = _VECTORS.format(rows="new_rows"), _VECTORS.format(rows="old_rows")
    return statement_triggers(
        "store",
        insert=_NOTE.format(changes=new),
        update=_NOTE.format(changes=f"{old} UNION {new}"),
        delete=_NOTE.format(changes=old + _OF_CHUNKS),
    )


def knowledge_base_store_triggers() -> list[pgtrigger.Trigger]:
    """The copies of a knowledge base that is gone are to go too, and those of its texts follow its language."""
    return statement_triggers("store", update=_OTHER_LANGUAGE, delete=_GONE)
