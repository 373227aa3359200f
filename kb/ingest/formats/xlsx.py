"""Excel workbooks by openpyxl: sheet by sheet, rows as records with their header."""

import io
import warnings
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any

import openpyxl
from openpyxl.utils.exceptions import InvalidFileException

from kb.base.findings import Remark, RemarkCode
from kb.ingest.formats import records
from kb.ingest.formats.package import checked_package
from kb.ingest.parser.parsed import ParsedDocument, ParseError

# Excel's own limit; a row may number itself far beyond, and openpyxl fills the gap.
_MAX_ROWS = 1_048_576


def read(data: bytes) -> ParsedDocument:
    with checked_package(data, "XLSX", InvalidFileException), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and extensions that hold no text
        return _read(openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True))


def _read(workbook: Any) -> ParsedDocument:
    visible = [sheet for sheet in workbook.worksheets if sheet.sheet_state == "visible"]
    hidden = [sheet.title for sheet in workbook.worksheets if sheet.sheet_state != "visible"]
    sections = tuple(section for sheet in visible for section in records.sections(_rows(sheet), (sheet.title,)))
    remarks = (Remark(RemarkCode.HIDDEN_LEFT_OUT, {"names": ", ".join(hidden)}),) if hidden else ()
    return ParsedDocument(str(workbook.properties.title or ""), sections, remarks)


def _rows(sheet: Any) -> Iterator[list[str]]:
    sheet.reset_dimensions()  # what a sheet declares is not believed
    for number, row in enumerate(sheet.iter_rows()):
        if number == _MAX_ROWS:
            raise ParseError("damaged_file", format="XLSX")
        yield [_text(cell) for cell in row]


def _text(cell: Any) -> str:
    """A value as the sheet shows it: whole numbers without a point, percentages, dates without midnight."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        return _number(value, str(cell.number_format or ""))
    if isinstance(value, datetime):
        return value.isoformat(" ", "minutes") if value.time() != time() else value.date().isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value)


def _number(value: float, number_format: str) -> str:
    if "%" in number_format:
        return f"{value * 100:.10g}%"
    return str(value) if isinstance(value, int) else f"{value:.15g}"
