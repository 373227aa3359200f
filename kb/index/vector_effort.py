"""How much of an approximate index a search looks at, as measured for each knowledge base, model and kind."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from django.conf import settings

from kb.index.models.index import VectorIndex

DEFAULT_EF_SEARCH: Final = 128
"""As in the settings' connection options; a search that asks for no more needs no statement of its own."""
REFRESH_SECONDS: Final = 60
"""For so long a process may search with the effort of an earlier measurement."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What an index is asked with.

    Attributes:
        method: of the index.
        depth: `hnsw.ef_search`, or `ivfflat.probes`.
        is_used: False: all vectors are compared.
    """

    method: VectorIndex.Method
    depth: int
    is_used: bool = True

    @property
    def statements(self) -> str:
        """Sets the depth for the rest of the transaction, which is the statement that follows where there is none."""
        if self.method is VectorIndex.Method.HNSW:
            return f"SET LOCAL hnsw.ef_search = {self.depth};" if self.depth != DEFAULT_EF_SEARCH else ""
        return f"SET LOCAL ivfflat.probes = {self.depth};"


UNMEASURED: Final = Effort(VectorIndex.Method.HNSW, DEFAULT_EF_SEARCH)


def effort_of(kb_id: int, model_id: str, kind: str) -> Effort:
    """The measured effort; that of an index which has not been measured yet is the default."""
    return _efforts(int(time.monotonic() // REFRESH_SECONDS)).get((kb_id, model_id, str(kind)), UNMEASURED)


def forget_efforts() -> None:
    """Has the next search of this process ask for the efforts again."""
    _efforts.cache_clear()


@lru_cache(maxsize=1)
def _efforts(minute: int) -> Mapping[tuple[int, str, str], Effort]:  # noqa: ARG001 - the next one asks again
    """Those that differ from the default, which are few: one small query a minute and process."""
    rows = VectorIndex.objects.filter(method=settings.VECTOR_INDEX_METHOD)
    named = rows.exclude(method=VectorIndex.Method.HNSW, effort=DEFAULT_EF_SEARCH, is_used=True)
    values = named.values_list("knowledge_base_id", "model", "kind", "method", "effort", "is_used")
    return {
        (kb_id, model, kind): Effort(VectorIndex.Method(method), effort, is_used)
        for kb_id, model, kind, method, effort, is_used in values
    }
