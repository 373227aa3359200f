"""How chunks and what is derived from them are written: every writer locks the knowledge base first, so none deadlocks."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

import numpy as np
from django.db import connection, models, transaction
from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.expressions import DatabaseDefault
from numpy.typing import NDArray
from pgvector import HalfVector

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import vector_text
from kb.base.errors import Superseded
from kb.content.models import Chunk
from kb.index.keywords import Extraction, Source, find_terms
from kb.index.models import NGRAM_PREFIX, ChunkEmbedding, ChunkPostings, LexemesField, quoted_lexeme, storable_lexemes
from kb.providers.embedding_models import embedder, generator, load_tokenizer, tokenizer
from kb.providers.usage.counting import counted_for
from retrieval.keywords import Method
from retrieval.postings import Postings, count_postings, ngrams
from retrieval.protocols import Embedder, Tokenizer
from retrieval.types import searchable_text

T = TypeVar("T")
Row = TypeVar("Row", bound=models.Model)


def copy_rows(model: type[Row], rows: Sequence[Row], texts: Mapping[str, Callable[[Any], str]] | None = None) -> None:
    """Inserts unsaved rows and gives them their ids; triggers fire as for one INSERT. Belongs inside a transaction.

    No signal is sent. `texts` writes the values of some columns as text; the others are written as Django does.
    """
    if not rows:
        return
    fields = [
        field
        for field in model._meta.concrete_fields
        if not isinstance(getattr(rows[0], field.attname), DatabaseDefault)
    ]
    quote = connection.ops.quote_name
    table, columns = quote(model._meta.db_table), ", ".join(quote(str(field.column)) for field in fields)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)",
            [table, model._meta.pk.column, len(rows)],
        )
        for row, (pk,) in zip(rows, cursor.fetchall(), strict=True):
            row.pk = pk
        with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row([_value(field, row, texts or {}) for field in fields])
    for row in rows:
        row._state.adding, row._state.db = False, connection.alias


def _value(field: "models.Field[Any, Any]", row: models.Model, texts: Mapping[str, Callable[[Any], str]]) -> Any:
    value = field.pre_save(row, add=True)
    if field.name in texts:
        return texts[field.name](value)
    if isinstance(field, LexemesField):
        return " ".join(map(quoted_lexeme, storable_lexemes(value)))  # the text of a tsvector
    return field.get_db_prep_save(value, connection=connection)


EMBED_BATCH = 64
ROWS_A_STATEMENT = 500


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the indexes hold of a chunk; each vector is of shape (dimension,).

    Attributes:
        postings: by tokenizer id; empty where the tokenizer's packages are missing.
        keywords: empty where the knowledge base has no vectors of keywords.
        questions: which it answers; None: those that it has.
        problem: why a chat model did not find what was wanted of it; blank: it did.
    """

    postings: Mapping[str, Postings]
    vector: NDArray[np.float32]
    keywords: tuple[str, ...] = ()
    keyword_vector: NDArray[np.float32] | None = None
    question_vectors: tuple[NDArray[np.float32], ...] = ()
    questions: tuple[str, ...] | None = None
    problem: str = ""


def tokenize(
    texts: Sequence[str], tokenizers: Sequence[Tokenizer], questions: Sequence[Sequence[str]] | None = None
) -> list[dict[str, Postings]]:
    """The postings of each text, and of the questions that it answers if there are any, by tokenizer id.

    Their lexemes, for full-text search, are tokens first, then n-grams.
    """
    found: list[dict[str, Postings]] = []
    for text, asked in zip(texts, questions or [()] * len(texts), strict=True):
        grams = [NGRAM_PREFIX + gram for gram in ngrams(text)] if tokenizers else []
        found.append({})
        for cutter in tokenizers:
            tokens = cutter(text)
            found[-1][cutter.id] = replace(
                count_postings(tokens),
                lexemes=(*dict.fromkeys(tokens), *grams),
                questions=tuple(count_postings(cutter(question)).packed for question in asked),
            )
    return found


