"""PowerPoint by python-pptx: a section a slide, which counts as a page, under its title, with tables and notes."""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pptx
from pptx.enum.shapes import PP_PLACEHOLDER
from pptx.exc import PythonPptxError

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats.outline import Block, markdown_table, section_of
from kb.ingest.formats.package import checked_package
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Region, Section

# python-pptx's shapes have no types that mypy reads.
Shape = Any

_MAX_GROUPS = 50
# They repeat on every slide.
_LEFT_OUT = (PP_PLACEHOLDER.SLIDE_NUMBER, PP_PLACEHOLDER.DATE, PP_PLACEHOLDER.FOOTER, PP_PLACEHOLDER.HEADER)


def read(data: bytes) -> ParsedDocument:
    with checked_package(data, "PPTX", PythonPptxError):
        presentation = pptx.Presentation(io.BytesIO(data))
        slides = list(enumerate(presentation.slides, start=1))
        hidden = [number for number, slide in slides if slide.element.get("show") in ("0", "false")]
        size = (presentation.slide_width or 1, presentation.slide_height or 1)
        sections = tuple(_section(slide, number, size) for number, slide in slides if number not in hidden)
        title = str(presentation.core_properties.title or "")
    remarks = (Remark(RemarkCode.HIDDEN_LEFT_OUT, {"names": ", ".join(map(str, hidden))}),) if hidden else ()
    first = next((section.heading_path[0] for section in sections if section.heading_path), "")
    # The template's own name of python-pptx and PowerPoint says nothing.
    return ParsedDocument("" if title == "PowerPoint Presentation" else title or first, sections, remarks)


def _section(slide: Any, number: int, size: tuple[int, int]) -> Section:
    title = slide.shapes.title
    heading = " ".join(title.text_frame.text.split()) if title is not None else ""
    frame = _Frame(number, *size)
    blocks = [Block(heading, frame.regions(title)), *_blocks(slide.shapes, title, frame)]
    if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame) is not None:
        blocks.append(Block(_lines(notes.text)))
    return section_of([block for block in blocks if block.text], number, (heading,) if heading else ())


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the places of shapes are counted by: the slide, or within a group its own unit and origin."""

    slide: int
    width: float
    height: float
    left: float = 0.0
    top: float = 0.0

    def regions(self, shape: Shape | None) -> tuple[Region, ...]:
        """Where a shape stands; none where it says nothing of that."""
        if shape is None or None in (shape.left, shape.top, shape.width, shape.height):
            return ()
        left, top = (shape.left - self.left) / self.width, (shape.top - self.top) / self.height
        right, bottom = left + shape.width / self.width, top + shape.height / self.height
        left, top, right, bottom = (min(max(side, 0.0), 1.0) for side in (left, top, right, bottom))
        return (Region(page=self.slide, box=(left, top, right, bottom)),)

    def within(self, group: Shape) -> "_Frame":
        """Of the shapes of a group, which has a scale of its own."""
        own = group._element.grpSpPr.xfrm
        if own is None or None in (own.off, own.ext, own.chOff, own.chExt):
            return self
        if not (group.width and group.height and own.chExt.cx and own.chExt.cy):
            return self
        across, down = own.chExt.cx / group.width, own.chExt.cy / group.height
        left = own.chOff.x - (group.left - self.left) * across
        top = own.chOff.y - (group.top - self.top) * down
        return _Frame(self.slide, self.width * across, self.height * down, left, top)


def _blocks(shapes: Iterable[Shape], title: Shape | None, frame: _Frame, depth: int = 0) -> Iterator[Block]:
    for shape in shapes:
        if title is not None and shape.shape_id == title.shape_id:
            continue
        if shape.is_placeholder and shape.placeholder_format.type in _LEFT_OUT:
            continue
        if hasattr(shape, "shapes"):
            if depth == _MAX_GROUPS:
                raise ParseError("nested_too_deeply")
            yield from _blocks(shape.shapes, title, frame.within(shape), depth + 1)
        elif shape.has_text_frame:
            yield Block(_lines(shape.text_frame.text), frame.regions(shape))
        elif getattr(shape, "has_table", False):
            yield Block(markdown_table(_rows(shape.table)), frame.regions(shape))


def _rows(table: Any) -> list[list[str]]:
    """The texts of the cells, that of a merged one in each place that it covers."""
    rows = [[" ".join(cell.text_frame.text.split()) for cell in row.cells] for row in table.rows]
    for number, row in enumerate(table.rows):
        for column, cell in enumerate(row.cells):
            if cell.is_merge_origin:
                for covered in rows[number : number + cell.span_height]:
                    covered[column : column + cell.span_width] = [rows[number][column]] * len(
                        covered[column : column + cell.span_width]
                    )
    return rows


def _lines(text: str) -> str:
    """A slide's lines; PowerPoint breaks them with a vertical tab."""
    return "\n".join(filter(None, (line.strip() for line in text.replace("\v", "\n").split("\n"))))
