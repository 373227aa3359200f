"""Edits of chunks: text, state, deletion, merging and splitting; the database's triggers keep the versions."""

import copy
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import reduce
from itertools import accumulate, chain, pairwise
from typing import Literal

from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import holding_knowledge_bases, lock_knowledge_bases
from kb.base.errors import NotVisible, Rejected
from kb.base.text import hash_content, storable
from kb.content.models import Chunk, ChunkParent, Document, chunks_replacing
from kb.index.services.writing import Prepared, prepare_chunks, rewrite_chunks, source_of, write_chunks, writing_chunks
from kb.ingest.chunkers.matching import joined, moved_place, place_of, squeezed
from kb.ingest.chunkers.strategies import spans_within
from kb.ingest.services.pictures import share_pictures
from kb.ingest.services.rechunk import EDITED, MOST_ENTRIES, MOST_REGIONS, own_to_chunk, share_questions
from kb.providers.embedding_models import embedder
from retrieval.errors import RetrievalError

MOST_NAMED = 10

# Positions count on without a gap, so that neighbours are found by them.
_CLOSE_GAPS = """
UPDATE kb_chunk c SET position = numbered.position
FROM (
    SELECT id, row_number() OVER (PARTITION BY document_id ORDER BY position) - 1 AS position
    FROM kb_chunk WHERE document_id = ANY(%s::bigint[])
) numbered
WHERE c.id = numbered.id AND c.position <> numbered.position
"""


def chunks_change(
    *, knowledge_base: KnowledgeBase, chunk_ids: Collection[int], action: Literal["enable", "disable", "delete"]
) -> int:
    """Does one thing to chunks; returns how many were not so. Rejected: some are of another base, none was changed."""
    own = Chunk.objects.filter(knowledge_base=knowledge_base, pk__in=chunk_ids)
    if foreign := sorted(set(chunk_ids).difference(own.values_list("pk", flat=True))):
        message = _("These chunks are not in the knowledge base, and nothing was changed: %(ids)s.")
        raise Rejected("unknown_chunks", message, ids=", ".join(map(str, foreign[:MOST_NAMED])))
    if action == "delete":
        return chunks_delete(chunk_ids=chunk_ids)
    return chunks_set_enabled(chunk_ids=chunk_ids, enabled=action == "enable")


def chunks_set_enabled(*, chunk_ids: Collection[int], enabled: bool) -> int:
    """Switches chunks on or off, and returns how many; those that are so already are left alone."""
    with transaction.atomic():
        others = _locked(chunk_ids).exclude(enabled=enabled)
        # What somebody has switched on and off again is hidden no longer, and stays off.
        return others.update(enabled=enabled, is_hidden=False, updated_at=timezone.now())


def chunks_delete(*, chunk_ids: Collection[int]) -> int:
    """Deletes chunks with all that the indexes hold of them, and returns how many; the others of their documents move up.

    A document that is processed again has them again: what is to stay out of searches is switched off. A longer passage
    goes with them where it is not known which part of it is theirs; its other chunks are returned themselves then.
    """
    with transaction.atomic():
        rows = _locked(chunk_ids)
        ChunkParent.objects.filter(chunks__in=rows).filter(chunks__parent_spans__isnull=True).delete()
        documents = sorted(set(rows.order_by().values_list("document_id", flat=True)))
        count, _by_model = rows.delete()
        with connection.cursor() as cursor:
            cursor.execute(_CLOSE_GAPS, [documents])
    return int(count)


def _locked(chunk_ids: Collection[int]) -> QuerySet[Chunk]:
    """The chunks, of which the transaction holds the knowledge bases."""
    rows = Chunk.objects.filter(pk__in=chunk_ids)
    lock_knowledge_bases(rows.order_by().values_list("knowledge_base_id", flat=True).distinct())
    return rows


TEXT_CHARACTERS = 100_000
KEYWORD_CHARACTERS = 300
QUESTION_CHARACTERS = 2_000


