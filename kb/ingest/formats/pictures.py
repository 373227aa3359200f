"""The pictures of one document: opened under limits, written again, each once, and read where OCR is installed."""

import base64
import hashlib
import importlib
import io
import re
import resource
import secrets
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final
from urllib.parse import unquote

from PIL import Image, ImageOps

from kb.base.findings import Remark, RemarkCode
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Picture
from kb.ingest.parser.picture_words import Marks, without_marks

_MIB: Final = 1024**2
MOST: Final = 500
MOST_BYTES: Final = 24 * _MIB
MOST_SIDE: Final = 1_600
_MOST_SOURCE_BYTES: Final = 32 * _MIB
_MOST_PIXELS: Final = 40_000_000
# Smaller ones are marks and buttons, and longer ones are lines.
_LEAST_SIDE: Final = 48
_LONGEST: Final = 20
# Differences of brightness, of 255, that nobody sees.
_FLAT: Final = 8
# A picture in so many places is a logo or a background.
_REPEATED: Final = 3
_LARGE_PNG: Final = _MIB
_FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
_MIMES: Final = {"PNG": "image/png", "JPEG": "image/jpeg"}
# What Pillow raises for files that are not what they say, or are cut off.
_DAMAGE: Final = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    SyntaxError,
    TypeError,
    ValueError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
# Shares of the time that a document may take, until which pictures are opened and then read.
_TIME_TO_OPEN: Final = 0.4
_TIME_TO_READ: Final = 0.6
# Letters on smaller ones are not read.
_LEAST_READ: Final = 100
_MOST_RECOGNISED: Final = 2_000
_MOST_ALTERNATIVE: Final = 2_000
# What programs write where nobody has written anything.
_NO_WORDS: Final = re.compile(
    r"[^/\\]{1,100}\.(?:bmp|emf|gif|jpe?g|png|svg|tiff?|webp|wmf)|(?:image|img|picture|graphic|图片|图像|圖片)[ _-]?\d*",
    re.IGNORECASE,
)


class _Refused(Exception):
    """A picture is left out; the code is that of the remark, None for decoration, which needs none."""

    def __init__(self, code: RemarkCode | None) -> None:
        self.code = code


