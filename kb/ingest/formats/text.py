"""Bytes of plain text, decoded without guessing into mojibake."""

import codecs
import re
from contextlib import suppress

from kb.ingest.parser.parsed import ParseError

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
# Encodings of ASCII bytes, which would pass for UTF-8.
_SEVEN_BIT = frozenset(["hz", "iso2022_jp", "iso2022_kr", "utf-7"])
# Labels that Chinese mails carry whatever their encoding is.
_DOUBTFUL = frozenset(["", "ascii", "big5", "big5hkscs", "cp1252", "cp950", "gb18030", "iso8859-1", "utf-8"])
_SAMPLE = 2_000
_CLEARLY_BETTER = 0.1


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


def decode_mislabelled(data: bytes, declared: str = "") -> str:
    """Decodes what its label may be wrong about, as in mails: by the reading with the most usual Chinese characters.

    Never fails: bytes that do not fit become U+FFFD.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    codec = _declared_codec(declared) or _other_codec(declared)
    if codec not in _SEVEN_BIT:
        with suppress(UnicodeDecodeError):
            return data.decode()
    if codec not in _DOUBTFUL:
        return data.decode(codec, errors="replace")
    likely = "gb18030" if codec in ("", "ascii", "utf-8") else codec
    texts = [data.decode(each, errors="replace") for each in dict.fromkeys([likely, "gb18030", "big5hkscs", "utf-8"])]
    best = max(texts, key=_usual_share)
    return best if _usual_share(best) > _usual_share(texts[0]) + _CLEARLY_BETTER else texts[0]


def _other_codec(declared: str) -> str:
    try:
        name = codecs.lookup(declared.strip()).name
    except (LookupError, ValueError):
        return ""
    return name if name in _SEVEN_BIT or name in _DOUBTFUL else ""


def _usual_share(text: str) -> float:
    """How many of the characters beyond ASCII are among the usual ones of GB 2312 or Big5."""
    found = "".join(_NON_ASCII_RUN.findall(text[: 8 * _SAMPLE]))[:_SAMPLE]
    return sum(map(_is_usual, found)) / max(1, len(found))


def _is_usual(character: str) -> bool:
    simplified, traditional = (character.encode(each, errors="ignore")[:1] for each in ("gb2312", "big5"))
    return b"\xa1" <= simplified <= b"\xd7" or b"\xa1" <= traditional <= b"\xc6"
