"""Mails of Outlook, written as [MS-CFB] and [MS-OXMSG] describe them."""

import struct
from datetime import UTC, datetime

FREE, END, FAT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
SECTOR, MINI, CUTOFF = 512, 64, 4096
ROOT, STORAGE, STREAM = 5, 1, 2
EPOCH = datetime(1601, 1, 1, tzinfo=UTC)


def make_msg(subject="", body="", **others):
    """The bytes of a .msg with the properties of `mail`; an attachment is (name, bytes), or (name, dict) for a mail in it.

    `narrow` names an encoding, in which the texts are written in place of UTF-16.
    """
    return compound_file(mail(32, subject=subject, body=body, **others))


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


class Sectors:
    """Chains of sectors of one size, and the table of which follows which."""

    def __init__(self, size):
        self.size, self.table, self.body = size, [], bytearray()

    def put(self, data):
        begin, count = len(self.table), -(-len(data) // self.size)
        if not count:
            return END
        self.table += [*range(begin + 1, begin + count), END]
        self.body += data.ljust(count * self.size, b"\0")
        return begin

    def packed(self):
        whole = -(-len(self.table) // 128) * SECTOR
        return struct.pack(f"<{len(self.table)}I", *self.table).ljust(whole, b"\xff")


class Directory:
    """The entries of an OLE file, those of a storage as a balanced tree."""

    def __init__(self, root):
        self.entries, self.links = [("Root Entry", ROOT, None)], {}
        self.add(root, 0)

    def add(self, storage, parent):
        places = []
        for name, content in sorted(storage.items(), key=lambda item: (len(item[0]), item[0].upper())):
            places.append(len(self.entries))
            self.entries.append((name, STORAGE if isinstance(content, dict) else STREAM, content))
            if isinstance(content, dict):
                self.add(content, places[-1])
        self.links[parent, "child"] = self.tree(places)

    def tree(self, places):
        if not places:
            return FREE
        middle = len(places) // 2
        place = places[middle]
        self.links[place, "left"], self.links[place, "right"] = (
            self.tree(places[:middle]),
            self.tree(places[middle + 1 :]),
        )
        return place

    def packed(self, begins, mini_size):
        written = bytearray()
        for place, (name, kind, content) in enumerate(self.entries):
            encoded = name.encode("utf-16-le")
            links = [self.links.get((place, each), FREE) for each in ("left", "right", "child")]
            size = {ROOT: mini_size, STORAGE: 0}.get(kind, len(content or b""))
            written += encoded.ljust(64, b"\0")
            written += struct.pack("<HBBIII36xIQ", len(encoded) + 2, kind, 1, *links, begins.get(place, 0), size)
        return bytes(written)


def compound_file(root):
    """An OLE file of storages, which are dictionaries, and streams, which are bytes."""
    directory, large, small = Directory(root), Sectors(SECTOR), Sectors(MINI)
    begins = {
        place: (large if len(content) >= CUTOFF else small).put(content)
        for place, (_, kind, content) in enumerate(directory.entries)
        if kind == STREAM
    }
    begins[0] = large.put(bytes(small.body))
    mini_begin = large.put(small.packed())
    directory_begin = large.put(directory.packed(begins, len(small.body)))
    first = len(large.table)
    count = next(count for count in range(1, 110) if first + count <= 128 * count)
    large.table += [FAT] * count
    header = struct.pack(
        "<8s16xHHHHH6xIIIIIIIIII",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        *(0x3E, 3, 0xFFFE, 9, 6),
        *(0, count, directory_begin, 0, CUTOFF, mini_begin, -(-len(small.table) // 128), END, 0),
        first,
    )
    rest = [*range(first + 1, first + count), *[FREE] * (109 - count)]
    return header + struct.pack(f"<{len(rest)}I", *rest) + bytes(large.body) + large.packed()