def entries(given: Iterable[str]) -> list[str]:
    """Keywords or questions as they are kept: each once, none blank."""
    return list(dict.fromkeys(filter(None, map(str.strip, given))))


def check_chunk(chunk: Chunk) -> None:
    """Refuses, as Rejected, a chunk that has no text, or too much of something."""
    if not chunk.text.strip():
        raise Rejected("blank_text", _("A chunk needs text: switch it off or delete its document instead."))
    if len(chunk.text) > TEXT_CHARACTERS:
        message = _("A chunk holds at most %(most)d characters, and this would have %(count)d: split it.")
        raise Rejected("text_too_long", message, most=TEXT_CHARACTERS, count=len(chunk.text))
    if max(len(chunk.questions), len(chunk.keywords)) > MOST_ENTRIES:
        message = _("A chunk has at most %(most)d questions and as many keywords: leave some out.")
        raise Rejected("too_many_entries", message, most=MOST_ENTRIES)
    for texts, most in ((chunk.questions, QUESTION_CHARACTERS), (chunk.keywords, KEYWORD_CHARACTERS)):
        if too_long := next((text for text in texts if len(text) > most), None):
            message = _("“%(entry)s…” is longer than %(most)d characters: shorten it.")
            raise Rejected("entry_too_long", message, entry=too_long[:40], most=most)


def prepared_chunks(kb: KnowledgeBase, chunks: Sequence[Chunk]) -> list[Prepared]:
    """What the indexes hold of chunks, with their document. A model runs: not in a transaction; Rejected: it cannot."""
    try:
        return prepare_chunks(kb, [source_of(chunk) for chunk in chunks])
    except RetrievalError as error:
        raise Rejected("model_unavailable", str(error)) from error


def unchanged_chunks(document: Document, chunks: Sequence[Chunk], *, may_move: bool = False) -> list[Chunk]:
    """The chunks of a document, locked until the transaction ends, which holds the knowledge base.

    Raises NotVisible where one is gone, and Rejected where one has changed since it was read, or the title of the
    document; with `may_move` position and parent may be others by now.
    """
    rows = Chunk.objects.select_for_update(of=("self",)).select_related("document").order_by("pk")
    found = rows.filter(document=document).in_bulk([chunk.pk for chunk in chunks])
    if len(found) < len(chunks):
        raise NotVisible(chunk_gone())

    def what_counts(chunk: Chunk, title: str) -> tuple[object, ...]:
        place = None if may_move else (chunk.position, chunk.parent_id)
        return own_to_chunk(chunk), chunk.heading_path, place, title

    locked = [found[chunk.pk] for chunk in chunks]
    if [what_counts(now, now.document.title) for now in locked] != [
        what_counts(then, document.title) for then in chunks
    ]:
        raise changed_meanwhile()
    return locked


def changed_meanwhile() -> Rejected:
    return Rejected(
        "chunk_changed",
        _(
            "Somebody has changed the document or its chunks meanwhile, and nothing was done: look again, then repeat it."
        ),
    )


def as_stored(text: str) -> str:
    """A text of a form as chunks hold it: a browser sends the line ends of the web."""
    return storable(text).replace("\r\n", "\n")


def chunk_gone() -> str:
    return _("The chunk is gone: its document was processed again meanwhile.")


def has_text_of(content_hash: str) -> Callable[[Chunk], None]:
    """What `chunk_update` requires of a caller who was shown the text with this hash; raises Rejected for another text."""

    def require(chunk: Chunk) -> None:
        if chunk.content_hash != content_hash:
            raise changed_meanwhile()

    return require


