"""Arrays of an archive in NumPy's own format, written and read in pieces; nothing is ever unpickled.

What an archive does not carry: postings, and vectors where its own cannot be used. Made before anything is written.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Final, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from kb.content.models import Chunk
from kb.index.models import ChunkEmbedding
from kb.index.preparing import embed, tokenize
from kb.operations.services.archives.checking import Contents, rows_of
from kb.operations.services.archives.format import TABLE, VECTOR_KINDS, vector_parts
from kb.operations.services.archives.reading import Archive, damaged
from retrieval.postings import Postings
from retrieval.protocols import Embedder, Tokenizer
from retrieval.rerankers.overlap import searchable_text

FLOAT16: Final = "<f2"
INT64: Final = "<i8"
MOST_DIMENSIONS: Final = 4_000
_VERSION: Final = (1, 0)
_AT_ONCE: Final = 500


class NotAnArray(ValueError):
    """The bytes are no array of the kind that belongs there."""


def write_header(stream: Any, shape: tuple[int, ...], dtype: str) -> None:
    """Writes what stands before the elements of an array, row by row."""
    npy.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})


@dataclass(frozen=True, slots=True)
class VectorRow:
    """A vector of a chunk: the chunk's line, which vector of its kind it is, and its float16 elements."""

    chunk: int
    ordinal: int
    vector: NDArray[np.float16]


def read_vectors(vectors: IO[bytes], rows: IO[bytes], *, count: int, dimension: int) -> Iterator[VectorRow]:
    """The vectors of one kind, in ascending order of their chunks.

    Raises:
        NotAnArray: the two do not belong together, are of another shape or hold a number that is none.
    """
    _check_header(vectors, (count, dimension), FLOAT16)
    _check_header(rows, (count, 2), INT64)
    last = (-1, -1)
    for start in range(0, count, _AT_ONCE):
        size = min(_AT_ONCE, count - start)
        values = np.frombuffer(_exactly(vectors, size * dimension * 2), FLOAT16).reshape(size, dimension)
        keys = np.frombuffer(_exactly(rows, size * 16), INT64).reshape(size, 2)
        if not np.isfinite(values).all():
            raise NotAnArray("a vector holds a number that is none")
        for (chunk, ordinal), vector in zip(keys.tolist(), values, strict=True):
            if (chunk, ordinal) <= last or not 0 <= ordinal < 2**15:
                raise NotAnArray("the rows of the vectors are not in order")
            last = (chunk, ordinal)
            yield VectorRow(chunk, ordinal, vector)
    if vectors.read(1) or rows.read(1):
        raise NotAnArray("there are more bytes than elements")


def _check_header(stream: IO[bytes], shape: tuple[int, ...], dtype: str) -> None:
    try:
        if npy.read_magic(stream) != _VERSION:
            raise NotAnArray("another version of the format")
        found, in_fortran_order, kind = npy.read_array_header_1_0(stream)
    except (ValueError, SyntaxError, TokenError, EOFError, RecursionError, MemoryError) as error:
        raise NotAnArray(str(error)) from error
    if (found, in_fortran_order, kind) != (shape, False, np.dtype(dtype)):
        raise NotAnArray(f"an array of shape {found} and type {kind}, not {shape} and {dtype}")


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := stream.read(size - len(data))):
        data += piece
    if len(data) != size:
        raise NotAnArray("it ends early")
    return data


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
