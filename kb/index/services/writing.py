"""How chunks and what is derived from them are written: every writer locks the knowledge base first, so none deadlocks."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import OuterRef, QuerySet, Subquery

from kb.access.models import KnowledgeBase
from kb.base.errors import Superseded
from kb.content.models import Chunk
from kb.index.keywords import Extraction, Source, loaded_generator
from kb.index.preparing import Prepared, prepare
from kb.providers.embedding_models import embedder
from kb.providers.tokenizers import load_tokenizer, tokenizer
from retrieval.keywords import Method
from retrieval.protocols import Tokenizer
from retrieval.rerankers.overlap import searchable_text

T = TypeVar("T")


def tokenizers_of(kb: KnowledgeBase) -> list[Tokenizer]:
    """Those that chunks are written with: the active one and, while the knowledge base moves to another, that one too.

    Empty where the packages of keyword search are missing altogether.

    Raises:
        DependencyMissing: only a package that this knowledge base's settings ask for is missing.
    """
    if tokenizer() is None:
        return []
    active = load_tokenizer(kb.tokenizer_id)
    target = tokenizer(kb.target_tokenizer_id) if kb.target_tokenizer_id else None
    return list({cutter.id: cutter for cutter in (active, target) if cutter is not None}.values())


def extraction_of(kb: KnowledgeBase) -> Extraction | None:
    """How the keywords and questions of its chunks are found; None where it has neither."""
    if not kb.keyword_vectors and not kb.ask_questions:
        return None
    method = KnowledgeBase.KeywordMethod(kb.keyword_method)
    by_model = method is KnowledgeBase.KeywordMethod.LLM
    return Extraction(
        language=kb.language,
        keywords=kb.keyword_vectors,
        method=Method.TFIDF if by_model else Method(method.value),
        by_model=by_model,
        questions=kb.ask_questions,
        reader=loaded_generator() if by_model or kb.ask_questions else None,
    )


def prepare_chunks(kb: KnowledgeBase, sources: Sequence[Source]) -> list[Prepared]:
    """What the indexes of a knowledge base hold of chunks.

    Raises:
        DependencyMissing: a package that its tokenizer's settings ask for is missing.
        ModelUnavailable: its model cannot be loaded or reached.
    """
    return prepare(
        sources,
        tokenizers=tokenizers_of(kb),
        embedder=embedder(kb.embedding_model),
        extraction=extraction_of(kb),
    )


@contextmanager
def holding_model(kb: KnowledgeBase) -> Iterator[frozenset[str]]:
    """A transaction in which the knowledge base keeps the embedding model and tokenizer it was read with.

    Yields:
        The ids of the tokenizers whose postings it has or is being given.

    Raises:
        Superseded: it has another one by now.
    """
    with transaction.atomic():
        row = KnowledgeBase.objects.select_for_update(no_key=True).filter(pk=kb.pk)
        fields = ("embedding_model", "tokenizer_id", "target_tokenizer_id")
        model, active, target = row.values_list(*fields).first() or ("", "", "")
        # A tokenizer that was the target when the knowledge base was read has its postings too.
        if model != kb.embedding_model or active not in (kb.tokenizer_id, kb.target_tokenizer_id):
            raise Superseded(f"knowledge base {kb.name!r} moved to another model or tokenizer: try again")
        yield frozenset((active, target))


@contextmanager
def writing_chunks(kb: KnowledgeBase) -> Iterator[None]:
    """As `holding_model`, and keeps what the chunks were written with.

    Chunks without postings are noted, so that the keyword channel says that it is behind.
    """
    fields: dict[str, Any] = {"dimension": embedder(kb.embedding_model).dimension}
    if not tokenizers_of(kb):
        fields["lacks_postings"] = True
    with holding_model(kb):
        yield
        KnowledgeBase.objects.filter(pk=kb.pk).update(**fields)


def unchanged(pairs: Iterable[tuple[Chunk, T]]) -> list[tuple[Chunk, T]]:
    """Locks chunks and leaves out those that have changed or gone since what stands beside them was derived from them.

    Belongs inside a transaction. The chunks returned are read again, with their present `enabled`.
    """
    pairs = list(pairs)
    rows = (
        Chunk.objects.select_for_update(of=("self",), no_key=True)
        .select_related("document")
        .filter(pk__in=[chunk.pk for chunk, _ in pairs])
        .order_by("pk")
    )
    current = {chunk.pk: chunk for chunk in rows}
    return [
        (current[chunk.pk], value)
        for chunk, value in pairs
        if chunk.pk in current and _origin(current[chunk.pk]) == _origin(chunk)
    ]


def _origin(chunk: Chunk) -> tuple[object, ...]:
    """What indexes are derived from."""
    return (
        chunk.text,
        chunk.document.title,
        chunk.heading_path,
        chunk.questions,
        chunk.keywords if chunk.own_keywords else None,
    )


BATCH = 256


def chunk_batches(
    kb: KnowledgeBase, *, after: int = 0, done: Callable[[Sequence[int]], Collection[int]] = lambda _: ()
) -> Iterator[list[Chunk]]:
    """Chunks by id with their documents.

    Args:
        kb: the knowledge base.
        after: id of the chunk to start behind.
        done: given the ids of a piece, those of them to leave out.
    """
    rows = Chunk.objects.filter(knowledge_base=kb).order_by("pk")
    while ids := list(rows.filter(pk__gt=after).values_list("pk", flat=True)[:BATCH]):
        after = ids[-1]
        if wanted := set(ids).difference(done(ids)):
            yield list(rows.filter(pk__in=wanted).select_related("document"))


def any_chunk_without(kb: KnowledgeBase, derived: QuerySet[Any]) -> bool:
    """Whether a chunk has none of some rows that are derived from chunks.

    Each chunk is looked up by itself: an anti-join on an id that the table's statistics do not know yet is planned for
    one row, and takes time with the square of the chunks.
    """
    own = Subquery(derived.filter(chunk=OuterRef("pk")).values("pk")[:1])
    return bool(Chunk.objects.filter(knowledge_base=kb).annotate(own=own).filter(own__isnull=True).exists())


def searchable_text_of(chunk: Chunk) -> str:
    """What both channels index of a chunk that was read with its document."""
    return searchable_text(chunk.document.title, chunk.heading_path, chunk.text)


def source_of(chunk: Chunk) -> Source:
    """What the indexes of a chunk that was read with its document are made of."""
    own = tuple(chunk.keywords) if chunk.own_keywords else None
    return Source(searchable_text_of(chunk), chunk.text, tuple(chunk.questions), own, chunk.own_questions)
