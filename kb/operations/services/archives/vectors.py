"""Arrays of an archive in NumPy's own format, written and read in pieces; nothing is ever unpickled."""

from collections.abc import Iterator
from dataclasses import dataclass
from tokenize import TokenError
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

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
