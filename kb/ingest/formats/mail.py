"""Mails: .eml by Python's email package, and what they have in common with those of Outlook."""

import binascii
import email.policy
import mimetypes
import re
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.header import Header
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.parser import BytesParser
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from itertools import groupby
from pathlib import PurePath
from typing import Any, Final

from kb.ingest.formats.html import outline, parse_tree
from kb.ingest.formats.outline import CJK
from kb.ingest.formats.text import decode_mislabelled
from kb.ingest.parser.parsed import ParsedDocument, ParseError, Section, clean

_HEADER_CHARACTERS = 16 * 1024  # Of a header no more is read
_SHOWN_CHARACTERS = 1_000  # Of the recipients
_NAME_CHARACTERS = 200
_LABELS: Final = {"from": "发件人：", "to": "收件人：", "cc": "抄送：", "date": "日期："}
_ENGLISH_LABELS: Final = {"from": "From: ", "to": "To: ", "cc": "Cc: ", "date": "Date: "}
_WORD = re.compile(r"=\?([^?\s*]{1,40})(?:\*[^?\s]{0,20})?\?([bBqQ])\?([^?]*)\?=")
_FOLD = re.compile(r"\r?\n[ \t]*|\r")
_QUOTED_NAME = re.compile(r'"([^"<>]*)"(\s*<)')
_HAN = re.compile(f"[{CJK}]")
_ADDRESS_OF_PICTURE = re.compile(r"\bcid:([^\s\"'<>)]{1,300})", re.IGNORECASE)
_PGP = "-----BEGIN PGP MESSAGE-----"
_SIGNATURES = frozenset(["application/pkcs7-signature", "application/x-pkcs7-signature", "application/pgp-signature"])
_SEALED = frozenset(["application/pkcs7-mime", "application/x-pkcs7-mime"])
_BODIES = frozenset(["text/plain", "text/html", "text/markdown", "text/enriched"])
# Machines read these, beside a text for people.
_SKIPPED = frozenset(["text/calendar", "text/x-amp-html", "text/rfc822-headers", "message/delivery-status"])
# A text of less than this share of the HTML only says that there is HTML.
_MIN_TEXT_SHARE = 0.2
_QUOTE = re.compile(r"(?:> ?)*")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file in a mail; its bytes are decoded when they are asked for."""

    name: str
    data: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class Mail:
    """What a mail says; each part of its body is the same in plain text and in HTML, either of which may be blank."""

    subject: str = ""
    sender: str = ""
    to: str = ""
    cc: str = ""
    date: datetime | None = None
    bodies: tuple[tuple[str, str], ...] = ()
    attachments: tuple[Attachment, ...] = ()


def read(data: bytes) -> ParsedDocument:
    return document(read_mail(data))


def document(mail: Mail) -> ParsedDocument:
    """The mail as one document: its headers as lines, then its body with the earlier mails that it quotes."""
    subject = " ".join(clean(mail.subject).split())
    path = (subject,) if subject else ()
    values = {name: clean(getattr(mail, field)) for name, field in (("from", "sender"), ("to", "to"), ("cc", "cc"))}
    dates = {} if mail.date is None else {"date": f"{mail.date:%Y-%m-%d %H:%M %z}".strip()}
    is_chinese = _HAN.search(subject + "".join(text[:_SHOWN_CHARACTERS] for text, _ in mail.bodies))
    labels = _LABELS if is_chinese else _ENGLISH_LABELS
    lines = [f"{labels[name]}{value}" for name, value in (values | dates).items() if value]
    first, *rest = _body(mail) or (Section(""),)
    head = "\n\n".join(filter(None, [subject, "\n".join(lines)]))
    if first.heading_path:  # the body begins with a heading of its own
        sections = [Section(head), first, *rest]
    else:
        sections = [replace(first, text="\n\n".join(filter(None, [head, first.text]))), *rest]
    metadata = {name: value for name, value in values.items() if value}
    if mail.date is not None:
        metadata["date"] = f"{mail.date.astimezone(UTC) if mail.date.tzinfo else mail.date:%Y-%m-%dT%H:%M:%SZ}"
    return ParsedDocument(
        subject,
        tuple(replace(section, heading_path=(*path, *section.heading_path)) for section in sections),
        metadata=metadata,
        attachments=len(mail.attachments),
    )


def _body(mail: Mail) -> tuple[Section, ...]:
    """Neighbours without headings of their own are one section."""
    sections: list[Section] = []
    every = (section for body in mail.bodies for section in _sections(*body))
    for has_heading, group in groupby(every, lambda section: bool(section.heading_path)):
        found = list(group)
        sections += found if has_heading or len(found) == 1 else [Section(_joined(each.text for each in found))]
    return tuple(sections)


def _sections(text: str, html: str) -> tuple[Section, ...]:
    plain = (Section(text.strip()),) if text.strip() else ()
    if not html or len(text) >= len(html):
        return plain
    try:
        tree = parse_tree(html)
    except ParseError:
        if plain:
            return plain
        raise
    visible = () if tree is None else outline(tree).sections()
    said = sum(len(section.text) for section in visible)
    return plain if len(text.strip()) >= _MIN_TEXT_SHARE * said and plain else visible


class _RawHeaders(email.policy.Compat32):
    """Headers as they stand in the file; Python's parsers of them take long over hostile ones."""

    def header_fetch_parse(self, name: str, value: str) -> str:  # noqa: ARG002
        return value[:_HEADER_CHARACTERS]


