"""Importing these modules registers the pages of the admin and the parts that features add to each other's pages."""
# ruff: noqa: F401

import kb.answers.admin
import kb.content.admin
import kb.graph.admin.entities
import kb.graph.admin.rows
import kb.index.admin
import kb.ingest.admin.batches
import kb.ingest.admin.chunks
import kb.ingest.admin.documents
import kb.ingest.admin.knowledge_bases
import kb.operations.admin.accounts
import kb.operations.admin.audit
import kb.quality.calibration.admin
import kb.quality.compare.admin.page
import kb.quality.debug.admin.debug
import kb.quality.debug.admin.judge
import kb.quality.eval_sets.admin
import kb.quality.failed_queries.admin
import kb.quality.fitting.admin
import kb.quality.profiles.admin.pages
import kb.quality.runs.admin.runs
import kb.quality.why_not.admin
import kb.sources.admin.external
import kb.sources.admin.sources
