from kb.admin import (
    accounts,
    chunks,
    concepts,
    documents,
    eval_runs,
    eval_sets,
    facts,
    failed_queries,
    knowledge_bases,
    search_log,
    web_sources,
)

__all__ = [
    "accounts",
    "chunks",
    "concepts",
    "documents",
    "eval_runs",
    "eval_sets",
    "facts",
    "failed_queries",
    "knowledge_bases",
    "search_log",
    "web_sources",
]
