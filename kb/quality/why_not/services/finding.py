"""Finding the chunk that someone means, by its text."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.base.errors import NotVisible, Rejected
from kb.base.validators import storable
from kb.content.models.documents import Chunk, Document
from kb.index.fulltext import PgTextStore
from kb.ingest.chunkers.drafts import hash_content

MOST_FOUND = 20
MOST_CHARACTERS = 20_000
LOOKED_FOR = 60
"""So many characters of a text are looked for as they stand: more would fail at the first difference."""

MOST_DOCUMENTS = 5


@dataclass(frozen=True, slots=True)
class FoundChunks:
    """Chunks that hold a text, the likeliest first.

    Attributes:
        chunks: each with its document and knowledge base.
        is_alike: none holds the text as it stands; these share most character n-grams with it.
        has_more: there are others.
        unready: where there are none, documents that are not ready, and may be meant to hold it.
    """

    chunks: tuple[Chunk, ...] = ()
    is_alike: bool = False
    has_more: bool = False
    unready: tuple[Document, ...] = ()


def find_chunks(principal: Principal, kb_ids: Sequence[int], text: str) -> FoundChunks:
    """Looks for chunks by a piece of their text, or by all of it; also for those that no search finds.

    Args:
        principal: who looks.
        kb_ids: where to look.
        text: any part of the chunk; white space and case do not count.
    """
    words = storable(text)[:MOST_CHARACTERS].split()
    bases = KnowledgeBase.objects.visible_to(principal).filter(pk__in=kb_ids)
    if not words:
        return FoundChunks()
    own = Chunk.objects.filter(knowledge_base__in=bases).select_related("document", "knowledge_base")
    by_content = own.filter(content_hash=hash_content(" ".join(words)))
    found = list(by_content[: MOST_FOUND + 1]) or list(_holding(own, words)[: MOST_FOUND + 1])
    if found:
        return FoundChunks(tuple(found[:MOST_FOUND]), has_more=len(found) > MOST_FOUND)
    alike = _alike(own, list(bases), " ".join(words))
    if alike.chunks:
        return alike
    unready = Document.objects.filter(knowledge_base__in=bases).exclude(status=Document.Status.READY)
    return FoundChunks(unready=tuple(unready.order_by("-pk")[:MOST_DOCUMENTS]))


def _holding(chunks: QuerySet[Chunk], words: Sequence[str]) -> QuerySet[Chunk]:
    """Chunks with the beginning of the text in them, its longest word written as it is, which is looked for first."""
    beginning = " ".join(words)[:LOOKED_FOR].split()
    pattern = r"\s+".join(map(_escaped, beginning))
    return chunks.filter(text__contains=max(beginning, key=len)).filter(text__iregex=pattern).order_by("pk")


def _escaped(word: str) -> str:
    """A word as a regular expression of PostgreSQL's."""
    return "".join(f"\\{each}" if not each.isalnum() and each.isascii() else each for each in word)


def _alike(chunks: QuerySet[Chunk], bases: Sequence[KnowledgeBase], text: str) -> FoundChunks:
    """By the index of n-grams, which knows no case; those that hold the text but for its case are the ones meant."""
    store = PgTextStore()
    shares: dict[int, float] = {}
    for kb in bases:
        ids, scores = store.search_ngrams(kb.pk, kb.tokenizer_id, text, MOST_FOUND)
        shares |= dict(zip(ids.tolist(), scores.tolist(), strict=True))
    best = sorted(shares, key=lambda chunk_id: (-shares[chunk_id], chunk_id))[:MOST_FOUND]
    rows = chunks.in_bulk(best)
    alike = tuple(rows[chunk_id] for chunk_id in best if chunk_id in rows)
    wanted = text[:LOOKED_FOR].casefold().strip()
    holding = tuple(chunk for chunk in alike if wanted in " ".join(chunk.text.split()).casefold())
    return FoundChunks(holding or alike, is_alike=not holding)


def the_chunk(principal: Principal, kb_ids: Sequence[int], text: str) -> int:
    """The id of the one chunk that holds a text.

    Raises:
        NotVisible: none does.
        Rejected: several do.
    """
    found = find_chunks(principal, kb_ids, text)
    if not found.chunks:
        message = _("No chunk there holds this text: give less of it, or the chunk’s id.")
        raise NotVisible(" ".join([message, *map(_unready_in_words, found.unready)]))
    if len(found.chunks) > 1:
        ids = ", ".join(str(chunk.pk) for chunk in found.chunks)
        message = (
            _("No chunk holds this text as it stands; alike are the chunks %(ids)s: give the id of one.")
            if found.is_alike
            else _("Several chunks hold this text: give more of it, or the id of one of %(ids)s.")
        )
        raise Rejected("ambiguous_text", message % {"ids": ids})
    return int(found.chunks[0].pk)


def _unready_in_words(document: Document) -> str:
    words = _("Its document may be “%(title)s”, which is not ready (%(status)s).")
    return words % {"title": document, "status": document.get_status_display()}
