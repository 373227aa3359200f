"""What holds for every change that a curator makes of chunks: what a chunk may be, and that nobody was faster."""

from collections.abc import Iterable, Sequence

from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import NotVisible, Rejected
from kb.content.models.documents import Chunk, Document
from kb.index.preparing import Prepared
from kb.index.services.chunk_batches import source_of
from kb.index.services.writing import prepare_chunks
from kb.ingest.services.rechunk.writing import own_to_chunk
from retrieval.errors import RetrievalError

TEXT_CHARACTERS = 100_000
KEYWORD_CHARACTERS = 300
QUESTION_CHARACTERS = 2_000
MOST_ENTRIES = 100


def entries(given: Iterable[str]) -> list[str]:
    """Keywords or questions as they are kept: each once, none blank."""
    return list(dict.fromkeys(filter(None, map(str.strip, given))))


def check_chunk(chunk: Chunk) -> None:
    """Refuses what no chunk may be.

    Raises:
        Rejected: it has no text, or too much of something.
    """
    if not chunk.text.strip():
        raise Rejected("blank_text", _("A chunk needs text: switch it off or delete its document instead."))
    if len(chunk.text) > TEXT_CHARACTERS:
        message = _("A chunk holds at most %(most)d characters, and this would have %(count)d: split it.")
        raise Rejected("text_too_long", message % {"most": TEXT_CHARACTERS, "count": len(chunk.text)})
    if max(len(chunk.questions), len(chunk.keywords)) > MOST_ENTRIES:
        message = _("A chunk has at most %(most)d questions and as many keywords: leave some out.")
        raise Rejected("too_many_entries", message % {"most": MOST_ENTRIES})
    lengths = ((chunk.questions, QUESTION_CHARACTERS), (chunk.keywords, KEYWORD_CHARACTERS))
    for texts, most in lengths:
        if too_long := next((text for text in texts if len(text) > most), None):
            message = _("“%(entry)s…” is longer than %(most)d characters: shorten it.")
            raise Rejected("entry_too_long", message % {"entry": too_long[:40], "most": most})


def prepared_chunks(kb: KnowledgeBase, chunks: Sequence[Chunk]) -> list[Prepared]:
    """What the indexes hold of chunks, which come with their document. A model runs: not inside a transaction.

    Raises:
        Rejected: the model is out of reach.
    """
    try:
        return prepare_chunks(kb, [source_of(chunk) for chunk in chunks])
    except RetrievalError as error:
        raise Rejected("model_unavailable", str(error)) from error


def unchanged_chunk(chunk: Chunk) -> Chunk:
    """As `locked_chunks`, of one, which may have moved only: what a change begins with is what it was made from.

    Raises:
        NotVisible: it is gone.
        Rejected: it has changed.
    """
    [locked] = locked_chunks(chunk.document, [chunk])
    if (own_to_chunk(locked), locked.heading_path) != (own_to_chunk(chunk), chunk.heading_path):
        raise changed_meanwhile()
    return locked


def locked_chunks(document: Document, chunks: Sequence[Chunk]) -> list[Chunk]:
    """The chunks of a document as they are now, in their order, until the transaction ends, which holds the knowledge base.

    Raises:
        NotVisible: one is gone.
        Rejected: the document has another title than they were read with.
    """
    rows = Chunk.objects.select_for_update(of=("self",)).select_related("document").order_by("pk")
    found = {row.pk: row for row in rows.filter(pk__in=[chunk.pk for chunk in chunks], document=document)}
    if len(found) < len(chunks):
        raise _gone()
    if any(row.document.title != document.title for row in found.values()):
        raise changed_meanwhile()
    return [found[chunk.pk] for chunk in chunks]


def require_there(chunk: Chunk) -> Chunk:
    """The chunk as it is now.

    Raises:
        NotVisible: it is gone.
    """
    if (found := Chunk.objects.filter(pk=chunk.pk).first()) is None:
        raise _gone()
    present: Chunk = found
    return present


def unchanged_chunks(document: Document, chunks: Sequence[Chunk]) -> list[Chunk]:
    """As `locked_chunks`, and they are as they were read.

    Raises:
        NotVisible: one is gone.
        Rejected: one has changed.
    """
    locked = locked_chunks(document, chunks)
    if any(_state(now) != _state(then) for now, then in zip(locked, chunks, strict=True)):
        raise changed_meanwhile()
    return locked


def changed_meanwhile() -> Rejected:
    return Rejected(
        "chunk_changed",
        _(
            "Somebody has changed the document or its chunks meanwhile, and nothing was done: look again, then repeat it."
        ),
    )


def _gone() -> NotVisible:
    return NotVisible(_("The chunk is gone: its document was processed again meanwhile."))


def _state(chunk: Chunk) -> tuple[object, ...]:
    return (*own_to_chunk(chunk), chunk.position, chunk.parent_id, chunk.heading_path)