# The standard library types what this policy makes of headers as other than text.
_Part = Any


def read_mail(data: bytes) -> Mail:
    """Reads a mail as servers send it; ParseError: it is encrypted, or nests too deeply."""
    try:
        return _mail_of(BytesParser(policy=_RawHeaders()).parsebytes(data.lstrip()))
    except RecursionError as error:
        raise ParseError("nested_too_deeply") from error


def _mail_of(message: _Part) -> Mail:
    said: dict[int, tuple[list[str], list[str]]] = {}  # in plain text and in HTML
    files: list[_Part] = []
    for number, part in _leaves(message):
        if not _is_body(part):
            files.append(part)
            continue
        said.setdefault(number, ([], []))[part.get_content_type() == "text/html"].append(_text(part))
    bodies = tuple((_joined(texts), _joined(pages)) for texts, pages in said.values())
    if any(text.lstrip().startswith(_PGP) for text, _ in bodies):
        raise ParseError("encrypted_mail", form="PGP")
    shown = {name for _, html in bodies for name in _ADDRESS_OF_PICTURE.findall(html)}
    return Mail(
        subject=_header(message, "Subject"),
        sender=people(_header(message, "From")),
        to=people(_header(message, "To")),
        cc=people(_header(message, "Cc")),
        date=read_date(_header(message, "Date")),
        bodies=bodies,
        attachments=tuple(
            Attachment(_name(part), partial(_bytes, part)) for part in files if not _is_inline(part, shown)
        ),
    )


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))


def _leaves(message: _Part) -> Iterator[tuple[int, _Part]]:
    """Its parts that hold text or a file, each with a number, the same for those that say the same; a mail is one part."""
    stack: list[tuple[_Part, int | None]] = [(message, None)]
    number = 0
    while stack:
        part, alternative = stack.pop()
        kind = part.get_content_type()
        if kind == "multipart/encrypted" or (kind in _SEALED and part is message):
            raise ParseError("encrypted_mail", form="S/MIME" if kind in _SEALED else "PGP")
        if part.is_multipart() and part.get_content_maintype() == "multipart":
            if kind == "multipart/alternative" and alternative is None:
                number += 1
                alternative = number
            stack += [(child, alternative) for child in reversed(part.get_payload())]
        elif kind not in _SIGNATURES and kind not in _SKIPPED:
            number += alternative is None
            yield alternative or number, part


def _is_body(part: _Part) -> bool:
    """Also where it should have parts and has none, as in a mail that was cut off."""
    is_text = part.get_content_type() in _BODIES or part.get_content_maintype() == "multipart"
    return is_text and not _is_file(part)


def _is_file(part: _Part) -> bool:
    return part.get_content_disposition() == "attachment" or bool(_file_name(part))


def _is_inline(part: _Part, shown: Container[str]) -> bool:
    """Whether it is a picture that the text shows."""
    if part.get_content_maintype() != "image":
        return False
    identifier = str(part.get("Content-ID", "")).strip().strip("<>")
    return identifier in shown or (bool(identifier) and part.get_content_disposition() != "attachment")


def _text(part: _Part) -> str:
    text = decode_mislabelled(_bytes(part), _parameter(part, "charset"))
    text = text.replace("\r\n", "\n")
    is_flowed = _parameter(part, "format").lower() == "flowed"
    return _unflowed(text, joins=_parameter(part, "delsp").lower() == "yes") if is_flowed else text


def _unflowed(text: str, *, joins: bool) -> str:
    """Joins the lines that a mail program has broken (RFC 3676); with `joins` their last space goes."""
    written: list[list[str]] = []  # the pieces of each line
    quote: str | None = None  # of the line that goes on
    for line in text.split("\n"):
        mark = _QUOTE.match(line)[0]  # type: ignore[index]
        depth, rest = mark.replace(" ", ""), line[len(mark.rstrip(" ")) :].removeprefix(" ")
        if quote == depth and rest != "-- ":
            written[-1].append(rest)
        else:
            written.append([f"{depth} {rest}" if depth else rest])
        goes_on = rest.endswith(" ") and rest != "-- "
        if goes_on and joins:
            written[-1][-1] = written[-1][-1].removesuffix(" ")
        quote = depth if goes_on else None
    return "\n".join(map("".join, written))


