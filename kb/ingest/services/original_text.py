"""The HTML of a document's text: all that comes from its file is escaped, and marked with the chunks that have it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from kb.ingest.parser.structure import BlockKind, Run
from kb.ingest.services.originals import ChunkPlace, PlacedBlock
from retrieval.types import clock

# The file names the addresses, so that they are looked at once more here.
_ADDRESS: Final = re.compile(r"(?:https?://|mailto:)\S+", re.IGNORECASE)
_TAGS: Final = {"b": "strong", "c": "code", "i": "em"}
_LOWEST_HEADING: Final = 6
_HEADINGS_ABOVE: Final = 2  # of the page itself


def html_of(blocks: Sequence[PlacedBlock], page_label: str) -> SafeString:
    """Blocks in their order, with a line where another page begins; `page_label` has a field for its number."""
    parts, page = list[SafeString](), None
    for kind, group in groupby(blocks, key=lambda each: (each.block.kind, each.block.page)):
        if kind[1] is not None and kind[1] != page:
            page = kind[1]
            parts.append(format_html('<p class="kd-page-mark">{}</p>', page_label.format(page=page)))
        parts.append(_group(kind[0], list(group)))
    return mark_safe("".join(parts))  # noqa: S308 - each part was escaped


def _group(kind: BlockKind, blocks: Sequence[PlacedBlock]) -> SafeString:
    if kind is BlockKind.ROW:
        return format_html(
            '<div class="kd-scroll" tabindex="0" role="region" aria-label="{}"><table>{}</table></div>',
            _("Table"),
            format_html_join("", "{}", ((_row(each),) for each in blocks)),
        )
    if kind is BlockKind.ITEM:
        items = ((max(0, each.block.level - 1), _time(each), next(_cells(each))) for each in blocks)
        return format_html("<ul>{}</ul>", format_html_join("", '<li style="margin-left:{}rem">{}{}</li>', items))
    return format_html_join("", "{}", ((_single(kind, each),) for each in blocks))


def _single(kind: BlockKind, placed: PlacedBlock) -> SafeString:
    content = format_html("{}{}", _time(placed), next(_cells(placed)))
    if kind is BlockKind.HEADING:
        level = min(placed.block.level + _HEADINGS_ABOVE, _LOWEST_HEADING)
        return format_html("<h{}>{}</h{}>", level, content, level)
    if kind is BlockKind.CODE:
        return format_html('<pre tabindex="0">{}</pre>', content)
    if kind is BlockKind.QUOTE:
        return format_html("<blockquote><p>{}</p></blockquote>", content)
    return format_html("<p>{}</p>", content)


def _time(placed: PlacedBlock) -> SafeString:
    seconds = placed.block.seconds
    return SafeString("") if seconds is None else format_html('<span class="kd-time">{}</span> ', clock(seconds))


def _row(placed: PlacedBlock) -> SafeString:
    """A row of a table; a record is marked as a whole, with what leads to its chunks in its first cell."""
    tag = SafeString('th scope="col"' if placed.block.is_header else "td")
    end = SafeString("th" if placed.block.is_header else "td")
    is_record = bool(placed.block.text)
    begun = (_mark(each) for each in placed.chunks if is_record and each.place.start >= placed.start)
    cells = list(_cells(placed))
    cells[0] = format_html("{}{}", mark_safe("".join(begun)), cells[0])  # noqa: S308 - each mark was escaped
    row = format_html_join("", "<{}>{}</{}>", ((tag, cell, end) for cell in cells))
    return (
        format_html('<tr data-chunks="{}">{}</tr>', _ids(placed.chunks), row)
        if is_record
        else format_html("<tr>{}</tr>", row)
    )


def _cells(placed: PlacedBlock) -> Iterator[SafeString]:
    """The cells of a block, with the places of chunks in it, which a record has as a whole."""
    place = placed.start
    is_marked = not placed.block.text and not placed.block.is_added
    edges = {edge for each in placed.chunks for edge in each.place} if is_marked else set[int]()
    for cell in placed.block.cells:
        parts = list[SafeString]()
        for run in cell:
            if not is_marked or "p" in run.marks:
                parts.append(_run(run, run.text))
                continue
            for start, text in _pieces(run.text, place, edges):
                parts.append(_piece(run, text, start, placed.chunks))
            place += sum(map(str.isalnum, run.text))
        yield mark_safe("".join(parts))  # noqa: S308 - each part was escaped


def _pieces(text: str, place: int, edges: Iterable[int]) -> Iterator[tuple[int, str]]:
    """A text cut where chunks begin and end, each piece with the place of its first letter."""
    begin = 0
    start = place
    for number, character in enumerate(text):
        if not character.isalnum():
            continue
        if place in edges and number > begin:
            yield start, text[begin:number]
            begin, start = number, place
        place += 1
    if text:
        yield start, text[begin:]


def _piece(run: Run, text: str, start: int, chunks: Sequence[ChunkPlace]) -> SafeString:
    has = [each for each in chunks if each.place.start <= start < each.place.end]
    begun = format_html_join("", "{}", ((_mark(each),) for each in has if each.place.start == start))
    if not has or not any(map(str.isalnum, text)):
        return _run(run, text)
    return format_html('{}<span data-chunks="{}">{}</span>', begun, _ids(has), _run(run, text))


def _ids(chunks: Iterable[ChunkPlace]) -> str:
    """Of those that something leads to: a passage by itself may be shown to readers who are told no ids."""
    return " ".join(str(each.chunk_id) for each in chunks if each.position is not None)


def _mark(chunk: ChunkPlace) -> SafeString:
    """The button where a chunk begins, which leads to it."""
    if chunk.position is None:
        return SafeString("")
    number = chunk.position + 1
    label = _("Show chunk %(number)s") % {"number": number}
    return format_html(
        '<button type="button" class="kd-mark" data-chunk="{}" aria-label="{}">{}</button>',
        str(chunk.chunk_id),
        label,
        number,
    )


def _run(run: Run, text: str) -> SafeString:
    shown = SafeString(escape(text))
    for mark in run.marks:
        if tag := _TAGS.get(mark):
            shown = format_html("<{}>{}</{}>", SafeString(tag), shown, SafeString(tag))
    if "p" in run.marks:
        shown = format_html('<span class="kd-alternative">{}</span>', shown)
    if run.link and _ADDRESS.fullmatch(run.link):
        shown = format_html('<a href="{}" rel="noopener nofollow noreferrer" target="_blank">{}</a>', run.link, shown)
    return shown
