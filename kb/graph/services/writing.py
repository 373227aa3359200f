"""Reads documents for the graph: what a chat model finds in their passages becomes facts, entities and concepts.

A document is searched without its graph; how far that is, a `GraphExtraction` says. What was found before is deleted once the
passages that it was found in are read again; what was made by hand or imported stays.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Count, F, Q, QuerySet
from django.utils import timezone
from msgspec import convert, to_builtins

from kb.base.db.transactions import holding_knowledge_bases
from kb.base.text import normalized_key
from kb.content.models import Document
from kb.graph.models import (
    Concept,
    ConceptTerm,
    Entity,
    EntityName,
    FactSource,
    GraphExtraction,
    GraphFact,
    GraphReading,
    Origin,
)
from kb.graph.services.entities import (
    BATCH,
    MAX_ALIASES,
    by_entities,
    fact_counts,
    give_source_chunks,
    rewrite_facts,
    write_facts,
)
from kb.graph.services.reader import (
    VERSION,
    Found,
    FoundConcept,
    FoundEntity,
    GraphReader,
    passage_of,
    readable_chunks,
)
from kb.jobs.leases import TASK_AWAITED, Job, LeaseLost, Queue, after
from kb.providers.embedding_models import generator
from kb.providers.usage.counting import counted_for
from retrieval.errors import GenerationFailed, Message, gettext_noop, message_of
from retrieval.generation import OpenAIGenerator


def write_found(document: Document, found: Mapping[str, Found]) -> int:
    """Writes what the passages say in place of what they said; returns how many facts the document states then.

    `found` is by the hashes of passages; what those said that are not in it stays. Belongs inside a transaction that
    holds the knowledge base.
    """
    kb_id = document.knowledge_base_id
    digests = {chunk.pk: passage_of(document, chunk).content_hash for chunk in readable_chunks(document)}
    read = {chunk_id: found[digest] for chunk_id, digest in digests.items() if digest in found}
    _write_entities(kb_id, [entity for each in found.values() for entity in each.entities])
    stated = [(triple, chunk_id) for chunk_id, each in read.items() for triple in each.facts]
    triples = by_entities(kb_id, [triple for triple, _chunk_id in stated])
    # Two names of one entity may stand in one fact, which then says nothing.
    said = [
        (triple, chunk_id)
        for triple, (_stated, chunk_id) in zip(triples, stated, strict=True)
        if triple.identity[0] != triple.identity[2]
    ]
    ids = write_facts(kb_id, [triple for triple, _chunk_id in said], Origin.LLM)
    wanted = {(ids[triple.identity], chunk_id) for triple, chunk_id in said if triple.identity in ids}
    _write_sources(document, wanted, stale=set(digests) - set(read))
    return FactSource.objects.filter(document=document).values("fact").distinct().count()


def _write_sources(document: Document, wanted: set[tuple[int, int]], stale: set[int]) -> None:
    """Sources, by the ids of fact and chunk, in place of those before; what nothing states any more is deleted.

    `stale` chunks were not read, so that what they state stays.
    """
    held = {(source.fact_id, source.chunk_id): source for source in FactSource.objects.filter(document=document)}
    gone = [source for key, source in held.items() if key not in wanted and key[1] not in stale]
    new = sorted(wanted - held.keys())
    FactSource.objects.bulk_create(
        [FactSource(fact_id=fact_id, document=document, chunk_id=chunk_id) for fact_id, chunk_id in new],
        batch_size=BATCH,
    )
    give_source_chunks(dict(reversed(new)), origin=Origin.LLM)
    losing = GraphFact.objects.filter(pk__in=[source.fact_id for source in gone])
    touched = {key for pair in losing.values_list("subject_key", "object_key") for key in pair}
    FactSource.objects.filter(pk__in=[source.pk for source in gone]).delete()
    named = Entity.objects.filter(knowledge_base=document.knowledge_base_id, origin=Origin.LLM, names__key__in=touched)
    ids = set(named.values_list("pk", flat=True))
    Entity.objects.filter(pk__in=ids - set(fact_counts(ids))).delete()


def _write_entities(kb_id: int, found: Sequence[FoundEntity]) -> None:
    """Entities that are not there yet; one that is known by its name or an alias is given what it lacks."""
    keys = {normalized_key(text) for each in found for text in (each.name, *each.aliases)}
    rows = EntityName.objects.filter(knowledge_base=kb_id, key__in=keys).select_related("entity")
    owners = {row.key: row.entity for row in rows}
    for each in found:
        texts = {normalized_key(text): text for text in (each.name, *each.aliases)}
        entity = next((owners[key] for key in texts if key in owners), None)
        if entity is None:
            entity = Entity.objects.create(knowledge_base_id=kb_id, name=each.name, kind=each.kind, origin=Origin.LLM)
        elif each.kind and not entity.kind:
            entity.kind = each.kind
            entity.save(update_fields=["kind"])
        if new := [key for key in texts if key not in owners]:
            new = new[: max(0, MAX_ALIASES + 1 - EntityName.objects.filter(entity=entity).count())]
        for key in new:
            EntityName(entity=entity, text=texts[key]).save()
            owners[key] = entity
        if new:
            rewrite_facts(kb_id, new, entity.name)


def assign_concepts(document: Document, found: Sequence[FoundConcept], before: Collection[int]) -> list[int]:
    """Gives a document its concepts in place of those it was given so `before`, and returns their ids.

    What a person has chosen stays. Belongs inside a transaction that holds the knowledge base.
    """
    wanted = _concept_ids(document.knowledge_base_id, found)
    held = set(document.concepts.values_list("pk", flat=True))
    document.concepts.remove(*(held & set(before)) - set(wanted))
    given = [pk for pk in wanted if pk not in held or pk in before]
    document.concepts.add(*given)
    return given


def _concept_ids(kb_id: int, found: Sequence[FoundConcept]) -> list[int]:
    """The ids of the concepts; those that are not there are made, as far as one document may."""
    names = {normalized_key(name) for each in found for name in (each.name, each.wider) if name}
    rows = ConceptTerm.objects.filter(knowledge_base=kb_id, key__in=names).order_by("-kind", "pk")
    known = {row.key: row.concept_id for row in rows}
    most = len(known) + 3
    for each in found:
        if normalized_key(each.name) not in known and len(known) < most:
            wider = known.get(normalized_key(each.wider)) if each.wider else None
            concept = Concept.objects.create(knowledge_base_id=kb_id, name=each.name, parent_id=wider)
            known[normalized_key(each.name)] = concept.pk
    keys = [normalized_key(each.name) for each in found]
    return list(dict.fromkeys(known[key] for key in keys if key in known))


MAX_ATTEMPTS = 8
FIRST_PAUSE, LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=6)
SWEEP_LIMIT = 200

Status = GraphExtraction.Status


EXTRACTIONS = Queue(
    GraphExtraction,
    waiting=Status.WAITING,
    running=Status.RUNNING,
    lasts=lambda: timedelta(minutes=10),
    until="due_at",
    related=("document__knowledge_base",),
    owner="document__knowledge_base__owner",
    key="document_id",
)


def graph_request(document: Document) -> GraphExtraction:
    """Asks for a document to be read; what a worker reads of it just now is read once more."""
    now = timezone.now()
    waiting = EXTRACTIONS.freed(Status.WAITING, until=now + TASK_AWAITED)
    fresh = {**waiting, "attempts": 0, "error_code": "", "error": "", "asked_at": now}
    return GraphExtraction.objects.update_or_create(document=document, defaults=fresh)[0]


def graph_request_if_wanted(document_id: int) -> bool:
    """Asks for a document that has become searchable, where its knowledge base has its documents read."""
    document = _unread().filter(pk=document_id).first()
    if document is None:
        return False
    graph_request(document)
    return True


def sweep_graph_requests() -> list[int]:
    """Asks for documents that were changed since they were read, and takes up what is due or was lost.

    Returns the ids of the documents that a task is to be sent for.
    """
    asked = list(_unread().order_by("pk")[:SWEEP_LIMIT])
    for document in asked:
        graph_request(document)
    lost = GraphExtraction.objects.filter(pk__in=EXTRACTIONS.sweep(limit=SWEEP_LIMIT))
    return [document.pk for document in asked] + list(lost.order_by("pk").values_list("document_id", flat=True))


def _fail(job: Job[GraphExtraction], code: str, message: str) -> None:
    """Plans another attempt, later each time; after the last one it is left to a curator."""
    attempts = job.row.attempts
    pause = min(FIRST_PAUSE * 2 ** (attempts - 1), LONGEST_PAUSE)
    status, until = (Status.FAILED, None) if attempts >= MAX_ATTEMPTS else (Status.WAITING, after(pause))
    job.leave(status, until=until, error_code=code, error=message)


def _unread() -> QuerySet[Document]:
    """Searchable documents that are to be read, and were not since they were changed."""
    changed = Q(updated_at__gt=F("graph_extraction__asked_at")) & ~Q(
        graph_extraction__status__in=(Status.WAITING, Status.RUNNING)
    )
    wanted = Document.objects.filter(knowledge_base__extract_graph=True, status=Document.Status.READY)
    return wanted.filter(Q(graph_extraction=None) | changed)


logger = logging.getLogger(__name__)

SECONDS_A_TASK = 1_200
FIRST_PASSAGES, HEADED_CHUNKS = 8, 200
NOT_CONFIGURED = (
    "llm_not_configured",
    Message(gettext_noop("no chat model is set up: add a chat model under System, Models")),
)
WORKER_LOST = (
    "worker_lost",
    Message(
        gettext_noop(
            "the worker stopped {count} times while it read this document, perhaps for want of memory: its log says why"
        ),
        count=MAX_ATTEMPTS,
    ),
)
INTERNAL_ERROR = (
    "internal_error",
    Message(gettext_noop("something unexpected went wrong: the worker’s log says what")),
)


def extract_document(document_id: int) -> bool:
    """Reads a document that was asked for; whether there is more of it to read, in another task."""
    job = EXTRACTIONS.claim(Q(document=document_id))
    if job is None:
        return False
    try:
        if job.row.attempts <= MAX_ATTEMPTS:
            with EXTRACTIONS.renewing(job.lease):
                return _extract(job)
        job.leave(Status.FAILED, error_code=WORKER_LOST[0], error=WORKER_LOST[1])
    except LeaseLost:
        logger.info("document %s was requested again while it was read for the graph", document_id)
    except Exception:
        logger.exception("document %s could not be read for the graph", document_id)
        with suppress(LeaseLost):
            _fail(job, *INTERNAL_ERROR)
    return False


def _extract(job: Job[GraphExtraction]) -> bool:
    model = generator()
    if model is None:
        _fail(job, *NOT_CONFIGURED)
        return False
    reading = _Reading(job, model)
    try:
        with counted_for(job.row.document.knowledge_base_id):
            is_complete = reading.read_passages()
            if is_complete:
                reading.read_concepts()
    except GenerationFailed as error:
        reading.write()
        _fail(job, error.code.value, message_of(error))
        return False
    if is_complete:
        reading.finish()
    else:
        job.wait(attempts=0)
    return not is_complete


class _Reading:
    """One document's passages and what was found in them so far."""

    def __init__(self, job: Job[GraphExtraction], model: OpenAIGenerator) -> None:
        self._job, self._document = job, job.row.document
        self._reader = GraphReader(
            model,
            self._document.knowledge_base.language,
            timeout_s=settings.LLM_SECONDS,
            concurrency=max(1, settings.GRAPH_LLM_CONCURRENCY),
        )
        chunks = readable_chunks(self._document)
        self._headings = dict.fromkeys(" > ".join(chunk.heading_path) for chunk in chunks[:HEADED_CHUNKS])
        passages = {each.content_hash: each for each in (passage_of(self._document, chunk) for chunk in chunks)}
        most = settings.GRAPH_LLM_MAX_CHUNKS
        self._wanted = list(passages.values())[:most]
        self._counts = {"chunk_count": len(chunks), "skipped_count": max(0, len(passages) - most)}
        hashes = [passage.content_hash for passage in self._wanted]
        stored = GraphReading.objects.filter(document=self._document, version=VERSION, content_hash__in=hashes)
        self._found = {row.content_hash: convert(row.found, Found) for row in stored}
        self._unusable = 0
        self._has_news = True

    def read_passages(self) -> bool:
        """Reads what was not read before, and keeps it as it comes; False where the time for one task is over."""
        until = time.monotonic() + SECONDS_A_TASK
        left = [passage for passage in self._wanted if passage.content_hash not in self._found]
        self._has_news = bool(left) or self._job.row.finished_at is None
        self._job.renew(**self._numbers())
        size = self._reader.concurrency * 4
        for start in range(0, len(left), size):
            if time.monotonic() > until:
                return False
            for passage, found in self._reader.read(left[start : start + size]):
                if found is None:
                    self._unusable += 1
                else:
                    self._found[passage.content_hash] = found
                    GraphReading.objects.update_or_create(
                        document=self._document,
                        content_hash=passage.content_hash,
                        defaults={"version": VERSION, "found": to_builtins(found)},
                    )
                self._job.renew(**self._numbers())
        return True

    def read_concepts(self) -> None:
        """Has the document classified, unless it says what it said when that was done."""
        if not self._has_news:
            return
        texts = "\n".join(passage.text for passage in self._wanted[:FIRST_PASSAGES])
        beginning = "\n".join([str(self._document), *self._headings, texts])[:6_000]
        known = Concept.objects.filter(knowledge_base=self._document.knowledge_base_id)
        names = known.annotate(uses=Count("documents")).order_by("-uses", "name").values_list("name", flat=True)
        found = self._reader.concepts(list(names[:200]), beginning)
        if found is None:
            self._unusable += 1
            return
        with holding_knowledge_bases([self._document.knowledge_base_id]):
            self._job.renew(concept_ids=assign_concepts(self._document, found, self._job.row.concept_ids))

    def write(self) -> None:
        """Puts what was found so far into the graph; what is known of passages that were not read stays."""
        with holding_knowledge_bases([self._document.knowledge_base_id]):
            self._job.renew(**self._numbers(), fact_count=write_found(self._document, self._found))

    def finish(self) -> None:
        with transaction.atomic():
            self.write()
            GraphReading.objects.filter(document=self._document).exclude(content_hash__in=list(self._found)).delete()
            self._job.leave(Status.DONE, attempts=0, error="", error_code="", finished_at=timezone.now())

    def _numbers(self) -> dict[str, int]:
        return {
            **self._counts,
            "read_count": len(self._found),
            "unusable_count": self._unusable,
            "refused_count": sum(found.refused for found in self._found.values()),
        }
