"""Importing these modules registers the pages of the admin."""

from kb.admin import accounts
from kb.admin.audit import entries
from kb.admin.content import batches, chunks, documents, knowledge_bases
from kb.admin.eval_runs import runs
from kb.admin.eval_sets import sets
from kb.admin.external_sources import providers
from kb.admin.failed_queries import queries
from kb.admin.graph import concepts, entities, extractions, facts
from kb.admin.search import log
from kb.admin.web_sources import sources

__all__ = [
    "accounts",
    "batches",
    "chunks",
    "concepts",
    "documents",
    "entities",
    "entries",
    "extractions",
    "facts",
    "knowledge_bases",
    "log",
    "providers",
    "queries",
    "runs",
    "sets",
    "sources",
]
