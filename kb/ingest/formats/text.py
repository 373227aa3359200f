"""Plain text: one section, decoded without guessing into mojibake."""

import codecs
import re
from contextlib import suppress

from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section

UTF16_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}

# Bytes that no text holds in any encoding read here: they are no part of a multi-byte character either.
_CONTROL_BYTES = bytes(code for code in range(32) if code not in b"\t\n\v\f\r\x1a\x1b") + b"\x7f"
_CONTROL_SHARE = 0.01
# What a page may declare about itself (codec names as Python spells them); more would be a way to run odd codecs.
_DECLARABLE = re.compile(
    r"big5(hkscs)?|cp949|euc_(jp|kr)|gb18030|gb2312|gbk|iso8859-(1|2|5|15)|koi8-r|shift_jis|cp125[0-8]"
)
# As browsers read them: the older names stand for their supersets.
_SUPERSETS = {"gb2312": "gb18030", "gbk": "gb18030", "iso8859-1": "cp1252"}
_NON_ASCII_RUN = re.compile(r"[^\x00-\x7f]+")


def read(data: bytes) -> ParsedDocument:
    return ParsedDocument("", (Section(decode(data)),))


def is_binary(data: bytes) -> bool:
    """True for bytes with a NUL or many control characters, unless a UTF-16 mark explains them."""
    if data[:2] in UTF16_MARKS:
        return False
    controls = len(data) - len(data.translate(None, _CONTROL_BYTES))
    return b"\0" in data or controls > _CONTROL_SHARE * len(data)


def decode(data: bytes, declared: str = "") -> str:
    """Decodes by byte order mark, then as UTF-8, as declared, as GB18030 (so GBK, GB2312); ParseError: none fits."""
    if encoding := UTF16_MARKS.get(data[:2]):
        return _strict(data[2:], encoding)
    data = data.removeprefix(codecs.BOM_UTF8)
    with suppress(UnicodeDecodeError):
        return data.decode()
    if _is_broken_utf8(data):
        raise ParseError("undecodable")
    if codec := _declared_codec(declared):
        return _strict(data, codec)
    text = _strict(data, "gb18030")
    if not _is_plausible(text):
        raise ParseError("undecodable")
    return text


def _strict(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ParseError("undecodable") from error


def _is_broken_utf8(data: bytes) -> bool:
    """UTF-8 with a few bad bytes would often decode as GB18030, into nonsense."""
    text = data.decode(errors="replace")
    bad = text.count("\ufffd")
    good = sum(len(run) for run in _NON_ASCII_RUN.findall(text)) - bad
    return bad * 10 <= good


def _declared_codec(declared: str) -> str:
    try:
        name = codecs.lookup(declared.strip()).name
    except (LookupError, ValueError):
        return ""
    return _SUPERSETS.get(name, name) if _DECLARABLE.fullmatch(name) else ""


def _is_plausible(text: str) -> bool:
    """Chinese comes in runs or in common characters; a Western encoding read as GB18030 gives lone rare ones."""
    runs = _NON_ASCII_RUN.findall(text)
    characters = "".join(runs)
    adjacent = sum(len(run) for run in runs if len(run) > 1)
    common = len(characters.encode("gb2312", errors="ignore")) // 2
    return 2 * max(adjacent, common) >= len(characters)
