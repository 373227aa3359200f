"""Reads documents for the graph: what a language model finds in their passages becomes facts, entities and concepts.

A document is searched without its graph; how far that is, a `GraphExtraction` says. What was found before goes once the
passages that it was found in are read anew; what was made by hand or imported stays.
"""

import logging
import time
from collections.abc import Sequence

from django.conf import settings
from django.db import transaction

from kb.base.db.row_locks import lock_knowledge_bases
from kb.content.models.documents import Document
from kb.graph.models import GraphReading
from kb.graph.services.answers import Found
from kb.graph.services.concepts import CONCEPT_CHARACTERS, assign_concepts, known_concepts
from kb.graph.services.passages import passage_of, readable_chunks
from kb.graph.services.prompts import VERSION
from kb.graph.services.reader import GraphReader, Passage
from kb.graph.services.requests import LeaseLost, ReadingJob
from kb.graph.services.writing import write_found
from kb.providers.loaded import generator
from retrieval.errors import GenerationFailed
from retrieval.messages import Message, gettext_noop, message_of

logger = logging.getLogger(__name__)

SECONDS_A_TASK = 1_200
FIRST_PASSAGES, HEADED_CHUNKS = 8, 200
NOT_CONFIGURED = (
    "llm_not_configured",
    Message(
        gettext_noop(
            "no language model is set up: set LLM_BASE_URL (for example https://api.deepseek.com/v1), LLM_MODEL and LLM_API_KEY"
        )
    ),
)


def extract_document(document_id: int) -> bool:
    """Reads a document that was asked for.

    Returns:
        Whether there is more of it to read, in another task.
    """
    job = ReadingJob.claim(document_id)
    if job is None:
        return False
    try:
        return _extract(job)
    except LeaseLost:
        logger.info("document %s was asked for anew while it was read for the graph", document_id)
    return False


def _extract(job: ReadingJob) -> bool:
    model = generator()
    if model is None:
        job.fail(*NOT_CONFIGURED)
        return False
    kb = job.document.knowledge_base
    reader = GraphReader(
        model, kb.language, timeout_s=settings.LLM_SECONDS, concurrency=max(1, settings.GRAPH_LLM_CONCURRENCY)
    )
    reading = _Reading(job, reader)
    try:
        is_complete = reading.read_passages()
        if is_complete:
            reading.read_concepts()
    except GenerationFailed as error:
        reading.write()
        job.fail(error.code.value, message_of(error))
        return False
    if not is_complete:
        job.go_on_later()
        return True
    reading.finish()
    return False


class _Reading:
    """One document's passages and what was found in them so far."""

    def __init__(self, job: ReadingJob, reader: GraphReader) -> None:
        self._job, self._reader, self._document = job, reader, job.document
        chunks = readable_chunks(self._document)
        passages = [passage_of(self._document, chunk) for chunk in chunks]
        self._headings = dict.fromkeys(" > ".join(chunk.heading_path) for chunk in chunks[:HEADED_CHUNKS])
        self._passages = {passage.content_hash: passage for passage in passages}
        most = settings.GRAPH_LLM_MAX_CHUNKS
        self._wanted = list(self._passages.values())[:most]
        self._counts = {"chunk_count": len(chunks), "skipped_count": max(0, len(self._passages) - most)}
        self._found = _stored(self._document, [passage.content_hash for passage in self._wanted])
        self._unusable = 0
        self._has_news = True

    def read_passages(self) -> bool:
        """Reads what was not read before, and keeps it as it comes; False where the time for one task is over."""
        until = time.monotonic() + SECONDS_A_TASK
        left = [passage for passage in self._wanted if passage.content_hash not in self._found]
        self._has_news = bool(left) or self._job.extraction.finished_at is None
        self._report()
        size = self._reader.concurrency * 4
        for start in range(0, len(left), size):
            if time.monotonic() > until:
                return False
            for passage, found in self._reader.read(left[start : start + size]):
                self._keep(passage, found)
                self._report()
        return True

    def read_concepts(self) -> None:
        """Has the document classified, unless it says what it said when that was done."""
        if not self._has_news:
            return
        texts = "\n".join(passage.text for passage in self._wanted[:FIRST_PASSAGES])
        beginning = "\n".join([str(self._document), *self._headings, texts])[:CONCEPT_CHARACTERS]
        found = self._reader.concepts(known_concepts(self._document.knowledge_base_id), beginning)
        if found is None:
            self._unusable += 1
            return
        with transaction.atomic():
            lock_knowledge_bases([self._document.knowledge_base_id])
            assigned = assign_concepts(self._document, found, self._job.extraction.concept_ids)
            self._job.report(concept_ids=assigned)

    def write(self) -> None:
        """Puts what was found so far into the graph; what is known of passages that were not read stays."""
        with transaction.atomic():
            lock_knowledge_bases([self._document.knowledge_base_id])
            self._job.report(**self._numbers(), fact_count=write_found(self._document, self._found))

    def finish(self) -> None:
        with transaction.atomic():
            self.write()
            GraphReading.objects.filter(document=self._document).exclude(content_hash__in=list(self._found)).delete()
            self._job.finish()

    def _keep(self, passage: Passage, found: Found | None) -> None:
        if found is None:
            self._unusable += 1
            return
        self._found[passage.content_hash] = found
        row = GraphReading(
            document=self._document, content_hash=passage.content_hash, version=VERSION, found=found.as_json()
        )
        GraphReading.objects.bulk_create(
            [row],
            update_conflicts=True,
            unique_fields=["document", "content_hash"],
            update_fields=["version", "found"],
        )

    def _report(self) -> None:
        self._job.report(**self._numbers())

    def _numbers(self) -> dict[str, int]:
        return {
            **self._counts,
            "read_count": len(self._found),
            "unusable_count": self._unusable,
            "refused_count": sum(found.refused for found in self._found.values()),
        }


def _stored(document: Document, hashes: Sequence[str]) -> dict[str, Found]:
    rows = GraphReading.objects.filter(document=document, version=VERSION, content_hash__in=hashes)
    return {row.content_hash: Found.from_json(row.found) for row in rows}