def _bytes(part: _Part) -> bytes:
    """What a part holds, or a mail that is in it."""
    data: bytes
    if not part.is_multipart():
        data = part.get_payload(decode=True) or b""
        return data
    try:
        inner = part.get_payload(0) if part.get_content_maintype() == "message" else part
        data = inner.as_bytes()
    except (RecursionError, ValueError, LookupError, AttributeError) as error:
        raise ParseError("nested_too_deeply") from error
    return data


def _name(part: _Part) -> str:
    if name := file_name(_file_name(part)):
        return name
    if part.get_content_maintype() == "message" and part.is_multipart():
        return f"{file_name(_header(part.get_payload(0), 'Subject')) or 'mail'}.eml"
    return f"attachment{mimetypes.guess_extension(part.get_content_type()) or ''}"


def file_name(name: str) -> str:
    """The last part of a path without what no file is named by, cut off before its extension."""
    name = " ".join(clean(PurePath(name.replace("\\", "/")).name).split())
    if len(name) <= _NAME_CHARACTERS:
        return name
    extension = PurePath(name).suffix[:20]
    return name[: _NAME_CHARACTERS - len(extension)] + extension


def _file_name(part: _Part) -> str:
    return _parameter(part, "filename", "content-disposition") or _parameter(part, "name")


def _parameter(part: _Part, name: str, header: str = "content-type") -> str:
    """By RFC 2231, as encoded words or as bare bytes, as mail programs have it; blank where there is none."""
    try:
        found = part.get_param(name, "", header)
    except (TypeError, ValueError):  # its pieces are numbered in no order
        return ""
    if not isinstance(found, tuple):
        return decode_words(found)
    charset, _, value = found  # bytes as characters of Latin-1, and as surrogates those that were not escaped
    return decode_mislabelled(value.encode("latin-1", errors="surrogateescape"), charset or "")


def _header(message: _Part, name: str) -> str:
    return decode_words(str(message.get(name, "")))


def people(addresses: str) -> str:
    """Names without quotation marks; of very many the first."""
    names = _QUOTED_NAME.sub(r"\1\2", addresses[: 2 * _SHOWN_CHARACTERS])
    if len(names) <= _SHOWN_CHARACTERS:
        return names
    return names[:_SHOWN_CHARACTERS].rpartition(",")[0] + ", …"


def read_date(text: str) -> datetime | None:
    with suppress(ValueError, TypeError, IndexError, OverflowError):
        return parsedate_to_datetime(text[:_NAME_CHARACTERS])
    return None


def decode_words(value: str) -> str:
    """A header with its encoded words (RFC 2047) decoded; a character may be divided between two of them.

    Bytes beyond ASCII are those that the parser has kept as surrogates.
    """
    value = _FOLD.sub(" ", value[:_HEADER_CHARACTERS])
    pieces: list[tuple[bytes, str]] = []  # bytes, and their encoding; blank: bare
    end = 0
    for word in _WORD.finditer(value):
        gap, charset = value[end : word.start()], word[1].lower()
        if gap.strip() or not end:
            pieces.append((gap.encode(errors="surrogateescape"), ""))
        data, end = _word_bytes(word), word.end()
        if pieces and pieces[-1][1] == charset:
            pieces[-1] = (pieces[-1][0] + data, charset)
        else:
            pieces.append((data, charset))
    pieces.append((value[end:].encode(errors="surrogateescape"), ""))
    return " ".join("".join(decode_mislabelled(data, charset) for data, charset in pieces).split())


def _word_bytes(word: "re.Match[str]") -> bytes:
    encoded = word[3].encode("ascii", errors="ignore")
    try:
        return binascii.a2b_base64(encoded + b"==") if word[2] in "bB" else binascii.a2b_qp(encoded, header=True)
    except binascii.Error:
        return encoded


def as_file(mail: Mail) -> bytes:
    """A mail as a file of its own, the same each time, for one that lies within a mail of Outlook."""
    message = MIMEMultipart(boundary="=_mail")  # which no Base64 holds
    for name, value in (("Subject", mail.subject), ("From", mail.sender), ("To", mail.to), ("Cc", mail.cc)):
        message[name] = Header(value, "utf-8").encode()
    if mail.date is not None:
        message["Date"] = format_datetime(mail.date)
    for text, html in mail.bodies:
        both = MIMEMultipart("alternative", boundary="=_body")
        for content, kind in ((text, "plain"), (html, "html")):
            if content:
                both.attach(MIMEText(content, kind, "utf-8"))
        message.attach(both)
    for attachment in mail.attachments:
        part = MIMEApplication(attachment.data())
        part.add_header("Content-Disposition", "attachment", filename=("utf-8", "", attachment.name))
        message.attach(part)
    return message.as_bytes()
