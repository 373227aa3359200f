"""What the page of a document shows of its file: pages as pictures, or text; made when it is first asked for, and kept."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

import msgspec
from django.conf import settings
from django.core.cache import cache
from django.core.files.storage import default_storage
from django.db.models.fields.files import FieldFile
from django.http import HttpResponse
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.base.errors import NotVisible, Rejected
from kb.base.files import delete_folder, local_file, note_use
from kb.content.models import Document, preview_wanted, previews_folder
from kb.ingest.formats.pdf.pages import PageImage, PageSizes
from kb.ingest.parser import office
from kb.ingest.parser.office import PRESENTATIONS, OfficeLimits
from kb.ingest.parser.parse import READERS
from kb.ingest.parser.parsed import MESSAGES, OFFICE_FORMATS, ParseError
from kb.ingest.parser.sandbox import Limits, run_job
from kb.ingest.parser.structure import Structure
from kb.ingest.services.parsing import limits as parser_limits, reading_of
from kb.ingest.services.pictures import image_response, is_picture
from kb.ingest.services.preview_store import preview_read, preview_write

T = TypeVar("T")
Read = TypeVar("Read")

# Pictures are made in these widths, in pixels, so that few are kept.
WIDTHS: Final = (640, 1280, 1920)
USUAL_WIDTH: Final = 1280
_SECONDS: Final = 20.0  # that one page, or the text of a file, may take while somebody waits
_MOST_OUTPUT: Final = 16 * 1024**2
_AGAIN_SECONDS: Final = 3_600  # after which what has failed is tried once more
_WANTED_SECONDS: Final = 180
# So many children of this process draw at once, and the others wait for their turn.
_TURNS: Final = threading.BoundedSemaphore(2)
_PATIENCE_SECONDS: Final = 30.0
# Those whose turn it is and those who wait for it: no file keeps all threads of a server from everything else.
_PLACES: Final = threading.BoundedSemaphore(4)

_EXTENSIONS: Final = {
    **{mime: f".{kind}" for kind, (mime, _reader) in READERS.items()},
    **{found.mime: extension for extension, found in OFFICE_FORMATS.items()},
}


class Shown(StrEnum):
    """How the file of a document is shown; nothing: it has none."""

    PAGES = "pages"
    SLIDES = "slides"
    TEXT = "text"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a preview could not be made; `at` is in seconds since 1970."""

    code: str
    params: dict[str, str | int]
    at: float


def extension_of(document: Document) -> str:
    """Of a document's format, in small letters, with the dot: by its content where that is known, else by its name."""
    return _EXTENSIONS.get(document.mime) or PurePath(document.source).suffix.lower()


def shown_as(document: Document) -> Shown:
    extension = extension_of(document)
    if not document.file:
        return Shown.NOTHING
    if extension == ".pdf":
        return Shown.PAGES
    if extension in PRESENTATIONS and office.draws_slides():
        return Shown.SLIDES
    return Shown.TEXT


def is_pending(error: Rejected) -> bool:
    """Whether a preview is being made by a worker, or waits for its turn."""
    return error.code == "preview_pending"


def page_sizes(document: Document) -> PageSizes:
    """The pages of a document that has some; raises ParseError, NotVisible, and Rejected where they are not there yet."""

    def read() -> bytes:
        with _pages_file(document) as path:
            return _encoded(PageSizes, run_job("page_sizes", path, limits=_limits()))

    return msgspec.json.decode(_kept(document, "sizes.json", read), type=PageSizes)


def page_image(document: Document, page: int, width: int = USUAL_WIDTH) -> bytes:
    """A page, from 1, as WebP in the next of WIDTHS; raises as `page_sizes`."""
    width = next((each for each in WIDTHS if each >= width), WIDTHS[-1])
    count = page_sizes(document).count
    if not 1 <= page <= count:
        raise ParseError("no_such_page", page=page, pages=count)

    def draw() -> bytes:
        with _pages_file(document) as path:
            answer = run_job("page_image", path, limits=_limits(), page=page, width=width)
        image = msgspec.json.decode(_encoded(PageImage, answer), type=PageImage)
        if not is_picture(image.data, "image/webp"):
            raise ParseError("parser_crashed")
        return image.data

    return _kept(document, f"{page}-{width}.webp", draw)


def structure_of(document: Document) -> Structure:
    """The text of a document's file; raises as `page_sizes`."""

    def read() -> bytes:
        with _own_file(document) as path:
            return _read_structure(document, path)

    name = _structure_name(document)
    if extension_of(document) in OFFICE_FORMATS and not _is_there(document, name):
        _want(document, name)
    return msgspec.json.decode(_kept(document, name, read), type=Structure)


def preview_prepare(document_id: int) -> None:
    """Has LibreOffice draw the slides of a presentation, or convert a document whose text is to be shown.

    What it cannot is noted, and shown in its place.
    """
    document = Document.objects.select_related("knowledge_base").filter(pk=document_id).first()
    if document is None:
        return
    limits = OfficeLimits(settings.PARSE_MEMORY_BYTES, settings.PARSE_SECONDS)
    kind = extension_of(document)

    def draw() -> bytes:
        with _own_file(document) as path, office.drawn_slides(path, kind, limits) as made:
            return made.read_bytes()

    def convert() -> bytes:
        with _own_file(document) as path, office.converted(path, kind, limits) as made:
            return _read_structure(document, made)

    with suppress(ParseError, NotVisible):  # the page says it
        if shown_as(document) == Shown.SLIDES:
            _kept(document, _SLIDES, draw)
            return
    with suppress(ParseError, NotVisible):
        if kind in OFFICE_FORMATS:
            _kept(document, _structure_name(document), convert)