def chunk_update(
    chunk: Chunk,
    *,
    text: str,
    enabled: bool,
    questions: Sequence[str] | None = None,
    keywords: Sequence[str] | None = None,
    require: Callable[[Chunk], None] = lambda _chunk: None,
) -> None:
    """Changes a chunk, which was read with its document and knowledge base, and what the indexes hold of it.

    Without questions or keywords it keeps those it has; where keywords are empty they are extracted from its text
    again. `require` raises where the chunk, locked, is not as the caller wants it to be before the change.

    Raises:
        Rejected: the text is blank, something is too long, the model is out of reach, or somebody changed the chunk or
            the document's title meanwhile; nothing was changed.
        Superseded: the knowledge base moved to another model meanwhile; nothing was changed.
        NotVisible: the chunk was deleted or replaced meanwhile.
    """
    wanted = copy.copy(chunk)
    wanted.text = as_stored(text)
    if questions is not None and (asked := entries(questions)) != chunk.questions:
        wanted.questions, wanted.own_questions = asked, True
    if keywords is not None and (words := entries(keywords)) != chunk.keywords:
        wanted.keywords, wanted.own_keywords = words, bool(words)
    check_chunk(wanted)
    names = ("text", "questions", "own_questions", "keywords", "own_keywords")
    if not any(getattr(chunk, name) != getattr(wanted, name) for name in names):
        with holding_knowledge_bases([chunk.knowledge_base_id]):
            found = Chunk.objects.filter(pk=chunk.pk).first()
            if found is None:
                raise NotVisible(chunk_gone())
            require(found)
            chunks_set_enabled(chunk_ids=[chunk.pk], enabled=enabled)
        return
    _rewrite_chunk(chunk, wanted, enabled=enabled, require=require)


def chunk_reindex(chunk: Chunk) -> None:
    """Rebuilds what the indexes hold of a chunk, which stays as it is; raises as `chunk_update`."""
    _rewrite_chunk(chunk, copy.copy(chunk), enabled=chunk.enabled)


def _rewrite_chunk(
    chunk: Chunk, wanted: Chunk, *, enabled: bool, require: Callable[[Chunk], None] = lambda _chunk: None
) -> None:
    model = embedder(chunk.knowledge_base.embedding_model)
    [prepared] = prepared_chunks(chunk.knowledge_base, [wanted])
    with writing_chunks(chunk.knowledge_base):
        [locked] = unchanged_chunks(chunk.document, [chunk], may_move=True)
        require(locked)
        if wanted.text != locked.text:
            cut = locked.cut_text or locked.text
            locked.text, locked.cut_text = wanted.text, "" if wanted.text == cut else cut
        locked.questions, locked.own_questions = wanted.questions, wanted.own_questions
        locked.keywords, locked.own_keywords = wanted.keywords, wanted.own_keywords
        locked.enabled = enabled
        locked.content_hash, locked.token_count = hash_content(locked.text), model.count_tokens(locked.text)
        locked.save()
        rewrite_chunks([(locked, prepared)], model_id=model.model_id)


def neighbours_of(chunk: Chunk, *, count: int = 1) -> tuple[list[Chunk], list[Chunk]]:
    """Chunks before and after one, both in the order of the document, fewer at its ends."""
    siblings = Chunk.objects.filter(document=chunk.document_id)
    before = siblings.filter(position__lt=chunk.position).order_by("-position")[:count]
    return [*reversed(before)], [*siblings.filter(position__gt=chunk.position).order_by("position")[:count]]


def replace_chunks(document: Document, before: Sequence[Chunk], after: Sequence[Chunk]) -> None:
    """Replaces neighbours, with no other chunk between them, by others; raises as `chunk_update`.

    The first of those after is a copy of the first one before: it keeps the row, and the facts that were taken from the
    others. The rest are new.
    """
    kb, (kept, *new) = document.knowledge_base, after
    model = embedder(kb.embedding_model)
    for chunk in after:
        check_chunk(chunk)
        chunk.document, chunk.knowledge_base = document, kb
        chunk.content_hash = hash_content(chunk.text)
    of_kept, *of_new = prepared_chunks(kb, after)
    for chunk in after:
        chunk.token_count = model.count_tokens(chunk.text)
    with writing_chunks(kb):
        unchanged_chunks(document, before)
        first, last = before[0].position, before[-1].position
        if Chunk.objects.filter(document=document, position__range=(first, last)).count() != len(before):
            raise changed_meanwhile()
        gone = [chunk.pk for chunk in before[1:]]
        chunks_replacing.send(Chunk, kept=kept, gone=gone)
        Chunk.objects.filter(pk__in=gone).delete()
        for position, chunk in enumerate(after, start=first):
            chunk.position = position
        following = Chunk.objects.filter(document=document, position__gt=last)
        following.update(position=F("position") + first + len(after) - 1 - last)
        kept.save(
            update_fields=(
                *EDITED,
                "own_cut",
                "regions",
                "pictures",
                "parent_spans",
                "position",
                "content_hash",
                "token_count",
                "updated_at",
            )
        )
        rewrite_chunks([(kept, of_kept)], model_id=model.model_id)
        write_chunks(new, of_new, model_id=model.model_id)


