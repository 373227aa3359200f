"""A document as office programs write it: DOCX, PPTX and XLSX, of which LibreOffice makes ODT and PDF."""

import subprocess
from pathlib import Path

import docx
import openpyxl
import pptx
from docx.document import Document as Docx
from openpyxl.styles import Border, Side
from pptx.util import Cm, Pt

from tests.quality.parsing.documents import Block, Document, Form, Heading, Items, Table, lines_of

SECONDS = 120


def convert(file: Path, extension: str) -> Path:
    """What LibreOffice makes of a file, beside it; with a profile of its own, so that no other one is in the way."""
    profile = (file.parent / "profile").as_uri()
    subprocess.run(
        [
            "soffice",
            f"-env:UserInstallation={profile}",
            "--headless",
            "--convert-to",
            extension,
            "--outdir",
            file.parent,
            file,
        ],
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )
    return file.with_suffix(f".{extension}")


def write_docx(document: Document, file: Path) -> None:
    made = docx.Document()
    for block in document.blocks:
        _into_docx(made, block)
    section = made.sections[0]
    for part, text in ((section.header, document.header), (section.footer, document.footer)):
        if text:
            _with_page_number(part.paragraphs[0], text)
    made.save(file)


def _into_docx(made: Docx, block: Block) -> None:
    match block:
        case Heading(level, text):
            made.add_heading(text, level)
        case Items(texts, is_numbered):
            for text in texts:
                made.add_paragraph(text, style="List Number" if is_numbered else "List Bullet")
        case Table():
            _add_table(made, block)
        case Form(fields):
            for name, value in fields:
                made.add_paragraph(f"{name}\t{value}")
        case _:
            for line in lines_of(block):
                made.add_paragraph(line)


def _add_table(made: Docx, block: Table) -> None:
    if block.caption:
        made.add_paragraph(block.caption)
    table = made.add_table(len(block.rows), len(block.rows[0]), style="Table Grid" if block.is_ruled else None)
    for number, row in enumerate(block.rows):
        for column, text in enumerate(row):
            table.cell(number, column).text = text
    for (row, column), (height, width) in block.merged.items():
        cell = table.cell(row, column).merge(table.cell(row + height - 1, column + width - 1))
        cell.text = block.rows[row][column]


def _with_page_number(paragraph, text: str) -> None:
    """The text with Word's own field for the number of the page."""
    before, is_numbered, after = text.partition("{page}")
    paragraph.add_run(before)
    if is_numbered:
        field = docx.oxml.OxmlElement("w:fldSimple")
        field.set(docx.oxml.ns.qn("w:instr"), "PAGE")
        paragraph._p.append(field)
        paragraph.add_run(after)


def write_pptx(document: Document, file: Path) -> None:
    """A slide for each heading, with what follows it in one box, and tables on slides of their own."""
    made = pptx.Presentation()
    slide = box = None
    for block in document.blocks:
        if isinstance(block, Heading) or slide is None:
            slide = made.slides.add_slide(made.slide_layouts[5])
            slide.shapes.title.text = block.text if isinstance(block, Heading) else ""
            box = slide.shapes.add_textbox(Cm(1.5), Cm(4.5), Cm(22), Cm(13)).text_frame
            box.word_wrap = True
            if isinstance(block, Heading):
                continue
        if isinstance(block, Table):
            table = slide.shapes.add_table(len(block.rows), len(block.rows[0]), Cm(1.5), Cm(5), Cm(22), Cm(8)).table
            for number, row in enumerate(block.rows):
                for column, text in enumerate(row):
                    table.cell(number, column).text = text
            continue
        for text in getattr(block, "texts", None) or [getattr(block, "text", "") or getattr(block, "caption", "")]:
            paragraph = box.paragraphs[-1] if not box.text else box.add_paragraph()
            paragraph.text, paragraph.font.size = text, Pt(14)
    made.save(file)


def write_xlsx(document: Document, file: Path) -> None:
    """A sheet for each table; its caption stands above it, two rows up."""
    made = openpyxl.Workbook()
    made.remove(made.active)
    side = Side(style="thin")
    for number, table in enumerate(document.tables, start=1):
        sheet = made.create_sheet(f"Sheet{number}")
        sheet.page_setup.orientation = "landscape"
        sheet.page_setup.fitToWidth, sheet.page_setup.fitToHeight = 1, 0
        sheet.sheet_properties.pageSetUpPr = openpyxl.worksheet.properties.PageSetupProperties(fitToPage=True)
        sheet.cell(1, 1, table.caption)
        for row, texts in enumerate(table.rows, start=3):
            for column, text in enumerate(texts, start=1):
                cell = sheet.cell(row, column, text)
                cell.border = Border(side, side, side, side)
        for column in range(1, len(table.rows[0]) + 1):
            sheet.column_dimensions[openpyxl.utils.get_column_letter(column)].width = 28
    made.save(file)