def page_response(principal: Principal, document_id: int, page: int, width: int, etag: str = "") -> HttpResponse:
    """The picture of a page for who may see its document, or 304 for a caller that has it.

    Raises NotVisible where there is none for this principal, and Rejected where it cannot be drawn, or not yet.
    """
    document = Document.objects.visible_to(principal).select_related("knowledge_base").filter(pk=document_id).first()
    if document is None:
        raise NotVisible(_("There is no document with this id."))
    if shown_as(document) not in (Shown.PAGES, Shown.SLIDES):
        raise NotVisible(_("This document has no pages that can be drawn."))

    def drawn() -> bytes:
        try:
            return page_image(document, page, width)
        except ParseError as error:
            if error.code == "no_such_page":
                raise NotVisible(reason_of(error)) from error
            raise Rejected("page_unreadable", reason_of(error)) from error

    return image_response(drawn, mime="image/webp", tag=f"{document.sha256[:32]}-{page}-{width}", etag=etag)


def reason_of(error: ParseError) -> str:
    """Why a file, or a page of it, cannot be shown, in the reader's language."""
    return _(MESSAGES[error.code]).format(**error.params)


_SLIDES: Final = "slides.pdf"


def _structure_name(document: Document) -> str:
    """By what the knowledge base has read of its files, which it may change."""
    return "-".join(["text", *reading_of(document.knowledge_base).word_parts]) + ".json"


def _read_structure(document: Document, path: Path) -> bytes:
    reading = asdict(reading_of(document.knowledge_base))
    filename = document.source if path.suffix == PurePath(document.source).suffix else path.name
    return _encoded(Structure, run_job("structure", path, limits=_limits(), filename=filename, reading=reading))


def _limits() -> Limits:
    most = parser_limits()
    return Limits(most.memory_bytes, min(_SECONDS, most.seconds), _MOST_OUTPUT)


def _encoded(shape: type[Any], answer: Any) -> bytes:
    """What a child has answered, whose word is not trusted, as JSON of a shape; raises ParseError."""
    try:
        return msgspec.json.encode(msgspec.convert(answer, shape))
    except msgspec.ValidationError as error:
        raise ParseError("parser_crashed") from error


@contextmanager
def _own_file(document: Document) -> Any:
    gone = _("This document has no file.")
    if not document.file:
        raise NotVisible(gone)
    try:
        with local_file(document.file) as path:
            yield path
    except FileNotFoundError as error:
        raise NotVisible(gone) from error


@contextmanager
def _pages_file(document: Document) -> Any:
    """The PDF whose pages are shown."""
    if shown_as(document) == Shown.PAGES:
        with _own_file(document) as path:
            yield path
        return
    if not _is_there(document, _SLIDES):
        _want(document, _SLIDES)
    note_use(_place(document, _SLIDES))
    with local_file(FieldFile(document, Document._meta.get_field("file"), _place(document, _SLIDES))) as path:
        yield path


def _want(document: Document, name: str) -> None:
    """Has a worker make a preview, once for a while; raises ParseError where that has failed, else Rejected."""
    _raise_failure(_place(document, name))
    if cache.add(f"preview:{document.pk}:{name}", 1, _WANTED_SECONDS):
        preview_wanted.send(Document, document_id=document.pk)
    raise Rejected("preview_pending", _("A worker is preparing this: try again in a moment."))


def _place(document: Document, name: str) -> str:
    """By the bytes of the file, so that no preview is that of a former one."""
    return f"{previews_folder(document)}/{document.sha256}/{name}"


def _is_there(document: Document, name: str) -> bool:
    return default_storage.exists(_place(document, name))


def _kept(document: Document, name: str, make: Callable[[], bytes]) -> bytes:
    """What was made under a name before, or is made now, one after the other; what cannot be made costs its limits once."""
    place = _place(document, name)
    if (data := preview_read(place)) is not None:
        return data
    _raise_failure(place)
    try:
        with _turn():
            if (data := preview_read(place)) is not None:
                return data
            data = make()
    except ParseError as error:
        _write(document, f"{place}.failed", msgspec.json.encode(_Failure(error.code, error.params, time.time())))
        raise
    _write(document, place, data)
    return data


@contextmanager
def _turn() -> Iterator[None]:
    """Waits for a turn to draw; Rejected where others wait for one already, or where it takes too long."""
    busy = Rejected("preview_pending", _("The server is drawing other pages just now: try again in a moment."))
    if not _PLACES.acquire(blocking=False):
        raise busy
    try:
        if not _TURNS.acquire(timeout=_PATIENCE_SECONDS):
            raise busy
        try:
            yield
        finally:
            _TURNS.release()
    finally:
        _PLACES.release()


def _write(document: Document, place: str, data: bytes) -> None:
    preview_write(place, data)
    if not Document.objects.filter(pk=document.pk).exists():  # deleted meanwhile
        delete_folder(previews_folder(document))


def _raise_failure(place: str) -> None:
    noted = preview_read(f"{place}.failed")
    if noted is None:
        return
    failure = msgspec.json.decode(noted, type=_Failure)
    if time.time() - failure.at < _AGAIN_SECONDS:
        raise ParseError(failure.code, **failure.params)