MOST_MERGED = 50


def chunks_merge(*, document: Document, chunk_ids: Collection[int]) -> Chunk:
    """Makes one chunk of neighbours; what the end of one and the beginning of the next have in common is in it once.

    It has the place, page and headings of the first, whose row stays; questions and a curator's keywords of all; and it
    is enabled where one of them was. Re-chunking the document leaves it as it is. Raises NotVisible where one of them
    is not in the document, Rejected where they cannot be merged, and as `chunk_update`.
    """
    wanted = set(chunk_ids)
    if not 1 < len(wanted) <= MOST_MERGED:
        message = _("Choose from 2 to %(most)d chunks that follow one another.")
        raise Rejected("merge_count", message, most=MOST_MERGED)
    chunks = list(Chunk.objects.filter(document=document, pk__in=wanted).order_by("position"))
    if len(chunks) < len(wanted):
        raise NotVisible(_("Some of these chunks are not in the document: only chunks of one document are merged."))
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
    merged = _merged(chunks)
    replace_chunks(document, chunks, [merged])
    return merged


def _merged(chunks: Sequence[Chunk]) -> Chunk:
    merged = copy.copy(chunks[0])
    merged.text = reduce(joined, [chunk.text for chunk in chunks])
    cut = reduce(joined, [chunk.cut_text or chunk.text for chunk in chunks])
    merged.cut_text = "" if cut == merged.text else cut
    merged.own_cut = True
    spans = [chunk.parent_spans or () for chunk in chunks]
    of_all = [*spans[0][:2], *chain.from_iterable(each[2:] for each in spans)]
    merged.parent_spans = of_all if all(spans) else None
    regions = {str(each): each for chunk in chunks for each in chunk.regions}
    merged.regions = list(regions.values())[:MOST_REGIONS]
    merged.pictures = list(dict.fromkeys(chain.from_iterable(chunk.pictures for chunk in chunks)))
    merged.enabled = any(chunk.enabled for chunk in chunks)
    merged.questions = entries(chain.from_iterable(chunk.questions for chunk in chunks))
    merged.own_questions = any(chunk.own_questions for chunk in chunks)
    merged.keywords = entries(chain.from_iterable(chunk.keywords for chunk in chunks if chunk.own_keywords))
    merged.own_keywords = bool(merged.keywords)
    return merged


MOST_PARTS = 100
_SENTENCE_END = re.compile(r"(?:[。！？!?；;…]+[”’」』）》\"')\]]*|\.(?=\s)[\"')\]]*|\n)\s*")


