"""What an archive does not carry: postings, and vectors where its own cannot be used. Made before anything is written."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kb.content.models import Chunk
from kb.index.models import ChunkEmbedding
from kb.index.preparing import embed, tokenize
from kb.operations.services.archives.checking import Contents, rows_of
from kb.operations.services.archives.format import TABLE, VECTOR_KINDS, vector_parts
from kb.operations.services.archives.reading import Archive, damaged
from kb.operations.services.archives.vectors import FLOAT16, INT64, NotAnArray, VectorRow, read_vectors, write_header
from retrieval.postings import Postings
from retrieval.protocols import Embedder, Tokenizer
from retrieval.searchable import searchable_text

T = TypeVar("T")

ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 8 * 1024**2
_POSTINGS = "postings.jsonl"
_KIND = ChunkEmbedding.Kind


class Staged:
    """Postings and vectors of an archive's chunks, in a folder until they are written.

    Attributes:
        counts: vectors by kind; empty where those of the archive are used.
        dimension: of the vectors.
    """

    def __init__(self, folder: Path, dimension: int, counts: dict[str, int]) -> None:
        self.folder, self.dimension, self.counts = folder, dimension, counts

    @contextmanager
    def postings(self) -> Iterator[Iterator[Postings]]:
        """Those of each chunk, in the order of the archive."""
        with (self.folder / _POSTINGS).open("rb") as stream:
            yield map(_postings_read, stream)

    @contextmanager
    def vectors(self, archive: Archive, kind: str) -> Iterator["VectorsInOrder"]:
        """Those of one kind: what was made here, else what the archive holds.

        Raises:
            Rejected: the archive's are damaged.
        """
        with ExitStack() as stack:
            names = vector_parts(kind)
            streams: list[IO[bytes]]
            if self.counts:
                count = self.counts[kind]
                streams = [stack.enter_context((self.folder / Path(name).name).open("rb")) for name in names]
            else:
                count = archive.rows_in(names[0])
                streams = [stack.enter_context(archive.part(name)) for name in names if archive.has(name)]
            rows = read_vectors(*streams, count=count, dimension=self.dimension) if streams else iter(())
            yield VectorsInOrder(rows)


class VectorsInOrder:
    """Vectors that are taken chunk by chunk."""

    def __init__(self, rows: Iterator[VectorRow]) -> None:
        self._rows = rows
        self._next = self._read()

    def of_chunk(self, line: int) -> Iterator[NDArray[np.float16]]:
        """The vectors of the chunk of a line; lines are asked for in their order, none left out."""
        while self._next is not None and self._next.chunk == line:
            yield self._next.vector
            self._next = self._read()

    def finish(self) -> None:
        """Refuses vectors of chunks that are not there."""
        if self._next is not None:
            raise damaged("a vector has no chunk")

    def _read(self) -> VectorRow | None:
        try:
            return next(self._rows, None)
        except NotAnArray as error:
            raise damaged(str(error)) from error


def stage(
    archive: Archive,
    contents: Contents,
    folder: Path,
    *,
    cutter: Tokenizer,
    model: Embedder,
    embeds: bool,
    keyword_vectors: bool,
    on_chunks: Callable[[int], None],
) -> Staged:
    """Tokenises every chunk, and embeds it where the archive's vectors are not used.

    Args:
        archive: whose rows have been checked.
        contents: what they come to.
        folder: where to.
        cutter: the tokenizer.
        model: whose space the vectors are in.
        embeds: whether vectors are to be made.
        keyword_vectors: whether the knowledge base has vectors of keywords.
        on_chunks: told how many further chunks are done.

    Raises:
        ModelUnavailable: the model cannot be loaded or reached.
    """
    counts = {
        _KIND.CONTENT.value: len_of_chunks(archive),
        _KIND.KEYWORDS.value: contents.keyword_chunks if keyword_vectors else 0,
        _KIND.QUESTION.value: contents.questions,
    }
    staged = Staged(folder, model.dimension, counts if embeds else {})
    with ExitStack() as stack:
        postings = stack.enter_context((folder / _POSTINGS).open("wb"))
        writers = {kind: stack.enter_context(_writing(folder, kind, staged)) for kind in VECTOR_KINDS if embeds}
        for lines, chunks in numbered(in_pieces(rows_of(archive, TABLE["chunks"], lambda _, line: line, 0))):
            texts = [
                searchable_text(contents.titles[each.document_id], each.heading_path, each.text) for each in chunks
            ]
            postings.writelines(_postings_line(each[cutter.id]) for each in tokenize(texts, [cutter]))
            if embeds:
                _write_vectors(writers, zip(lines, chunks, texts, strict=True), model, with_keywords=keyword_vectors)
            on_chunks(len(chunks))
    return staged


def len_of_chunks(archive: Archive) -> int:
    """How many chunks an archive has."""
    return archive.rows_in(TABLE["chunks"].part)


def in_pieces(sized: Iterable[tuple[int, T]]) -> Iterator[list[T]]:
    """Rows in pieces that are bounded by their number and by the bytes of their lines."""
    piece: list[T] = []
    size = 0
    for row_bytes, row in sized:
        piece.append(row)
        size += row_bytes
        if len(piece) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def numbered(pieces: Iterable[list[T]]) -> Iterator[tuple[range, list[T]]]:
    """Pieces with the lines of their rows."""
    start = 0
    for piece in pieces:
        yield range(start, start + len(piece)), piece
        start += len(piece)


class _Writer:
    """The two files of the vectors of one kind."""

    def __init__(self, vectors: IO[bytes], rows: IO[bytes]) -> None:
        self._vectors, self._rows = vectors, rows

    def write(self, line: int, vectors: Sequence[NDArray[np.float32]]) -> None:
        for ordinal, vector in enumerate(vectors):
            self._vectors.write(vector.astype(FLOAT16).tobytes())
            self._rows.write(np.array([line, ordinal], dtype=INT64).tobytes())


@contextmanager
def _writing(folder: Path, kind: str, staged: Staged) -> Iterator[_Writer]:
    vectors_name, rows_name = (Path(name).name for name in vector_parts(kind))
    with (folder / vectors_name).open("wb") as vectors, (folder / rows_name).open("wb") as rows:
        count = staged.counts[kind]
        write_header(vectors, (count, staged.dimension), FLOAT16)
        write_header(rows, (count, 2), INT64)
        yield _Writer(vectors, rows)


def _write_vectors(
    writers: dict[str, _Writer], chunks: Iterable[tuple[int, Chunk, str]], model: Embedder, *, with_keywords: bool
) -> None:
    wanted: list[tuple[str, int, list[str]]] = []
    for line, chunk, searchable in chunks:
        wanted.append((_KIND.CONTENT, line, [searchable]))
        if with_keywords and chunk.keywords:
            wanted.append((_KIND.KEYWORDS, line, [" ".join(chunk.keywords)]))
        wanted.append((_KIND.QUESTION, line, list(chunk.questions)))
    vectors = iter(embed([text for _kind, _line, texts in wanted for text in texts], model))
    for kind, line, texts in wanted:
        writers[kind].write(line, [next(vectors) for _ in texts])


def _postings_line(postings: Postings) -> bytes:
    parts: list[Any] = [b64encode(part).decode() for part in (postings.terms_bytes, postings.frequencies_bytes)]
    return json.dumps([*parts, postings.length, postings.lexemes]).encode() + b"\n"


def _postings_read(line: bytes) -> Postings:
    terms, frequencies, length, lexemes = json.loads(line)
    read = Postings.from_bytes(b64decode(terms), b64decode(frequencies), length)
    return Postings(read.terms, read.frequencies, read.length, tuple(lexemes))
