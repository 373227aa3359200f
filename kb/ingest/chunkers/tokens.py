"""Fixed numbers of the embedding model's own tokens, whatever the text says there."""

from collections.abc import Iterator

from kb.ingest.chunkers.drafts import ChunkDraft, ChunkSettings, approximate_token_ends
from kb.ingest.chunkers.passages import by_page
from kb.ingest.parser.parsed import ParsedDocument

# A tokenizer keeps much more of a text than the text itself, so a long one is read in pieces.
_READ_AT_ONCE = 50_000
# Scripts without spaces between words: a boundary between two of their characters divides no word that is marked as one.
_FIRST_CJK = "\u2e80"


def split_by_tokens(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """No chunk crosses a heading or a page, or has more than settings.size tokens; words stay whole."""
    drafts: list[ChunkDraft] = []
    for section in by_page(document):
        for text in _windows(section.text, settings):
            tokens = settings.token_counter(text)
            drafts.append(ChunkDraft(text, len(drafts), section.page, section.heading_path, tokens))
    return drafts


def _windows(text: str, settings: ChunkSettings) -> Iterator[str]:
    token_ends = settings.token_ends or approximate_token_ends
    begin = 0
    while begin < len(text):
        piece = text[begin : begin + _READ_AT_ONCE]
        is_last = begin + len(piece) == len(text)
        ends = list(token_ends(piece))
        first = 0
        while first < len(ends):
            last = min(first + settings.size, len(ends))
            if last == len(ends) and not is_last and first:
                break  # read on from here, so that the window is filled
            start = ends[first - 1] if first else 0
            last = _last_token(piece, ends, first, last, settings)
            if window := piece[start : ends[last - 1] if last < len(ends) else len(piece)].strip():
                yield window
            if last == len(ends):
                first = last
                break
            first = _first_token(piece, ends, max(first + 1, last - settings.overlap), last)
        # Where a piece was read to its end there is nothing left to read again.
        begin += ends[first - 1] if 0 < first < len(ends) else len(piece)


def _last_token(text: str, ends: list[int], first: int, last: int, settings: ChunkSettings) -> int:
    """The end of a window: before a word that it would divide, and by the count that its text has by itself."""
    start = ends[first - 1] if first else 0
    if last < len(ends):
        whole = last
        while whole > first + settings.size // 2 and _divides_word(text, ends[whole - 1]):
            whole -= 1
        last = last if _divides_word(text, ends[whole - 1]) else whole
    while last > first + 1 and settings.token_counter(text[start : ends[last - 1]].strip()) > settings.size:
        last -= 1
    return last


def _first_token(text: str, ends: list[int], first: int, last: int) -> int:
    """The beginning of an overlap: behind a word that it would divide."""
    while first < last and _divides_word(text, ends[first - 1]):
        first += 1
    return first


def _divides_word(text: str, place: int) -> bool:
    around = text[place - 1 : place + 1]
    return len(around) == 2 and all(each.isalnum() and each < _FIRST_CJK for each in around)
