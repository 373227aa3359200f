"""Evaluation sets in BEIR layout: one passage is one document is one chunk, so that judgments fit exactly."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from django.db import transaction

from kb.ingest.chunk import hash_content
from kb.ingest.index import Source, write_chunks
from kb.models import Chunk, Document, EvalQuery, EvalSet, Judgment, KnowledgeBase
from kb.providers import embedder
from kb.services.writing import prepare_chunks, writing_chunks
from kb.stores.bm25 import BM25Store
from retrieval.eval.qrels import BeirPassage, iter_corpus, read_qrels, read_queries
from retrieval.searchable import searchable_text

BATCH = 256
TITLE_LENGTH = 500


@dataclass(frozen=True, slots=True)
class BeirImport:
    """What an import did: passages added, passages found there unchanged, queries and judgments of the set."""

    added: int
    unchanged: int
    queries: int = 0
    judgments: int = 0


def import_passages(
    knowledge_base: KnowledgeBase, directory: Path, on_progress: Callable[[int], None] = lambda _: None
) -> BeirImport:
    """Imports a corpus; passages that are there already are kept, changed ones replaced, so it can be run again.

    Args:
        knowledge_base: where to.
        directory: holds corpus.jsonl.
        on_progress: told how many further passages are done.

    Raises:
        BeirFormatError: the file is missing or a line of it is wrong; earlier batches stay imported.
        ModelUnavailable: the knowledge base's model cannot be loaded.
    """
    known = dict(Document.objects.filter(knowledge_base=knowledge_base).values_list("source", "sha256"))
    added = unchanged = 0
    for batch in _batches(iter_corpus(directory)):
        fresh = [passage for passage in batch if known.get(passage.id) != _digest(passage)]
        Document.objects.filter(
            knowledge_base=knowledge_base, source__in=[passage.id for passage in fresh if passage.id in known]
        ).delete()
        _write(knowledge_base, fresh)
        added, unchanged = added + len(fresh), unchanged + len(batch) - len(fresh)
        on_progress(len(batch))
    BM25Store().expire(knowledge_base.pk)
    return BeirImport(added, unchanged)


def import_eval_set(knowledge_base: KnowledgeBase, directory: Path, name: str) -> tuple[int, int]:
    """Imports queries and judgments, replacing a set of the same name.

    Returns:
        The number of queries and of judgments.

    Raises:
        BeirFormatError: a file is missing or a line of it is wrong; nothing was changed.
    """
    documents = dict(Document.objects.filter(knowledge_base=knowledge_base).values_list("source", "pk"))
    queries = read_queries(directory)
    qrels = read_qrels(directory, queries=queries, passage_ids=documents)
    with transaction.atomic():
        EvalSet.objects.filter(knowledge_base=knowledge_base, name=name).delete()
        eval_set = EvalSet.objects.create(knowledge_base=knowledge_base, name=name)
        rows = EvalQuery.objects.bulk_create(
            [
                EvalQuery(
                    eval_set=eval_set,
                    external_id=query_id,
                    text=query.text,
                    answerable=query_id in qrels if query.answerable is None else query.answerable,
                )
                for query_id, query in queries.items()
            ],
            batch_size=BATCH,
        )
        judgments = [
            Judgment(query=row, document_id=documents[passage_id], grade=grade)
            for row in rows
            for passage_id, grade in qrels.get(row.external_id, {}).items()
        ]
        Judgment.objects.bulk_create(judgments, batch_size=BATCH)
    return len(rows), len(judgments)


def _batches(passages: Iterable[BeirPassage]) -> Iterator[list[BeirPassage]]:
    iterator = iter(passages)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def _digest(passage: BeirPassage) -> str:
    return hashlib.sha256("\0".join((passage.id, passage.title, passage.text)).encode()).hexdigest()


def _write(kb: KnowledgeBase, passages: list[BeirPassage]) -> None:
    if not passages:
        return
    model = embedder(kb.embedding_model)
    texts = [searchable_text(passage.title, (), passage.text) for passage in passages]
    sources = [Source(text, passage.text) for text, passage in zip(texts, passages, strict=True)]
    prepared = prepare_chunks(kb, sources)
    counts = [model.count_tokens(text) for text in texts]
    with writing_chunks(kb):
        documents = Document.objects.bulk_create([_document(kb, passage) for passage in passages])
        chunks = [
            Chunk(
                knowledge_base=kb,
                document=document,
                position=0,
                text=passage.text or passage.title,
                content_hash=hash_content(passage.text or passage.title),
                token_count=count,
            )
            for document, passage, count in zip(documents, passages, counts, strict=True)
        ]
        write_chunks(chunks, prepared, model_id=model.model_id)


def _document(kb: KnowledgeBase, passage: BeirPassage) -> Document:
    return Document(
        knowledge_base=kb,
        title=passage.title[:TITLE_LENGTH],
        source=passage.id,
        mime="text/plain",
        size=len(passage.text.encode()),
        sha256=_digest(passage),
        status=Document.Status.READY,
        progress=100,
    )