@dataclass(slots=True)
class Gallery:
    """Takes the pictures of a document as its reader comes by them.

    A reader puts the mark that it gets into its text, where the picture stands, and gives what it has made of the file to
    `finished`.
    """

    _marks: Marks = field(default_factory=lambda: Marks(secrets.token_hex(4)))
    _seen: list[Picture] = field(default_factory=list)
    _numbers: dict[bytes, int | None] = field(default_factory=dict)  # by digest, of files and of what was made of them
    _left_out: Counter[RemarkCode] = field(default_factory=Counter)
    _captions: set[str] = field(default_factory=set)
    _bytes: int = 0
    _started: float = field(default_factory=time.process_time)

    def add(
        self,
        source: bytes,
        *,
        alternative: str = "",
        page: int | None = None,
        box: tuple[float, float, float, float] | None = None,
    ) -> str:
        """The mark of a picture, by the bytes of its file; blank where it is left out."""
        digest = hashlib.sha256(source).digest()
        if digest in self._numbers:
            return self.again(digest)
        return self.add_opened(digest, lambda: _opened(source), alternative=alternative, page=page, box=box)

    def again(self, digest: bytes) -> str:
        """The mark of a picture that was there before, under the same digest; blank: not yet, or it was left out."""
        number = self._numbers.get(digest)
        return "" if number is None else self._marks.of(number)

    def knows(self, digest: bytes) -> bool:
        """Whether a picture of this digest was there before, kept or not."""
        return digest in self._numbers

    def add_opened(self, digest: bytes, make: Any, **details: Any) -> str:
        """As `add`, for one that is known by a digest and that `make` opens, as a bitmap."""
        try:
            data, mime, size = self._written(make)
            same = hashlib.sha256(data).digest()
            number = self._numbers.get(same)
            if number is None:
                number = self._keep(Picture(data, mime, *size, **details))
                self._numbers[same] = number
        except _Refused as refusal:
            number = None
            if refusal.code is not None:
                self._left_out[refusal.code] += 1
        self._numbers[digest] = number
        return self.again(digest)

    def vector(self) -> None:
        """Notes a drawing, which is no bitmap."""
        self._left_out[RemarkCode.PICTURES_DRAWN] += 1

    def caption(self, text: str) -> None:
        """Notes a paragraph that the file itself calls a caption."""
        self._captions.add(" ".join(text.split()))

    def _written(self, make: Any) -> tuple[bytes, str, tuple[int, int]]:
        if len(self._seen) >= MOST or not self._has_time(_TIME_TO_OPEN):
            raise _Refused(RemarkCode.PICTURES_BEYOND)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                opened, kind = make()
                picture = _plain(opened)
                picture.thumbnail((MOST_SIDE, MOST_SIDE), reducing_gap=2.0)
                if _is_decoration(picture):
                    raise _Refused(None)
                return *_encoded(picture, kind), picture.size
        except _DAMAGE as error:
            raise _Refused(RemarkCode.PICTURES_DAMAGED) from error

    def _keep(self, picture: Picture) -> int:
        if self._bytes + len(picture.data) > MOST_BYTES:
            raise _Refused(RemarkCode.PICTURES_BEYOND)
        self._bytes += len(picture.data)
        alternative = " ".join(picture.alternative.split())[:_MOST_ALTERNATIVE]
        self._seen.append(replace(picture, alternative="" if _NO_WORDS.fullmatch(alternative) else alternative))
        return len(self._seen) - 1

    def finished(self, document: ParsedDocument) -> ParsedDocument:
        """A document without marks, with its pictures, and with regions where these stand and are told of in the text.

        Pictures that stand in many places are not among them.
        """
        if not self._seen:
            return replace(document, remarks=(*document.remarks, *self._remarks(0)))
        places = Counter(
            int(mark[1]) for section in document.sections for mark in self._marks.pattern.finditer(section.text)
        )
        kept = [number for number in range(len(self._seen)) if 0 < places[number] < _REPEATED]
        unread = 0
        pictures: list[Picture] = []
        for number in kept:
            recognised, was_read = self._recognised(self._seen[number])
            pictures.append(replace(self._seen[number], recognised=recognised))
            unread += not was_read
        sections, captions = without_marks(
            document.sections,
            self._marks,
            {number: place for place, number in enumerate(kept)},
            pictures,
            self._captions,
        )
        pictures = [
            replace(picture, caption=captions.get(place, picture.caption)) for place, picture in enumerate(pictures)
        ]
        remarks = (*document.remarks, *self._remarks(unread))
        return replace(document, sections=sections, pictures=tuple(pictures), remarks=remarks)

    def _recognised(self, picture: Picture) -> tuple[str, bool]:
        """What stands on a picture, and whether it was read, if it was to be."""
        from kb.ingest.formats.pdf.ocr import is_installed, lines_on  # noqa: PLC0415 - it imports Pillow's peers

        if min(picture.width, picture.height) < _LEAST_READ or not is_installed():
            return "", True
        if not self._has_time(_TIME_TO_READ):
            return "", False
        numpy = importlib.import_module("numpy")
        with Image.open(io.BytesIO(picture.data)) as image:
            bitmap = numpy.asarray(image.convert("RGB"))[:, :, ::-1]
        return "\n".join(lines_on(bitmap))[:_MOST_RECOGNISED], True

    def _has_time(self, share: float) -> bool:
        """A child that reads many files has what the others have left."""
        allowed = resource.getrlimit(resource.RLIMIT_CPU)[0]
        return allowed == resource.RLIM_INFINITY or (
            time.process_time() - self._started < share * (allowed - self._started)
        )

    def _remarks(self, unread: int) -> list[Remark]:
        counts = {**self._left_out, RemarkCode.PICTURES_UNREAD: unread}
        bounds = {RemarkCode.PICTURES_BEYOND: {"most": MOST, "megabytes": MOST_BYTES // _MIB}}
        return [Remark(code, {"count": count, **bounds.get(code, {})}) for code, count in counts.items() if count]


def _opened(source: bytes) -> tuple[Image.Image, str]:
    """A picture as it is seen, and whether it came as a photograph's JPEG; only the first of moving ones."""
    if len(source) > _MOST_SOURCE_BYTES:
        raise _Refused(RemarkCode.PICTURES_DAMAGED)
    if is_vector(source):
        raise _Refused(RemarkCode.PICTURES_DRAWN)
    with Image.open(io.BytesIO(source), formats=_FORMATS) as image:
        width, height = image.size
        if width * height > _MOST_PIXELS:
            raise _Refused(RemarkCode.PICTURES_DAMAGED)
        if min(width, height) < _LEAST_SIDE:
            raise _Refused(None)
        kind = "JPEG" if image.format == "JPEG" else "PNG"
        image.draft("RGB", (MOST_SIDE, MOST_SIDE))
        image.load()
        return ImageOps.exif_transpose(image), kind


def icon_job(file: BinaryIO, side: int, most_bytes: int) -> str:
    """A picture as a PNG in base64 that is at most so wide, high and large; raises ParseError for what is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=_FORMATS) as opened:
                if opened.width * opened.height > _MOST_PIXELS:
                    raise ParseError("damaged_file", format=str(opened.format))
                opened.draft("RGB", (side, side))
                picture = ImageOps.exif_transpose(opened).convert("RGBA")
        while True:
            picture.thumbnail((side, side), reducing_gap=2.0)
            data = _saved(picture, "PNG")
            if len(data) <= most_bytes:
                return base64.b64encode(data).decode()
            side = side * 3 // 4
    except _DAMAGE as error:
        raise ParseError("damaged_file", format="PNG") from error


_DATA: Final = re.compile(r"\s*data:image/[\w.+-]+(?:;[\w=.+-]+)*?;base64,", re.IGNORECASE)


def data_of(address: str) -> bytes:
    """The bytes of a picture that a data: address holds itself; none for other addresses."""
    if not (head := _DATA.match(address)) or len(address) > 2 * _MOST_SOURCE_BYTES:
        return b""
    try:
        return base64.b64decode(unquote(address[head.end() :]) if "%" in address else address[head.end() :])
    except ValueError:
        return b"broken"  # so that it is told of as such


def is_vector(source: bytes) -> bool:
    """Whether a file is a drawing: SVG, EMF, or WMF."""
    head = source[:1024].lstrip()
    is_emf = source[:4] == b"\x01\0\0\0" and source[40:44] == b" EMF"
    return is_emf or head.startswith((b"\xd7\xcd\xc6\x9a", b"\x01\0\x09\0\0\x03")) or b"<svg" in head


def _plain(image: Image.Image) -> Image.Image:
    """In grey or in colours, of 8 bits each; what is transparent is white."""
    if image.mode.startswith("I"):  # of 16 bits, or more
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if image.mode in ("1", "L", "F"):
        return image.convert("L")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _encoded(image: Image.Image, kind: str) -> tuple[bytes, str]:
    image.info.clear()
    data = _saved(image, kind)
    if kind == "PNG" and len(data) > _LARGE_PNG:
        kind, data = "JPEG", _saved(image, "JPEG")
    return data, _MIMES[kind]


def _saved(image: Image.Image, kind: str) -> bytes:
    written = io.BytesIO()
    image.save(written, kind, **({"quality": 85} if kind == "JPEG" else {}))
    return written.getvalue()


def _is_decoration(image: Image.Image) -> bool:
    """Whether a picture is a line, a plain colour, or a shade from one side to the other."""
    if min(image.size) < _LEAST_SIDE or max(image.size) > _LONGEST * min(image.size):
        return True
    grey = image.convert("L")
    if _are_flat([grey]):
        return True
    small = grey.resize((16, 16), Image.Resampling.BOX)
    rows = [small.crop((0, y, 16, y + 1)) for y in range(16)]
    columns = [small.crop((x, 0, x + 1, 16)) for x in range(16)]
    return _are_flat(rows) or _are_flat(columns)


def _are_flat(stripes: Sequence[Image.Image]) -> bool:
    """Whether none of some grey pictures has light and dark places."""
    spans: list[Any] = [stripe.getextrema() for stripe in stripes]
    return all(high - low <= _FLAT for low, high in spans)
