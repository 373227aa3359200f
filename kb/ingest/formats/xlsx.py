"""Excel workbooks by openpyxl: sheet by sheet, rows as records with their header."""

import io
import warnings
from collections.abc import Iterator
from datetime import date, time, timedelta
from typing import Any

import openpyxl
from openpyxl.utils.exceptions import InvalidFileException

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats import sheet_tables
from kb.ingest.formats.number_formats import shown
from kb.ingest.formats.package import checked_package
from kb.ingest.formats.records import cleaned_cells
from kb.ingest.formats.sheet_layout import Layout, MergedCells, layout_of, shortened
from kb.ingest.formats.sheet_tables import SheetRow
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section

# Excel's own limit; a row may number itself far beyond, and openpyxl fills the gap.
_MAX_ROWS = 1_048_576


def read(data: bytes) -> ParsedDocument:
    with checked_package(data, "XLSX", InvalidFileException), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and extensions that hold no text
        return _read(openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True))


def _read(workbook: Any) -> ParsedDocument:
    sections: list[Section] = []
    hidden = [sheet.title for sheet in workbook.worksheets if sheet.sheet_state != "visible"]
    uncached: list[str] = []
    for sheet in workbook.worksheets:
        if sheet.sheet_state == "visible":
            layout = layout_of(sheet)
            columns = frozenset(column - 1 for column in layout.hidden_columns)
            sections += sheet_tables.sections(_rows(sheet, layout), (sheet.title,), columns)
            hidden += [f"{sheet.title}!{name}" for name in layout.hidden_names()]
            uncached += [f"{sheet.title}!{name}" for name in layout.uncached]
    remarks = [
        Remark(code, {"names": ", ".join(shortened(names))})
        for code, names in ((RemarkCode.HIDDEN_LEFT_OUT, hidden), (RemarkCode.FORMULAS_WITHOUT_VALUE, uncached))
        if names
    ]
    return ParsedDocument(str(workbook.properties.title or ""), tuple(sections), tuple(remarks))


def _rows(sheet: Any, layout: Layout) -> Iterator[SheetRow]:
    sheet.reset_dimensions()  # what a sheet declares is not believed
    merged = MergedCells(layout.merged)
    for index, row in enumerate(sheet.iter_rows()):
        if index == _MAX_ROWS:
            raise ParseError("damaged_file", format="XLSX")
        number = index + 1
        texts = [_text(cell, layout) for cell in row]
        is_filled = any(texts)
        if is_filled:
            merged.fill(number, texts)
        if number in layout.hidden_rows:
            continue
        for column in layout.hidden_columns:
            if column <= len(texts):
                texts[column - 1] = ""
        typed = frozenset(column for column, cell in enumerate(row) if _is_typed(cell.value))
        yield SheetRow(cleaned_cells(texts), typed, merged.at(number) if is_filled else ())


def _text(cell: Any, layout: Layout) -> str:
    """A value as the sheet shows it, with the address that it leads to; errors such as #N/A say nothing."""
    if cell.value is None or cell.data_type == "e":
        return ""
    text = shown(cell.value, str(cell.number_format or ""))
    address = layout.links.get((cell.row, cell.column)) if layout.links else None
    return f"{text} ({address})" if address and address not in text else text


def _is_typed(value: Any) -> bool:
    return isinstance(value, int | float | date | time | timedelta)
