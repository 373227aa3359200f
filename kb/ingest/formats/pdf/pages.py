"""Pages of a PDF as pictures, each by itself, for those who read a document beside its chunks."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import msgspec
import pypdfium2
import pypdfium2.raw as pdfium

from kb.ingest.parser.parsed import ParseError

MOST_PAGES: Final = 5_000
# The picture of a page that would be larger is narrower than asked for.
_MOST_PIXELS: Final = 8_000_000
_MOST_SIDE: Final = 10_000
_QUALITY: Final = 80


@dataclass(frozen=True, slots=True)
class PageSizes:
    """Width and height of the first pages, in points; `count` is that of all."""

    count: int
    sizes: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class PageImage:
    """A page as WebP; width and height are in pixels."""

    data: bytes
    width: int
    height: int


def sizes_job(file: BinaryIO) -> Any:
    """How many pages a PDF has, and how large they are, without reading any; raises ParseError."""
    with _opened(file) as document:
        count = len(document)
        sizes = tuple(document.get_page_size(number) for number in range(min(count, MOST_PAGES)))
    return msgspec.to_builtins(PageSizes(count, sizes))


def render_job(file: BinaryIO, page: int, width: int) -> Any:
    """Draws a page, which counts from 1, so many pixels wide, and reads no other; raises ParseError."""
    with _opened(file) as document:
        if not 1 <= page <= len(document):
            raise ParseError("no_such_page", page=page, pages=len(document))
        sheet = document[page - 1]
        wide, high = sheet.get_size()
        if not (math.isfinite(wide * high) and wide > 0 and high > 0):
            raise ParseError("damaged_file", format="PDF")
        scale = min(width / wide, _MOST_SIDE / max(wide, high), math.sqrt(_MOST_PIXELS / (wide * high)))
        picture = sheet.render(scale=scale, may_draw_forms=False).to_pil().convert("RGB")
    stream = io.BytesIO()
    picture.save(stream, "WEBP", quality=_QUALITY, method=2)
    return msgspec.to_builtins(PageImage(stream.getvalue(), *picture.size))


@contextmanager
def _opened(file: BinaryIO) -> Iterator[pypdfium2.PdfDocument]:
    try:
        with pypdfium2.PdfDocument(file) as document:
            yield document
    except pypdfium2.PdfiumError as error:
        is_locked = getattr(error, "err_code", None) == pdfium.FPDF_ERR_PASSWORD
        raise ParseError("protected" if is_locked else "damaged_file", format="PDF") from error
