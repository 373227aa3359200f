"""One chunk becomes several."""

import copy
import re
from collections.abc import Sequence
from itertools import pairwise

from django.utils.translation import gettext as _

from kb.base.errors import Rejected
from kb.content.models.documents import Chunk
from kb.ingest.chunkers.joining import place_of, squeezed
from kb.ingest.chunkers.matching import moved_place
from kb.ingest.services.chunk_work.replacing import replace_chunks
from kb.ingest.services.rechunk.carrying import share_questions

MOST_PARTS = 100
_SENTENCE_END = re.compile(r"(?:[。！？!?；;…]+[”’」』）》\"')\]]*|\.(?=\s)[\"')\]]*|\n)\s*")


def chunk_split(*, chunk: Chunk, at: Sequence[int] = (), texts: Sequence[str] = ()) -> list[Chunk]:
    """Makes several chunks of one; together they have its text.

    Each question goes to the part that it has most in common with, and a curator's keywords to the parts that hold
    them. Cutting the document anew leaves the parts as they are.

    Args:
        chunk: with its document and knowledge base.
        at: offsets in its text, in characters, where parts begin; or
        texts: of the parts, in their order, which differ from its text in white space at most.

    Returns:
        The parts; the first has the chunk's row.

    Raises:
        Rejected: there is no part on one side of an offset, the texts are another text, the model is out of reach, or
            somebody was faster; nothing was changed.
        NotVisible: the chunk is gone.
        Superseded: the knowledge base moved to another model meanwhile; nothing was changed.
    """
    places = _places(chunk.text, at) if at else _places_of_texts(chunk.text, texts)
    parts = [_part(chunk, text) for text in _pieces(chunk.text, places)]
    if chunk.cut_text:
        for part, cut in zip(parts, _cut_pieces(chunk, places), strict=True):
            part.cut_text = "" if cut == part.text else cut
    share_questions(chunk, parts)
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
    return _bounded(places)


def _places_of_texts(text: str, texts: Sequence[str]) -> list[int]:
    letters = [squeezed(each) for each in texts]
    if len(letters) < 2 or not all(letters):
        raise Rejected("empty_part", _("Give the texts of two or more parts, none of them empty."))
    if "".join(letters) != squeezed(text):
        raise Rejected(
            "other_text", _("The parts are not the text of the chunk: change its text first, then split it.")
        )
    ends = [sum(map(len, letters[:count])) for count in range(1, len(letters))]
    return _bounded([place_of(text, end) for end in ends])


def _bounded(places: list[int]) -> list[int]:
    if len(places) >= MOST_PARTS:
        raise Rejected("too_many_parts", _("A chunk is split into at most %(most)d parts.") % {"most": MOST_PARTS})
    return places


def _pieces(text: str, places: Sequence[int]) -> list[str]:
    return [text[start:end].strip() for start, end in pairwise([0, *places, len(text)])]


def _part(chunk: Chunk, text: str) -> Chunk:
    part = copy.copy(chunk)
    part.text, part.cut_text, part.own_cut = text, "", True
    part.questions, part.own_questions = [], False
    part.keywords = [word for word in chunk.keywords if word in text] if chunk.own_keywords else []
    part.own_keywords = bool(part.keywords)
    return part


def _cut_pieces(chunk: Chunk, places: Sequence[int]) -> list[str]:
    """What each part was in the document.

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
    return _pieces(chunk.cut_text, [place_of(chunk.cut_text, end) for end in ends])
