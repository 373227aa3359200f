"""What every embedder promises of its vectors, checked in one place."""

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import UnusableVectors
from retrieval.messages import Message, gettext_noop


def unit_vectors(vectors: NDArray[np.float32], *, model_id: str) -> NDArray[np.float32]:
    """The rows at length 1, shape as given (n, dimension).

    Raises:
        UnusableVectors: a row is all zeros or holds a NaN or an infinity, so that it has no direction.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unusable = ~np.isfinite(norms) | (norms == 0)
    if unusable.any():
        raise UnusableVectors(
            Message(
                gettext_noop(
                    "model '{model_id}' returned {unusable} of {count} vectors that are zero or not finite: check its "
                    "files or its server's precision settings, or choose another model"
                ),
                model_id=model_id,
                unusable=int(unusable.sum()),
                count=len(vectors),
            )
        )
    return np.asarray(vectors / norms, dtype=np.float32)
