"""What every parameter, field and address means: which kind of id it takes, or why it takes none.

Nothing is guessed: what is not named here fails the tests, so that a new route is thought about.
"""

FIRST_PART = {
    "audit": "audit_entry",
    "batches": "batch",
    "chunks": "chunk",
    "conversations": "conversation",
    "documents": "document",
    "folders": "folder",
    "concepts": "concept",
    "entities": "entity",
    "facts": "fact",
    "invitations": "invitation",
    "eval-runs": "run",
    "eval-sets": "eval_set",
    "knowledge-bases": "kb",
    "pictures": "picture",
    "sources": "source",
}
"""What `pk` is in an address of the API, by its first part."""
PATH = {
    "group_id": "group",
    "judgment_id": "judgment",
    "kb_id": "kb",
    "name": "profile_name",
    "other": "other_run",
    "page": "number_one",
    "prefix": "key_prefix",
    "query_id": "eval_query",
    "source_id": "external",
    "trace_id": "trace",
    "user_id": "member",
    "version": "number_one",
}
QUERY = {
    "against": "profile_name",
    "batch_id": "batch",
    "document_id": "document",
    "entity_id": "entity",
    "eval_set_id": "eval_set",
    "folder_id": "folder",
    "knowledge_base_id": "kb",
    "object_id": "document",
    "parent_id": "concept",
    "query_id": "eval_query",
}
BODY = {
    "a.profile": "profile_name",
    "b.profile": "profile_name",
    "chunk_id": "chunk",
    "chunk_ids": ["chunk", "chunk2"],
    "conversation_id": "conversation",
    "document_id": "document",
    "entity_id": "entity",
    "eval_set_id": "eval_set",
    "folder_id": "folder",
    "filters.concepts": ["concept"],
    "filters.document_ids": ["document"],
    "filters.folder_ids": ["folder"],
    "filters.tags": ["tag"],
    "ids": ["chunk"],
    "knowledge_base_id": "kb",
    "knowledge_base_ids": ["kb"],
    "parent_id": "concept",
    "profile": "profile_name",
}
"""Fields of bodies; in a list every place is tried."""

NO_ID = frozenset(
    # Integers and choices of everyone's.
    {
        "a.top_k",
        "b.top_k",
        "top_k",
        "limit",
        "page",
        "page_size",
        "count",
        "days",
        "latency_budget_ms",
        "grade",
        "value",
    }
    | {"chunk_size", "chunk_overlap", "parent_size", "every_minutes", "max_pages", "max_depth", "timeout_ms", "at"}
    | {"profile_version", "a.profile_version", "b.profile_version", "keep_documents", "folds"}
    | {"accept", "files[].size", "max_share", "width"}
)
"""Integers in query strings and bodies that are numbers, not ids; versions stand beside the name of their profile."""