def prepare(
    sources: Sequence[Source],
    *,
    tokenizers: Sequence[Tokenizer],
    embedder: Embedder,
    extraction: Extraction | None = None,
    on_embedded: Callable[[float], None] = lambda _: None,
) -> list[Prepared]:
    """Runs tokenizers, what finds keywords and questions, and the model over chunks.

    Without an extraction none are looked for. `on_embedded` gets the share of the model's work that is done, from 0 to
    1.
    """
    terms = find_terms(sources, extraction, lambda: on_embedded(0.0))
    texts = [source.searchable for source in sources]
    postings = tokenize(texts, tokenizers, [each.questions for each in terms])
    texts += [" ".join(each.keywords) for each in terms if each.keywords]
    texts += [question for each in terms for question in each.questions]
    on_embedded(0.0)
    vectors = iter(embed(texts, embedder, lambda done: on_embedded(done / len(texts))))
    contents = [next(vectors) for _ in sources]
    of_keywords = [next(vectors) if each.keywords else None for each in terms]
    of_questions = [tuple(next(vectors) for _ in each.questions) for each in terms]
    return [
        Prepared(by_tokenizer, content, each.keywords, keyword_vector, question_vectors, each.questions, each.problem)
        for by_tokenizer, content, each, keyword_vector, question_vectors in zip(
            postings, contents, terms, of_keywords, of_questions, strict=True
        )
    ]


def embed(
    texts: Sequence[str], embedder: Embedder, on_batch: Callable[[int], None] = lambda _: None
) -> NDArray[np.float32]:
    """Embeds in batches, shape (len(texts), dimension); `on_batch` gets how many texts are done."""
    batches = []
    for start in range(0, len(texts), EMBED_BATCH):
        batches.append(embedder.embed_documents(texts[start : start + EMBED_BATCH]))
        on_batch(min(start + EMBED_BATCH, len(texts)))
    return np.concatenate(batches) if batches else np.empty((0, embedder.dimension), dtype=np.float32)


def write_chunks(chunks: Sequence[Chunk], prepared: Sequence[Prepared], *, model_id: str) -> None:
    pairs = list(zip(chunks, prepared, strict=True))
    for chunk, each in pairs:
        _give_terms(chunk, each)
    copy_rows(Chunk, chunks)
    copy_rows(ChunkPostings, _postings_rows((chunk, each.postings) for chunk, each in pairs))
    vectors = [row for kind, of_kind in _by_kind(pairs) for row in _vector_rows(of_kind, model_id, kind)]
    copy_rows(ChunkEmbedding, vectors, {"vector": lambda vector: vector_text(vector.to_numpy())})


def rewrite_chunks(pairs: Sequence[tuple[Chunk, Prepared]], *, model_id: str) -> None:
    """Writes the terms, postings and vectors of chunks that have changed; belongs inside the caller's transaction.

    Those of other tokenizers and models go, since they are of what a chunk was before: whoever needs them makes them again.
    """
    chunk_ids = [chunk.pk for chunk, _ in pairs]
    current = {tokenizer_id for _, each in pairs for tokenizer_id in each.postings}
    ChunkPostings.objects.filter(chunk__in=chunk_ids).exclude(tokenizer_id__in=current).delete()
    ChunkEmbedding.objects.filter(chunk__in=chunk_ids).exclude(model=model_id).delete()
    rebuild_vectors(pairs, model_id)
    write_postings((chunk, each.postings) for chunk, each in pairs)


def rebuild_vectors(pairs: Sequence[tuple[Chunk, Prepared]], model_id: str) -> None:
    """Writes the terms of unchanged chunks and their vectors of one model; those of other models stay."""
    former = {chunk.pk: chunk.questions for chunk, _ in pairs}
    renewed = [chunk for chunk, prepared in pairs if _give_terms(chunk, prepared)]
    Chunk.objects.bulk_update(renewed, ["keywords", "questions"], batch_size=ROWS_A_STATEMENT)
    with_others = [chunk.pk for chunk in renewed if chunk.questions != former[chunk.pk]]
    write_questions(ChunkPostings.objects.filter(chunk__in=with_others))
    add_vectors(pairs, model_id)


