"""Vectors of half precision as PostgreSQL reads them."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


def vector_text(vector: NDArray[np.float32]) -> str:
    """A vector as text; to write a thousand numbers one by one takes longer than many a search."""
    return f"[{','.join(_texts()[np.asarray(vector, dtype=np.float16).view(np.uint16)].tolist())}]"


@lru_cache(maxsize=1)
def _texts() -> NDArray[Any]:
    """The shortest text of each number of 16 bits, in the order of the bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(str).astype(object)


def array_text(numbers: Iterable[int]) -> str:
    """For twenty thousand numbers the driver's adapters take ten times as long."""
    return "{" + ",".join(map(str, numbers)) + "}"
