"""The second pass over an archive: its rows into the database, their references with them."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from kb.access.models import KnowledgeBase
from kb.content.models import Chunk, Document
from kb.graph.models import Concept
from kb.index.models import ChunkEmbedding
from kb.index.preparing import ROWS_A_STATEMENT, write_postings, write_vectors
from kb.operations.services.archives.checking import rows_of
from kb.operations.services.archives.format import VECTOR_KINDS, Table
from kb.operations.services.archives.reading import Archive, damaged
from kb.operations.services.archives.rows import Profiles, WrongRow
from kb.operations.services.archives.vectors import Staged, VectorsInOrder, in_pieces, numbered
from kb.profiles.models import RetrievalProfile
from kb.quality.models import Judgment
from kb.sources.models import WebSource
from retrieval.postings import Postings


class TableWriter:
    """Writes one table after the other; belongs inside the transaction that makes the knowledge base."""

    def __init__(
        self, archive: Archive, kb: KnowledgeBase, staged: Staged, files: dict[int, str], profiles: Profiles
    ) -> None:
        self._archive, self._kb, self._staged = archive, kb, staged
        self._files, self._profiles = files, profiles
        self._ids: dict[str, array[int]] = {}

    def write(self, table: Table, on_rows: Callable[[int], None]) -> None:
        """Writes the rows of a table, whose references must have been written.

        Raises:
            Rejected: a row is wrong after all.
        """
        ids: array[int] = array("q")
        wider: list[tuple[int, int]] = []

        def resolve(into: str, line: int) -> int:
            if into == table.name:
                return line  # of a row that may not be there yet
            if not 0 <= line < len(self._ids[into]):
                raise WrongRow(into)
            return self._ids[into][line]

        is_chunks = table.model is Chunk
        with self._chunk_indexes() if is_chunks else nullcontext() as indexes:
            for lines, rows in numbered(in_pieces(rows_of(self._archive, table, resolve, self._kb.pk))):
                if table.model is Concept:
                    # Takes the wider concepts, which may come later, out of rows; returns the lines of both
                    taken = [
                        (line, row.parent_id)
                        for line, row in zip(lines, rows, strict=True)
                        if row.parent_id is not None
                    ]
                    for row in rows:
                        row.parent_id = None
                    wider += taken
                ids.extend(self._created(table, lines, rows))
                if indexes is not None:
                    indexes.write(lines, rows)
                on_rows(len(rows))
        self._ids[table.name] = ids
        if not all(0 <= line < len(ids) for _narrow, line in wider):
            raise damaged("a concept has no such wider one")
        concepts = [Concept(pk=ids[narrow], parent_id=ids[line]) for narrow, line in wider]
        Concept.objects.bulk_update(concepts, ["parent"], batch_size=ROWS_A_STATEMENT)

    def _created(self, table: Table, lines: range, rows: Sequence[Any]) -> list[int]:
        """Inserts rows; returns their ids."""
        moments = [(row, row.created_at) for row in rows] if table.model is Document else []
        for line, row in zip(lines, rows, strict=True):
            if isinstance(row, RetrievalProfile):
                self._profiles.rename(row)
            if isinstance(row, RetrievalProfile | Document | Judgment | WebSource):
                row.created_by = self._kb.owner
            if isinstance(row, Document):
                row.file = self._files.get(line, "")
                row.keep_chunks = row.keep_chunks or not row.file
        table.model._default_manager.bulk_create(rows, batch_size=ROWS_A_STATEMENT)
        for row, created_at in moments:  # set to now by the field
            row.created_at = created_at
        if moments:
            Document.objects.bulk_update(rows, ["created_at"], batch_size=ROWS_A_STATEMENT)
        return [row.pk for row in rows]

    @contextmanager
    def _chunk_indexes(self) -> Iterator["_ChunkIndexes"]:
        with ExitStack() as stack:
            vectors = {kind: stack.enter_context(self._staged.vectors(self._archive, kind)) for kind in VECTOR_KINDS}
            postings = stack.enter_context(self._staged.postings())
            indexes = _ChunkIndexes(self._kb, postings, vectors)
            yield indexes
            indexes.finish()


class _ChunkIndexes:
    """Writes postings and vectors of chunks as they come."""

    def __init__(self, kb: KnowledgeBase, postings: Iterator[Postings], vectors: dict[str, VectorsInOrder]) -> None:
        self._kb, self._postings, self._vectors = kb, postings, vectors

    def write(self, lines: range, chunks: Sequence[Chunk]) -> None:
        tokenizer_id = self._kb.tokenizer_id
        write_postings((chunk, {tokenizer_id: next(self._postings)}) for chunk in chunks)
        for kind, vectors in self._vectors.items():
            of_kind = [
                (chunk, vector) for line, chunk in zip(lines, chunks, strict=True) for vector in vectors.of_chunk(line)
            ]
            write_vectors(of_kind, self._kb.embedding_model, ChunkEmbedding.Kind(kind))

    def finish(self) -> None:
        for vectors in self._vectors.values():
            vectors.finish()
