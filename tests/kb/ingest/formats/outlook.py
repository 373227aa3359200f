"""Mails of Outlook, written as [MS-CFB] and [MS-OXMSG] describe them."""

import struct
from datetime import UTC, datetime

FREE, END, FAT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
SECTOR, MINI, CUTOFF = 512, 64, 4096
ROOT, STORAGE, STREAM = 5, 1, 2
EPOCH = datetime(1601, 1, 1, tzinfo=UTC)


def make_msg(
    subject="",
    body="",
    html=b"",
    sender=("", ""),
    to=(),
    cc=(),
    date=None,
    attachments=(),
    kind="IPM.Note",
    narrow="",
    codepage=0,
):
    """The bytes of a .msg; an attachment is (name, bytes) or (name, dict), which makes a mail in this mail.

    `narrow` names an encoding, in which the texts are written in place of UTF-16.
    """
    return compound_file(
        mail(
            32,
            subject=subject,
            body=body,
            html=html,
            sender=sender,
            to=to,
            cc=cc,
            date=date,
            attachments=attachments,
            kind=kind,
            narrow=narrow,
            codepage=codepage,
        )
    )


def mail(header, *, attachments=(), to=(), cc=(), narrow="", codepage=0, date=None, html=b"", **texts):
    name, address = texts.pop("sender", ("", ""))
    tags = {0x0037: texts.get("subject", ""), 0x1000: texts.get("body", ""), 0x001A: texts.get("kind", "IPM.Note")}
    storage = properties(tags | {0x0C1A: name, 0x5D01: address}, narrow=narrow)
    fixed = [(0x3FFD, 3, codepage), (0x3FDE, 3, codepage)] if codepage else []
    if date:
        fixed.append((0x0039, 0x40, int((date - EPOCH).total_seconds()) * 10**7))
    if html:
        storage["__substg1.0_10130102"] = html
    people = [*((1, *each) for each in to), *((2, *each) for each in cc)]
    for number, (role, person, where) in enumerate(people):
        inner = properties({0x3001: person, 0x39FE: where}, narrow=narrow)
        storage[f"__recip_version1.0_#{number:08X}"] = finished(inner, 8, [(0x0C15, 3, role)])
    for number, (file_name, content) in enumerate(attachments):
        inner = properties({0x3707: file_name}, narrow=narrow)
        if isinstance(content, dict):
            inner["__substg1.0_3701000D"] = mail(24, **content)
        else:
            inner["__substg1.0_37010102"] = content
        method = 5 if isinstance(content, dict) else 1
        storage[f"__attach_version1.0_#{number:08X}"] = finished(inner, 8, [(0x3705, 3, method)])
    return finished(storage, header, fixed)


def properties(texts, *, narrow):
    kind = "001E" if narrow else "001F"
    return {f"__substg1.0_{tag:04X}{kind}": text.encode(narrow or "utf-16-le") for tag, text in texts.items() if text}


def finished(storage, header, fixed):
    """Adds the stream that lists the properties, those of fixed length with their values."""
    listed = [
        struct.pack("<HHIII", int(name[16:20], 16), int(name[12:16], 16), 6, len(value), 0)
        for name, value in storage.items()
        if name.startswith("__substg") and isinstance(value, bytes)
    ]
    listed += [struct.pack("<HHIQ", kind, tag, 6, value) for tag, kind, value in fixed]
    return {"__properties_version1.0": bytes(header) + b"".join(listed), **storage}


def compound_file(root):
    """An OLE file of storages, which are dictionaries, and streams, which are bytes."""
    entries, streams = [("Root Entry", ROOT, None)], []
    links = {}

    def add(storage, parent):
        places = []
        for name, content in sorted(storage.items(), key=lambda item: (len(item[0]), item[0].upper())):
            places.append(len(entries))
            entries.append((name, STORAGE if isinstance(content, dict) else STREAM, content))
            if isinstance(content, dict):
                add(content, places[-1])
        links[parent, "child"] = tree(places)

    def tree(places):
        if not places:
            return FREE
        middle = len(places) // 2
        place = places[middle]
        links[place, "left"], links[place, "right"] = tree(places[:middle]), tree(places[middle + 1 :])
        return place

    add(root, 0)
    small = bytearray()
    mini_fat, fat, body = [], [], bytearray()

    def put(data):
        begin, count = len(fat), -(-len(data) // SECTOR)
        fat.extend([*range(begin + 1, begin + count), END] if count else [])
        body.extend(data.ljust(count * SECTOR, b"\0"))
        return begin if count else END

    where = {}
    for place, (_, kind, content) in enumerate(entries):
        if kind != STREAM:
            continue
        if len(content) >= CUTOFF:
            where[place] = put(content)
        elif content:
            begin, count = len(mini_fat), -(-len(content) // MINI)
            mini_fat.extend([*range(begin + 1, begin + count), END])
            small.extend(content.ljust(count * MINI, b"\0"))
            where[place] = begin
    where[0] = put(bytes(small))
    mini_begin = put(
        b"".join(struct.pack("<I", each) for each in mini_fat).ljust(-(-len(mini_fat) // 128) * SECTOR, b"\xff")
    )
    directory = bytearray()
    for place, (name, kind, content) in enumerate(entries):
        encoded = name.encode("utf-16-le")
        size = len(small) if kind == ROOT else len(content) if kind == STREAM else 0
        directory += encoded.ljust(64, b"\0") + struct.pack(
            "<HBBIII16xIQQIQ",
            len(encoded) + 2,
            kind,
            1,
            links.get((place, "left"), FREE),
            links.get((place, "right"), FREE),
            links.get((place, "child"), FREE),
            0,
            0,
            0,
            where.get(place, END if kind == STREAM else 0),
            size,
        )
    directory_begin = put(bytes(directory))
    sectors = 1
    while (len(fat) + sectors) > sectors * 128:
        sectors += 1
    assert sectors <= 109
    first = len(fat)
    fat.extend([FAT] * sectors)
    fat_bytes = b"".join(struct.pack("<I", each) for each in fat).ljust(sectors * SECTOR, b"\xff")
    header = struct.pack(
        "<8s16xHHHHH6xIIIIIIIII",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        0x3E,
        3,
        0xFFFE,
        9,
        6,
        0,
        sectors,
        directory_begin,
        0,
        CUTOFF,
        mini_begin if mini_fat else END,
        -(-len(mini_fat) // 128),
        END,
        0,
    )
    table = [*range(first, first + sectors), *[FREE] * (109 - sectors)]
    return header + struct.pack("<109I", *table) + bytes(body) + fat_bytes
