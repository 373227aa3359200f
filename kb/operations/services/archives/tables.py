"""The second pass over an archive: its rows into the database, their references with them."""

from array import array
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from kb.access.models import KnowledgeBase
from kb.content.models import Chunk, Document
from kb.graph.models import Concept
from kb.index.models import ChunkEmbedding
from kb.index.services.writing import ROWS_A_STATEMENT, write_postings, write_vectors
from kb.operations.services.archives.checking import rows_of
from kb.operations.services.archives.format import VECTOR_KINDS, Table
from kb.operations.services.archives.reading import Archive
from kb.operations.services.archives.rows import Profiles
from kb.operations.services.archives.vectors import Indexes, in_pieces
from kb.profiles.models import RetrievalProfile
from kb.quality.models import Judgment
from kb.sources.models import WebSource


class TableWriter:
    """Writes one table after the other; belongs inside the transaction that makes the knowledge base.

    Args:
        archive: whose rows have been checked.
        kb: the knowledge base.
        indexes: postings and vectors of each chunk, as `vectors.staged` gives them.
        files: by the line of its document, the name of each original.
        profiles: what names the retrieval profiles.
    """

    def __init__(
        self,
        archive: Archive,
        kb: KnowledgeBase,
        indexes: Indexes,
        files: dict[int, str],
        profiles: Profiles,
    ) -> None:
        self._archive, self._kb, self._indexes = archive, kb, indexes
        self._files, self._profiles = files, profiles
        self._ids: dict[str, array[int]] = {}

    def write(self, table: Table, on_rows: Callable[[int], None]) -> None:
        """Writes the rows of a table, whose references must have been written.

        Raises:
            Rejected: a row is wrong after all.
        """
        ids: array[int] = array("q")
        wider: dict[int, int] = {}
        for rows in in_pieces(rows_of(self._archive, table, ids=self._ids, kb_id=self._kb.pk)):
            if table.model is Concept:  # a wider one may come later: it is known by its line until then
                wider |= {line: row.parent_id for line, row in enumerate(rows, len(ids)) if row.parent_id is not None}
                for row in rows:
                    row.parent_id = None
            ids.extend(self._created(table, len(ids), rows))
            if table.model is Chunk:
                self._index(rows)
            on_rows(len(rows))
        self._ids[table.name] = ids
        concepts = [Concept(pk=ids[narrow], parent_id=ids[line]) for narrow, line in wider.items()]
        Concept.objects.bulk_update(concepts, ["parent"], batch_size=ROWS_A_STATEMENT)

    def _created(self, table: Table, start: int, rows: Sequence[Any]) -> list[int]:
        """Inserts rows, the first of which is at a line; returns their ids."""
        moments = [(row, row.created_at) for row in rows] if table.model is Document else []
        for line, row in enumerate(rows, start):
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

    def _index(self, chunks: Sequence[Chunk]) -> None:
        made = list(zip(chunks, islice(self._indexes, len(chunks)), strict=True))
        tokenizer_id, model = self._kb.tokenizer_id, self._kb.embedding_model
        write_postings((chunk, {tokenizer_id: postings}) for chunk, (postings, _) in made)
        for place, kind in enumerate(VECTOR_KINDS):
            of_kind = [(chunk, vector) for chunk, (_, vectors) in made for vector in vectors[place]]
            write_vectors(of_kind, model, ChunkEmbedding.Kind(kind))
