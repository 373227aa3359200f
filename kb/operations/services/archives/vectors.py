"""Vectors of an archive in NumPy's own format, written and read in pieces; nothing is ever unpickled.

What an archive does not carry is staged in a folder before anything is written: postings, and vectors where its own cannot be
used.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Final, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from kb.content.models import Chunk
from kb.index.models import ChunkEmbedding
from kb.index.services.writing import embed, tokenize
from kb.operations.services.archives.format import TABLE, VECTOR_KINDS, Archive, damaged, vector_parts
from kb.operations.services.archives.rows import Contents, rows_of
from retrieval.postings import Postings
from retrieval.protocols import Embedder, Tokenizer
from retrieval.types import searchable_text

FLOAT16: Final = "<f2"
INT64: Final = "<i8"
ROWS_AT_ONCE = 256
BYTES_AT_ONCE = 8 * 1024**2
_VERSION: Final = (1, 0)
_AT_ONCE: Final = 500
_POSTINGS = "postings.jsonl"
_VECTORS = "vectors.jsonl"

T = TypeVar("T")
Vector = NDArray[np.float16]
Indexes = Generator[tuple[Postings, Sequence[Iterable[Vector]]], None, None]


def write_header(stream: Any, shape: tuple[int, ...], dtype: str) -> None:
    """Writes what stands before the elements of an array, row by row."""
    npy.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})


def _read_vectors(vectors: IO[bytes], rows: IO[bytes], *, count: int, dimension: int) -> Iterator[tuple[int, Vector]]:
    """The vectors of one kind with the lines of their chunks, in ascending order of these.

    Raises:
        Rejected: the two do not belong together, are of another shape or hold a number that is none.
    """
    _check_header(vectors, (count, dimension), FLOAT16)
    _check_header(rows, (count, 2), INT64)
    last = (-1, -1)
    for start in range(0, count, _AT_ONCE):
        size = min(_AT_ONCE, count - start)
        values = np.frombuffer(_exactly(vectors, size * dimension * 2), FLOAT16).reshape(size, dimension)
        keys = np.frombuffer(_exactly(rows, size * 16), INT64).reshape(size, 2)
        if not np.isfinite(values).all():
            raise damaged("a vector holds a number that is none")
        for (chunk, ordinal), vector in zip(keys.tolist(), values, strict=True):
            if (chunk, ordinal) <= last or not 0 <= ordinal < 2**15:
                raise damaged("the rows of the vectors are not in order")
            last = (chunk, ordinal)
            yield chunk, vector
    if vectors.read(1) or rows.read(1):
        raise damaged("there are more bytes than elements")


def _check_header(stream: IO[bytes], shape: tuple[int, ...], dtype: str) -> None:
    try:
        version, header = npy.read_magic(stream), npy.read_array_header_1_0(stream)
    except (ValueError, SyntaxError, TokenError, EOFError, RecursionError, MemoryError) as error:
        raise damaged(str(error)) from error
    if (version, header) != (_VERSION, (shape, False, np.dtype(dtype))):
        raise damaged(f"an array of shape {header[0]} and type {header[2]}, not {shape} and {dtype}")


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise damaged("it ends early")
    return data


def _archived(archive: Archive, kind: str, dimension: int, stack: ExitStack) -> Iterator[list[Vector]]:
    """The vectors of one kind of each chunk; some have none, and an archive need not have the kind."""
    names = vector_parts(kind)
    rows: Iterator[tuple[int, Vector]] = iter(())
    if names[0] in archive.parts:
        streams = [stack.enter_context(archive.part(name)) for name in names]
        rows = _read_vectors(*streams, count=archive.rows_in(names[0]), dimension=dimension)
    row = next(rows, None)
    for line in range(chunk_count(archive)):
        vectors = []
        while row is not None and row[0] == line:
            vectors.append(row[1])
            row = next(rows, None)
        yield vectors
    if row is not None:
        raise damaged("a vector has no chunk")


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
) -> None:
    """Tokenises every chunk of a checked archive into files of a folder.

    `embeds` says whether vectors are made too, those of keywords where the knowledge base has `keyword_vectors`;
    `on_chunks` is called with how many further chunks are done.

    Raises:
        ModelUnavailable: the model cannot be loaded or reached.
    """
    with (folder / _POSTINGS).open("wb") as postings, (folder / _VECTORS).open("wb") as vectors:
        for chunks in in_pieces(rows_of(archive, TABLE["chunks"])):
            texts = [
                searchable_text(contents.titles[chunk.document_id], chunk.heading_path, chunk.text) for chunk in chunks
            ]
            for tokenized in tokenize(texts, [cutter]):
                each = tokenized[cutter.id]
                postings.write(_json_line([each.terms.tolist(), each.frequencies.tolist(), each.length, each.lexemes]))
            if embeds:
                vectors.writelines(_embedded_lines(chunks, texts, model, with_keywords=keyword_vectors))
            on_chunks(len(chunks))


def staged(archive: Archive, folder: Path, dimension: int, *, embeds: bool) -> Indexes:
    """The postings of each chunk, in the order of the archive, and its vectors by the kinds of VECTOR_KINDS.

    Whoever takes the last has to ask for one more, since vectors of the archive are wrong where they go on.

    Raises:
        Rejected: the archive's are damaged, or of a chunk that is not there.
    """
    with ExitStack() as stack:
        lines = stack.enter_context((folder / _POSTINGS).open("rb"))
        postings = (
            Postings(np.array(terms, np.uint64), np.array(frequencies, np.uint32), length, tuple(lexemes))
            for terms, frequencies, length, lexemes in map(json.loads, lines)
        )
        vectors: Iterator[Sequence[Iterable[Vector]]]
        if embeds:
            vectors = (
                [np.frombuffer(b64decode(each), FLOAT16).reshape(-1, dimension) for each in of_kinds]
                for of_kinds in map(json.loads, stack.enter_context((folder / _VECTORS).open("rb")))
            )
        else:
            vectors = zip(*(_archived(archive, kind, dimension, stack) for kind in VECTOR_KINDS), strict=True)
        yield from zip(postings, vectors, strict=True)


def chunk_count(archive: Archive) -> int:
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


def _embedded_lines(
    chunks: Sequence[Chunk], texts: Sequence[str], model: Embedder, *, with_keywords: bool
) -> Iterator[bytes]:
    wanted: list[dict[str, list[str]]] = [
        {
            ChunkEmbedding.Kind.CONTENT: [text],
            ChunkEmbedding.Kind.KEYWORDS: [" ".join(chunk.keywords)] if with_keywords and chunk.keywords else [],
            ChunkEmbedding.Kind.QUESTION: list(chunk.questions),
        }
        for chunk, text in zip(chunks, texts, strict=True)
    ]
    flat = [text for of_kinds in wanted for of_kind in of_kinds.values() for text in of_kind]
    vectors = iter(embed(flat, model).astype(FLOAT16))
    for of_kinds in wanted:
        made = {kind: b"".join(next(vectors).tobytes() for _ in of_kind) for kind, of_kind in of_kinds.items()}
        yield _json_line([b64encode(made[kind]).decode() for kind in VECTOR_KINDS])


def _json_line(values: list[Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"
