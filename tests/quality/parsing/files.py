"""Makes the files of the test bed, once: the programs that do it are slow."""

import shutil
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.browser.chromium import path as path_of_chromium
from tests.quality.parsing.cases import Case
from tests.quality.parsing.html import page_of
from tests.quality.parsing.office import convert, write_docx, write_pptx, write_xlsx
from tests.quality.parsing.scan import scanned

_SWITCHES = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
_WRITERS = {"docx": write_docx, "odt": write_docx, "pptx": write_pptx, "xlsx": write_xlsx}
_EDGE = '<div style="font-size: 8px; width: 100%; text-align: center">{}</div>'


class ProgramMissing(Exception):
    """A program that makes files of the bed is not installed."""


def make(cases: Sequence[Case], folder: Path) -> Iterator[tuple[Case, Path]]:
    """Each case and its PDF, made unless it is there already; raises ProgramMissing without Chromium or LibreOffice."""
    folder.mkdir(parents=True, exist_ok=True)
    browser = path_of_chromium()
    needs_office = any(case.program != "chromium" for case in cases)
    if browser is None or (needs_office and shutil.which("soffice") is None):
        raise ProgramMissing("install chromium, libreoffice-writer, -calc and -impress, and fonts-noto-cjk")
    with sync_playwright() as playwright:
        printer = playwright.chromium.launch(executable_path=browser, args=_SWITCHES)
        for case in cases:
            file = folder / f"{case.name.replace(' ', '-')}.pdf"
            if not file.exists():
                _make(case, file, printer)
            yield case, file
        printer.close()


def _make(case: Case, file: Path, printer: Browser) -> None:
    whole = file.with_suffix(".whole.pdf")
    if case.program == "chromium":
        _print(case, whole, printer)
    else:
        source = file.with_name(f"{file.stem}.{'docx' if case.program == 'odt' else case.program}")
        _WRITERS[case.program](case.document, source)
        if case.program == "odt":
            source = convert(source, "odt")
        convert(source, "pdf").rename(whole)
    if case.scan:
        scanned(whole, file, case.scan)
        whole.unlink()
    else:
        whole.rename(file)


def _print(case: Case, file: Path, printer: Browser) -> None:
    page = printer.new_page()
    page.set_content(page_of(case.document, case.style))
    header, footer = (
        _EDGE.format(escape(edge).replace("{page}", '<span class="pageNumber"></span>')) if edge else "<span></span>"
        for edge in (case.document.header, case.document.footer)
    )
    page.pdf(
        path=file,
        prefer_css_page_size=True,
        display_header_footer=bool(case.document.header or case.document.footer),
        header_template=header,
        footer_template=footer,
    )
    page.close()
