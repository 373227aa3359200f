"""DoclingDocument, the JSON of Docling, as a parsed document; runs in the sandbox, since a server's word is not trusted.

Source: `docling_core.types.doc`. Only what is used is declared; another version may add to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import msgspec

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats.outline import join_lines, markdown_table
from kb.ingest.parser.parse import READERS, completed
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Region, Section, clean

_FURNITURE: Final = frozenset({"page_header", "page_footer", "empty_value"})
_SHOWN_LAYERS: Final = frozenset({"body", "notes"})  # not headers and footers, backgrounds, or what nobody sees
_LIST_INDENT: Final = "  "
_MOST_CELLS: Final = 1_000_000
_MOST_DEPTH: Final = 50
_MOST_HEADINGS: Final = 6


class _Ref(msgspec.Struct):
    ref: str = msgspec.field(name="$ref")


class _Box(msgspec.Struct):
    l: float  # noqa: E741 - Docling's own names
    t: float
    r: float
    b: float
    coord_origin: str = "TOPLEFT"


class _Prov(msgspec.Struct):
    page_no: int
    bbox: _Box | None = None


class _Size(msgspec.Struct):
    width: float
    height: float


class _Page(msgspec.Struct):
    size: _Size | None = None


class _Cell(msgspec.Struct):
    text: str = ""
    start_row_offset_idx: int = 0
    end_row_offset_idx: int = 0
    start_col_offset_idx: int = 0
    end_col_offset_idx: int = 0
    column_header: bool = False


class _Grid(msgspec.Struct):
    num_rows: int = 0
    num_cols: int = 0
    table_cells: list[_Cell] = []


class _Item(msgspec.Struct):
    """A text, table, picture or group: `label` says what it is, `children` come after it in reading order."""

    label: str = ""
    content_layer: str = "body"
    children: list[_Ref] = []
    prov: list[_Prov] = []
    captions: list[_Ref] = []
    text: str = ""
    level: int = 1
    enumerated: bool = False
    marker: str = ""
    data: _Grid | None = None


class _Document(msgspec.Struct):
    body: _Item
    groups: list[_Item] = []
    texts: list[_Item] = []
    tables: list[_Item] = []
    pictures: list[_Item] = []
    pages: dict[str, _Page] = {}


class _Content(msgspec.Struct):
    json_content: _Document | None = None


class _Answer(msgspec.Struct):
    document: _Content | None = None
    status: str = ""


def convert_job(file: BinaryIO, filename: str, kind: str) -> Any:
    """For the sandbox: what an answer of Docling Serve says of a file of a name; `kind` is a key of READERS."""
    try:
        answer = msgspec.json.decode(file.read(), type=_Answer)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ParseError("parser_crashed") from error
    content = answer.document.json_content if answer.document else None
    if content is None or answer.status not in ("success", "partial_success"):
        raise ParseError("empty_file")
    remarks = (Remark(RemarkCode.READ_IN_PART, {"parser": "Docling Serve"}),) if answer.status != "success" else ()
    title, sections = _Reader(content).read()
    document = ParsedDocument(title, sections, remarks)
    return msgspec.to_builtins(completed(document, filename, READERS[kind][0]))


@dataclass
class _Open:
    """The section that is being filled."""

    path: tuple[str, ...]
    page: int | None = None
    text: str = ""
    regions: list[Region] = field(default_factory=list)
    has_body: bool = False


class _Reader:
    """Walks a document in reading order, each item once, whatever its references say."""

    def __init__(self, document: _Document) -> None:
        self._lists: Mapping[str, Sequence[_Item]] = {
            "groups": document.groups,
            "texts": document.texts,
            "tables": document.tables,
            "pictures": document.pictures,
        }
        self._document = document
        self._seen: set[int] = set()
        self._title = ""
        self._headings: list[tuple[int, str]] = []
        self._sections: list[Section] = []
        self._open = _Open(())

    def read(self) -> tuple[str, tuple[Section, ...]]:
        """The title, which may be blank, and the sections."""
        self._walk(self._document.body, 0, 0)
        self._close()
        return self._title, tuple(self._sections)

    def _resolved(self, refs: Sequence[_Ref]) -> Iterator[_Item]:
        """Items of references such as "#/texts/3" that were not read before; others are passed over."""
        for each in refs:
            _, _, path = each.ref.partition("#/")
            name, _, number = path.partition("/")
            items = self._lists.get(name, ())
            if number.isdecimal() and len(number) < 10 and int(number) < len(items):
                item = items[int(number)]
                if id(item) not in self._seen:
                    self._seen.add(id(item))
                    yield item

    def _walk(self, item: _Item, depth: int, list_depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise ParseError("parser_crashed")
        for child in self._resolved(item.children):
            if child.content_layer not in _SHOWN_LAYERS or child.label in _FURNITURE:
                continue
            if child.label == "inline":
                parts = list(self._resolved(child.children))
                self._add(join_lines(part.text for part in parts), next((each for each in parts if each.prov), child))
                continue
            is_list = child.label in ("list", "ordered_list")
            self._item(child, max(0, list_depth - 1))
            if child.label not in ("picture", "table", "chart"):  # whose children repeat what stands in them
                self._walk(child, depth + 1, list_depth + is_list)

    def _item(self, item: _Item, indent: int) -> None:
        if item.label == "title":
            self._title = self._title or item.text
            self._heading(0, item)
        elif item.label == "section_header":
            self._heading(max(1, min(item.level, _MOST_HEADINGS)), item)
        elif item.label == "list_item":
            mark = item.marker if item.enumerated and item.marker else "-"
            parts = [item.text, *(part.text for part in self._inline_of(item))]
            text = " ".join(filter(None, map(str.strip, parts)))
            self._add(f"{_LIST_INDENT * indent}{mark} {text}" if text else "", item, joined=True)
        elif item.data is not None:
            self._captions(item)
            self._add(markdown_table(_rows(item.data)), item)
        elif item.label in ("picture", "chart"):
            self._captions(item)
        elif item.label == "code":
            self._add(f"```\n{item.text}\n```" if item.text.strip() else "", item)
        elif item.label.startswith("checkbox_"):
            self._add(f"[{'x' if item.label == 'checkbox_selected' else ' '}] {item.text}", item, joined=True)
        else:
            self._add(item.text, item)

    def _inline_of(self, item: _Item) -> Iterator[_Item]:
        """The words of an item that are set in several ways, which Docling puts into a group of their own."""
        if item.text.strip() or not item.children:
            return
        for group in self._resolved(item.children[:1]):
            if group.label == "inline":
                yield from self._resolved(group.children)
            else:
                self._seen.discard(id(group))

    def _captions(self, item: _Item) -> None:
        for caption in self._resolved(item.captions):
            self._add(caption.text, caption)

    def _heading(self, level: int, item: _Item) -> None:
        title = " ".join(item.text.split())
        if not title:
            return
        opens_below = bool(self._headings) and level > self._headings[-1][0]
        if self._open.has_body or not opens_below:
            self._close()
        self._headings = [*(each for each in self._headings if each[0] < level), (level, title)]
        self._open.path = tuple(each for _, each in self._headings)
        self._append(title, item, "\n\n")

    def _add(self, text: str, item: _Item, *, joined: bool = False) -> None:
        text = clean(text)
        if not text.strip():
            return
        page = item.prov[0].page_no if item.prov else self._open.page
        if self._open.has_body and page != self._open.page and page is not None:
            self._close()
        self._append(text, item, "\n" if joined and self._open.has_body else "\n\n")
        self._open.has_body = True

    def _append(self, text: str, item: _Item, between: str) -> None:
        text = clean(text)
        if self._open.text:
            self._open.text += between
        region = self._region(item, len(self._open.text))
        if region:
            self._open.regions.append(region)
            self._open.page = self._open.page or region.page
        self._open.text += text

    def _region(self, item: _Item, start: int) -> Region | None:
        """Where an item stands: the page of its first part, and the box around its parts there."""
        if not item.prov or item.prov[0].page_no < 1:
            return None
        page = item.prov[0].page_no
        described = self._document.pages.get(str(page))
        size = described.size if described else None
        boxes = [each.bbox for each in item.prov if each.page_no == page and each.bbox]
        return Region(start, page, _around(boxes, size) if size and boxes else None)

    def _close(self) -> None:
        if self._open.text:
            filled = self._open
            self._sections.append(Section(filled.text, filled.page, filled.path, regions=tuple(filled.regions)))
        self._open = _Open(tuple(title for _, title in self._headings))


def _around(boxes: Sequence[_Box], size: _Size) -> tuple[float, float, float, float] | None:
    """Left, top, right and bottom as shares of the page; None where nothing of it is on the page."""
    if size.width <= 0 or size.height <= 0:
        return None
    corners = []
    for box in boxes:
        top, bottom = (box.t, box.b) if box.coord_origin == "TOPLEFT" else (size.height - box.t, size.height - box.b)
        corners.append((box.l / size.width, top / size.height, box.r / size.width, bottom / size.height))
    left, top = (min(1.0, max(0.0, min(each[side] for each in corners))) for side in (0, 1))
    right, bottom = (min(1.0, max(0.0, *(each[side] for each in corners))) for side in (2, 3))
    if not (left < right and top < bottom):
        return None
    return round(left, 4), round(top, 4), round(right, 4), round(bottom, 4)


def _rows(grid: _Grid) -> list[list[str]]:
    """A merged cell stands in each place that it covers; rows of headings over columns become one header."""
    height = min(max((cell.end_row_offset_idx for cell in grid.table_cells), default=0), max(0, grid.num_rows))
    width = min(max((cell.end_col_offset_idx for cell in grid.table_cells), default=0), max(0, grid.num_cols))
    if height * width > _MOST_CELLS:
        raise ParseError("parser_crashed")
    rows = [[""] * width for _ in range(height)]
    headers, left = 0, _MOST_CELLS
    for cell in grid.table_cells:
        first, last = max(0, cell.start_col_offset_idx), min(cell.end_col_offset_idx, width)
        for row in range(max(0, cell.start_row_offset_idx), min(cell.end_row_offset_idx, height)):
            left -= max(0, last - first)
            if left < 0:  # cells that overlap without end
                raise ParseError("parser_crashed")
            rows[row][first:last] = [cell.text] * max(0, last - first)
        # Rows of headers follow each other from the first; one further down begins no other header
        if cell.column_header and 0 <= cell.start_row_offset_idx <= headers:
            headers = max(headers, min(cell.end_row_offset_idx, height))
    if headers < 2:
        return rows
    names = [
        " / ".join(dict.fromkeys(filter(None, (row[column] for row in rows[:headers])))) for column in range(width)
    ]
    return [names, *rows[headers:]]
