"""Several neighbours of one document become one chunk."""

import copy
from collections.abc import Collection, Sequence
from functools import reduce
from itertools import chain

from django.utils.translation import gettext as _

from kb.base.errors import NotVisible, Rejected
from kb.content.models.documents import Chunk, Document
from kb.ingest.chunkers.joining import joined
from kb.ingest.services.chunk_work.checks import entries
from kb.ingest.services.chunk_work.replacing import replace_chunks

MOST_MERGED = 50


def chunks_merge(*, document: Document, chunk_ids: Collection[int]) -> Chunk:
    """Makes one chunk of neighbours; what the end of one and the beginning of the next have in common is in it once.

    It has the place, page and headings of the first, whose row stays; questions and a curator's keywords of all; and it
    is enabled where one of them was. Cutting the document anew leaves it as it is.

    Args:
        document: with its knowledge base.
        chunk_ids: two or more of its chunks that follow one another.

    Raises:
        NotVisible: one of them is not in the document.
        Rejected: they cannot be merged, the model is out of reach, or somebody was faster; nothing was changed.
        Superseded: the knowledge base moved to another model meanwhile; nothing was changed.
    """
    wanted = set(chunk_ids)
    if not 1 < len(wanted) <= MOST_MERGED:
        message = _("Choose from 2 to %(most)d chunks that follow one another.")
        raise Rejected("merge_count", message % {"most": MOST_MERGED})
    chunks = list(Chunk.objects.filter(document=document, pk__in=wanted).order_by("position"))
    if len(chunks) < len(wanted):
        raise NotVisible(_("Some of these chunks are not in the document: only chunks of one document are merged."))
    _require_mergeable(document, chunks)
    merged = _merged(chunks)
    replace_chunks(document, chunks, [merged])
    return merged


def _require_mergeable(document: Document, chunks: Sequence[Chunk]) -> None:
    places = (chunks[0].position, chunks[-1].position)
    if Chunk.objects.filter(document=document, position__range=places).count() != len(chunks):
        raise Rejected(
            "not_adjacent", _("There are other chunks between these: choose chunks that follow one another.")
        )
    if len({chunk.parent_id for chunk in chunks}) > 1:
        message = _(
            "These chunks belong to different longer passages, of which a search returns one: merge chunks of one passage, "
            "or choose a chunking strategy without longer passages."
        )
        raise Rejected("different_parents", message)


def _merged(chunks: Sequence[Chunk]) -> Chunk:
    merged = copy.copy(chunks[0])
    merged.text = reduce(joined, [chunk.text for chunk in chunks])
    cut = reduce(joined, [chunk.cut_text or chunk.text for chunk in chunks])
    merged.cut_text = "" if cut == merged.text else cut
    merged.own_cut = True
    merged.enabled = any(chunk.enabled for chunk in chunks)
    merged.questions = entries(chain.from_iterable(chunk.questions for chunk in chunks))
    merged.own_questions = any(chunk.own_questions for chunk in chunks)
    merged.keywords = entries(chain.from_iterable(chunk.keywords for chunk in chunks if chunk.own_keywords))
    merged.own_keywords = bool(merged.keywords)
    return merged