def add_vectors(pairs: Sequence[tuple[Chunk, Prepared]], model_id: str) -> None:
    """Writes the vectors of one model beside those of others, and nothing else of the chunks."""
    ChunkEmbedding.objects.filter(chunk__in=[chunk.pk for chunk, _ in pairs], model=model_id).exclude(
        kind=ChunkEmbedding.Kind.CONTENT
    ).delete()
    for kind, of_kind in _by_kind(pairs):
        write_vectors(of_kind, model_id, kind)


def _give_terms(chunk: Chunk, prepared: Prepared) -> bool:
    """Whether the chunk has other keywords or questions than before."""
    former = chunk.keywords, chunk.questions
    chunk.keywords = list(prepared.keywords)
    if prepared.questions is not None:
        chunk.questions = list(prepared.questions)
    return former != (chunk.keywords, chunk.questions)


def _by_kind(
    pairs: Sequence[tuple[Chunk, Prepared]],
) -> list[tuple[ChunkEmbedding.Kind, list[tuple[Chunk, NDArray[np.float32]]]]]:
    kind = ChunkEmbedding.Kind
    return [
        (kind.CONTENT, [(chunk, each.vector) for chunk, each in pairs]),
        (kind.KEYWORDS, [(chunk, each.keyword_vector) for chunk, each in pairs if each.keyword_vector is not None]),
        (kind.QUESTION, [(chunk, vector) for chunk, each in pairs for vector in each.question_vectors]),
    ]


def write_postings(pairs: Iterable[tuple[Chunk, Mapping[str, Postings]]]) -> None:
    """Inserts the postings of chunks, or replaces those that the same tokenizers made before."""
    ChunkPostings.objects.bulk_create(
        _postings_rows(pairs),
        batch_size=ROWS_A_STATEMENT,
        update_conflicts=True,
        unique_fields=["chunk", "tokenizer_id"],
        update_fields=["terms", "frequencies", "length", "lexemes", "questions"],
    )


def write_questions(rows: QuerySet[ChunkPostings]) -> None:
    """Writes the tokens of the questions that the chunks have now; none where a tokenizer's packages are missing."""
    found = list(rows.select_related("chunk").only("tokenizer_id", "chunk__questions"))
    for row in found:
        cutter = tokenizer(row.tokenizer_id)
        asked = [] if cutter is None else [count_postings(cutter(question)).packed for question in row.chunk.questions]
        row.questions = asked or None
    ChunkPostings.objects.bulk_update(found, ["questions"], batch_size=ROWS_A_STATEMENT)


def _postings_rows(pairs: Iterable[tuple[Chunk, Mapping[str, Postings]]]) -> list[ChunkPostings]:
    return [
        ChunkPostings(
            chunk=chunk,
            knowledge_base_id=chunk.knowledge_base_id,
            tokenizer_id=tokenizer_id,
            terms=postings.terms_bytes,
            frequencies=postings.frequencies_bytes,
            length=postings.length,
            lexemes=postings.lexemes,
            questions=list(postings.questions) or None,
        )
        for chunk, by_tokenizer in pairs
        for tokenizer_id, postings in by_tokenizer.items()
    ]


def write_vectors(
    pairs: Iterable[tuple[Chunk, NDArray[np.floating]]],
    model_id: str,
    kind: ChunkEmbedding.Kind = ChunkEmbedding.Kind.CONTENT,
) -> None:
    """Inserts vectors of chunks, or replaces those of the same model; several of one chunk are numbered in their order."""
    ChunkEmbedding.objects.bulk_create(
        _vector_rows(pairs, model_id, kind),
        batch_size=ROWS_A_STATEMENT,
        update_conflicts=True,
        unique_fields=["chunk", "kind", "model", "ordinal"],
        update_fields=["vector", "enabled"],
    )


