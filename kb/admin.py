"""Importing these modules registers the pages of the admin."""

from kb.graph.admin import concepts, entities, extractions, facts
from kb.ingest.admin import batches, chunks, documents, knowledge_bases
from kb.operations.admin import accounts
from kb.operations.admin.audit import entries
from kb.quality.debug.admin import log
from kb.quality.eval_sets.admin import sets
from kb.quality.failed_queries.admin import queries
from kb.quality.runs.admin import runs
from kb.sources.external.admin import providers
from kb.sources.web.admin import sources

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