def chunk_split(*, chunk: Chunk, at: Sequence[int] = (), texts: Sequence[str] = ()) -> list[Chunk]:
    """Makes several chunks of one, which together have its text, and returns them; the first has the chunk's row.

    Parts begin at offsets in its text, in characters, or have the texts given, which differ from it in white space at
    most. Each question goes to the part that it has most in common with, and a curator's keywords to the parts that
    hold them. Each has all regions until its document is re-chunked, since which are whose is not stored. Re-chunking
    the document leaves the parts as they are. Raises Rejected where a part would be empty or the texts are another text,
    and as `chunk_update`.
    """
    places = _places(chunk.text, at) if at else _places_of_texts(chunk.text, texts)
    if len(places) >= MOST_PARTS:
        raise Rejected("too_many_parts", _("A chunk is split into at most %(most)d parts."), most=MOST_PARTS)
    parts = [_part(chunk, text) for text in _pieces(chunk.text, places)]
    cut = chunk.cut_text or chunk.text
    cut_places = _cut_places(chunk, places) if chunk.cut_text else places
    for part, piece in zip(parts, _pieces(cut, cut_places), strict=True):
        part.cut_text = "" if piece == part.text else piece
    _share_spans(chunk, parts, [0, *cut_places, len(cut)])
    share_questions(chunk, parts)
    share_pictures(chunk, parts)
    for part in parts[1:]:
        part.pk = None
    replace_chunks(chunk.document, [chunk], parts)
    return parts


def sentence_starts(text: str) -> list[int]:
    """Where the sentences and lines of a text begin, but for the first: where a curator may want to split it."""
    return [match.end() for match in _SENTENCE_END.finditer(text) if text[match.end() :].strip()]


def _places(text: str, at: Sequence[int]) -> list[int]:
    places = sorted(set(at))
    pieces = _pieces(text, places) if places[0] > 0 and places[-1] < len(text) else []
    if not pieces or not all(pieces):
        raise Rejected("empty_part", _("A part would be empty: split between two words of the text."))
    return places


def _places_of_texts(text: str, texts: Sequence[str]) -> list[int]:
    letters = [squeezed(each) for each in texts]
    if len(letters) < 2 or not all(letters):
        raise Rejected("empty_part", _("Give the texts of two or more parts, none of them empty."))
    if "".join(letters) != squeezed(text):
        raise Rejected(
            "other_text", _("The parts are not the text of the chunk: change its text first, then split it.")
        )
    return [place_of(text, end) for end in accumulate(map(len, letters[:-1]))]


def _pieces(text: str, places: Sequence[int]) -> list[str]:
    return [text[start:end].strip() for start, end in pairwise([0, *places, len(text)])]


def _part(chunk: Chunk, text: str) -> Chunk:
    part = copy.copy(chunk)
    part.text, part.cut_text, part.own_cut = text, "", True
    part.questions, part.own_questions = [], False
    part.keywords = [word for word in chunk.keywords if word in text] if chunk.own_keywords else []
    part.own_keywords = bool(part.keywords)
    return part


def _share_spans(chunk: Chunk, parts: Sequence[Chunk], places: Sequence[int]) -> None:
    """Gives each part its places in the longer passage, by where it begins and ends in the text that was cut from it.

    None has any where the chunk has other text than its own places, as after a merge of parts of a table.
    """
    cut, spans = chunk.cut_text or chunk.text, chunk.parent_spans or []
    pairs = [*zip(spans[::2], spans[1::2], strict=True)]
    is_known = chunk.parent and "".join(chunk.parent.text[first:last] for first, last in pairs) == cut
    for part, (first, last) in zip(parts, pairwise(places), strict=True):
        text = cut[first:last].rstrip()
        begin, end = first + len(text) - len(text.lstrip()), first + len(text)
        part.parent_spans = [*chain(*spans_within(pairs, begin, end))] if is_known else None


def _cut_places(chunk: Chunk, places: Sequence[int]) -> list[int]:
    """Where the text that was cut from the document is split, so that each part has what it was there.

    A curator's addition was nothing there: it gets a character of its neighbour, by which the next cut knows it.
    """
    letters = squeezed(chunk.cut_text)
    count = len(places) + 1
    if len(letters) < count:
        raise Rejected(
            "too_many_parts", _("The document’s own text is too short for so many parts: split it into fewer.")
        )
    moved = [moved_place(chunk.text, chunk.cut_text, place) for place in places]
    ends, before = list[int](), 0
    for position, place in enumerate(moved, start=1):
        before = min(max(len(squeezed(chunk.cut_text[:place])), before + 1), len(letters) - count + position)
        ends.append(before)
    return [place_of(chunk.cut_text, end) for end in ends]