def _vector_rows(
    pairs: Iterable[tuple[Chunk, NDArray[np.floating]]], model_id: str, kind: ChunkEmbedding.Kind
) -> list[ChunkEmbedding]:
    ordinals: dict[int, Iterator[int]] = defaultdict(count)
    return [
        ChunkEmbedding(
            chunk=chunk,
            knowledge_base_id=chunk.knowledge_base_id,
            kind=kind,
            ordinal=next(ordinals[chunk.pk]),
            model=model_id,
            vector=HalfVector(vector),
            enabled=chunk.enabled,
        )
        for chunk, vector in pairs
    ]


def tokenizers_of(kb: KnowledgeBase) -> list[Tokenizer]:
    """Those that chunks are written with: the active one and, while the knowledge base moves to another, that one too.

    Empty where the packages of keyword search are missing altogether; DependencyMissing where only one that this
    knowledge base's settings ask for is.
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
    by_model = kb.keyword_method == KnowledgeBase.KeywordMethod.LLM
    if reader := generator() if by_model or kb.ask_questions else None:
        reader.load()  # so that the first chunk does not wait for it
    return Extraction(
        language=kb.language,
        keywords=kb.keyword_vectors,
        method=Method.TFIDF if by_model else Method(kb.keyword_method),
        by_model=by_model,
        questions=kb.ask_questions,
        reader=reader,
    )


def prepare_chunks(kb: KnowledgeBase, sources: Sequence[Source]) -> list[Prepared]:
    """What the indexes of a knowledge base hold of chunks.

    Raises DependencyMissing as `tokenizers_of`, and ModelUnavailable where its model cannot be loaded or reached.
    """
    with counted_for(kb.pk):
        return prepare(
            sources, tokenizers=tokenizers_of(kb), embedder=embedder(kb.embedding_model), extraction=extraction_of(kb)
        )


@contextmanager
def holding_model(kb: KnowledgeBase) -> Iterator[frozenset[str]]:
    """A transaction in which the knowledge base keeps the model and tokenizer that it was read with, else Superseded.

    Yields the ids of the tokenizers whose postings it has or is being given.
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
    """As `holding_model`, and keeps what the chunks were written with, also that they have no postings."""
    dimension = embedder(kb.embedding_model).dimension
    lacking = {} if tokenizers_of(kb) else {"lacks_postings": True}
    with holding_model(kb):
        yield
        KnowledgeBase.objects.filter(pk=kb.pk).update(dimension=dimension, **lacking)


def unchanged(pairs: Iterable[tuple[Chunk, T]]) -> list[tuple[Chunk, T]]:
    """Locks chunks and leaves out those that have changed or gone since what stands beside them was derived from them.

    Belongs inside a transaction. The chunks returned are read again, with their present `enabled`.
    """
    pairs = list(pairs)
    rows = Chunk.objects.select_for_update(of=("self",), no_key=True).select_related("document").order_by("pk")
    current = {chunk.pk: chunk for chunk in rows.filter(pk__in=[chunk.pk for chunk, _ in pairs])}
    return [
        (current[chunk.pk], value)
        for chunk, value in pairs
        if chunk.pk in current and _origin(current[chunk.pk]) == _origin(chunk)
    ]


def _origin(chunk: Chunk) -> tuple[object, ...]:
    keywords = chunk.keywords if chunk.own_keywords else None
    return chunk.text, chunk.document.title, chunk.heading_path, chunk.questions, keywords


BATCH = 256


def chunk_batches(
    kb: KnowledgeBase, *, after: int = 0, done: Callable[[Sequence[int]], Collection[int]] = lambda _: ()
) -> Iterator[list[Chunk]]:
    """Chunks by id, with their documents, behind the id `after`; `done` says which of the ids of a piece to leave out."""
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
