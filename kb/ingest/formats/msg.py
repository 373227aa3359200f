"""Mails of Outlook, .msg: an OLE file with a storage for each recipient and each attachment, by python-oxmsg."""

import struct
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from olefile import OleFileIO
from oxmsg.domain import constants as tags, encodings
from oxmsg.domain.model import (
    ATTACH_HDR_OFFSET,
    MSG_HDR_OFFSET,
    RECIP_HDR_OFFSET,
    UnrecognizedCodePageError,
    UnsupportedEncodingError,
)
from oxmsg.properties import Properties
from oxmsg.storage import Storage

from kb.ingest.formats.mail import Attachment, Mail, as_file, document, file_name, people, read_mail as read_mime
from kb.ingest.formats.text import decode_mislabelled
from kb.ingest.parser.parsed import ParsedDocument, ParseError

_PROPERTIES: Final = "__properties_version1.0"
_INNER_MAIL: Final = "__substg1.0_3701000D"
_INNER_HEADER: Final = 24  # Bytes before the properties of a mail that is not the file's own
_TO, _CC = 1, 2
_UNSET_YEAR: Final = 1601  # What Outlook counts from
_DAMAGE = (
    OSError,
    EOFError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    struct.error,
)


def is_mail(data: bytes) -> bool:
    """Whether an OLE file is a mail, and not a document with one in it."""
    with suppress(RecursionError, *_DAMAGE), OleFileIO(data) as file:
        return bool(file.exists(_PROPERTIES))
    return False


def read(data: bytes) -> ParsedDocument:
    return document(read_mail(data))


def read_mail(data: bytes) -> Mail:
    """ParseError: it is damaged, encrypted, or nests too deeply."""
    try:
        with OleFileIO(data) as file:
            return _mail_of(Storage.from_ole(file), MSG_HDR_OFFSET)
    except RecursionError as error:
        raise ParseError("nested_too_deeply") from error
    except _DAMAGE as error:
        raise ParseError("damaged_file", format="MSG") from error


def _mail_of(storage: Storage, header: int) -> Mail:
    properties = Properties(storage, header)
    codec = _codec(properties, tags.PID_MESSAGE_CODEPAGE)
    kind = _text(storage, tags.PID_MESSAGE_CLASS, codec).upper()
    html = _text(storage, tags.PID_HTML, _codec(properties, tags.PID_INTERNET_CODEPAGE) or codec)
    body = _text(storage, tags.PID_BODY, codec), html
    attached = [(each, Properties(each, ATTACH_HDR_OFFSET)) for each in storage.iter_attachment_storages()]
    mail = Mail(
        subject=_text(storage, tags.PID_SUBJECT, codec),
        sender=_person(
            storage, codec, tags.PID_SENDER_NAME, (tags.PID_SENDER_SMTP_ADDRESS, tags.PID_SENDER_EMAIL_ADDRESS)
        ),
        to=_recipients(storage, codec, _TO),
        cc=_recipients(storage, codec, _CC),
        date=_date(properties),
        bodies=(body,) if any(body) else (),
        attachments=tuple(_attachment(each, codec) for each, own in attached if not _is_inline(each, own, codec, html)),
    )
    if "SMIME" not in kind:
        return mail
    if not kind.endswith("MULTIPARTSIGNED") or len(mail.attachments) != 1:
        raise ParseError("encrypted_mail", form="S/MIME")
    signed = read_mime(mail.attachments[0].data())
    return replace(mail, bodies=signed.bodies, attachments=signed.attachments)


def _codec(properties: Properties, tag: int) -> str:
    with suppress(UnrecognizedCodePageError, UnsupportedEncodingError):
        if page := properties.int_prop_value(tag):
            return encodings.encoding_from_codepage(page)
    return ""


def _text(storage: Storage, tag: int, codec: str) -> str:
    """A property as text, of whichever of the three types it is: UTF-16, or bytes in the mail's code page."""
    streams = {stream.name: stream.bytes_ for stream in storage.streams}
    name = f"__substg1.0_{tag:04X}"
    if data := streams.get(f"{name}001F"):
        return data.decode("utf-16-le", errors="replace")
    return decode_mislabelled(streams.get(f"{name}001E") or streams.get(f"{name}0102") or b"", codec)


def _person(storage: Storage, codec: str, name: int, addresses: tuple[int, ...]) -> str:
    named = _text(storage, name, codec).strip()
    address = next((found for tag in addresses if "@" in (found := _text(storage, tag, codec))), "")
    return people(f"{named} <{address}>" if named and address not in ("", named) else named or address)


def _recipients(storage: Storage, codec: str, kind: int) -> str:
    found = (
        _person(each, codec, tags.PID_DISPLAY_NAME, (tags.PID_SMTP_ADDRESS, tags.PID_EMAIL_ADDRESS))
        for each in storage.iter_recipient_storages()
        if (Properties(each, RECIP_HDR_OFFSET).int_prop_value(tags.PID_RECIPIENT_TYPE) or _TO) == kind
    )
    return people(", ".join(filter(None, found)))


def _date(properties: Properties) -> datetime | None:
    for tag in (tags.PID_CLIENT_SUBMIT_TIME, tags.PID_MESSAGE_DELIVERY_TIME):
        with suppress(AttributeError, OverflowError, struct.error):  # it is no date
            if (date := properties.date_prop_value(tag)) and date.year > _UNSET_YEAR:
                return date
    return None


def _attachment(storage: Storage, codec: str) -> Attachment:
    name = _text(storage, tags.PID_ATTACH_LONG_FILENAME, codec) or _text(storage, tags.PID_ATTACH_FILENAME, codec)
    inner = next((each for each in storage.storages if each.name == _INNER_MAIL), None)
    if inner is not None and any(stream.name == _PROPERTIES for stream in inner.streams):
        mail = _mail_of(inner, _INNER_HEADER)
        return Attachment(f"{file_name(mail.subject) or 'mail'}.eml", partial(as_file, mail))
    wanted = f"__substg1.0_{tags.PID_ATTACH_DATA_BINARY:04X}0102"
    data = next((stream.bytes_ for stream in storage.streams if stream.name == wanted), b"")
    return Attachment(file_name(name) or "attachment", lambda: data)


def _is_inline(storage: Storage, properties: Properties, codec: str, html: str) -> bool:
    """Whether it is a picture that the text shows."""
    identifier = _text(storage, tags.PID_ATTACH_CONTENT_ID, codec)
    is_hidden = bool(properties.int_prop_value(tags.PID_ATTACHMENT_HIDDEN))
    return is_hidden or (bool(identifier) and f"cid:{identifier}" in html)
