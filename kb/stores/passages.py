from collections.abc import Mapping, Sequence

from kb.models import Chunk, Principal
from retrieval.types import Passage


class PassageReader:
    """Passages from the chunks that a principal may see; disabled ones do not exist for a search."""

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    def fetch(self, chunk_ids: Sequence[int]) -> Mapping[int, Passage]:
        chunks = (
            Chunk.objects.visible_to(self._principal)
            .filter(pk__in=chunk_ids, enabled=True)
            .select_related("document")
            .defer("document__error", "content_hash")
        )
        return {chunk.pk: _passage(chunk) for chunk in chunks}


def _passage(chunk: Chunk) -> Passage:
    document = chunk.document
    return Passage(
        chunk_id=chunk.pk,
        document_id=document.pk,
        kb_id=chunk.knowledge_base_id,
        title=document.title,
        source=document.source,
        page=chunk.page,
        text=chunk.text,
        heading_path=tuple(chunk.heading_path),
        metadata={**document.metadata, "source_type": document.source_type, "tags": document.tags},
    )
