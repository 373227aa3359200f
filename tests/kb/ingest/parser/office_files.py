"""Files for LibreOffice: made by it from those that people's programs resemble, and made to harm it."""

import io
import os
import struct
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

from kb.ingest.parser import office
from tests.quality.parsing.office import convert

MIB = 1024**2
IS_INSTALLED = not office.missing_parts()
needs_libreoffice = pytest.mark.skipif(
    not IS_INSTALLED and os.environ.get("ZHIKU_REQUIRE_BROWSER") != "1",
    reason="NO LIBREOFFICE IS INSTALLED: NO FILE WAS CONVERTED (apt-get install libreoffice-{writer,calc,impress}-nogui).",
)

_SECTOR = 512
_END, _FREE, _FAT, _NONE = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD, 0xFFFFFFFF


@cache
def saved_as(extension, original, data):
    """What LibreOffice saves a file as; extensions have their dots."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"a{original}")
        file.write_bytes(data)
        return convert(file, extension[1:]).read_bytes()


def make_ole(*, storages=(), **streams):
    """A compound file as those of Office before 2007 are: streams by name, "_" for a space, and empty storages."""
    contents = {name.replace("_", " ").strip(): data.ljust(4096, b"\0") for name, data in streams.items()}
    names = ["Root Entry", *contents, *storages]
    directory_sectors = -(-len(names) // 4)
    chains = [directory_sectors, *(-(-len(data) // _SECTOR) for data in contents.values())]
    fat, starts = [_FAT], []
    for length in chains:
        starts.append(len(fat))
        fat += [*range(len(fat) + 1, len(fat) + length), _END]
    entries = []
    for number, name in enumerate(names):
        is_stream = 0 < number <= len(contents)
        right = number + 1 if 0 < number < len(names) - 1 else _NONE
        entries.append(
            name.encode("utf-16-le").ljust(64, b"\0")
            + struct.pack("<HBB", 2 * len(name) + 2, 5 if not number else 2 if is_stream else 1, 1)
            + struct.pack("<III", _NONE, right, 1 if not number and len(names) > 1 else _NONE)
            + bytes(36)
            + struct.pack("<IQ", starts[number] if is_stream else (0 if number else _END), 0)
        )
        if is_stream:
            entries[-1] = entries[-1][:-8] + struct.pack("<Q", len(list(contents.values())[number - 1]))
    header = struct.pack(
        "<8s16xHHHHH6xIIIIIIIII",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        *(0x3E, 3, 0xFFFE, 9, 6, 0, 1, starts[0], 0, 4096, _END, 0, _END, 0),
    ) + struct.pack("<I", 0).ljust(4 * 109, b"\xff")
    sectors = struct.pack(f"<{len(fat)}I", *fat).ljust(_SECTOR, b"\xff")
    sectors += b"".join(entries).ljust(directory_sectors * _SECTOR, b"\0")
    for data in contents.values():
        sectors += data.ljust(-(-len(data) // _SECTOR) * _SECTOR, b"\0")
    return header + sectors


def make_open_document(kind, body, *, manifest="", **parts):
    """A package of a kind as "text" or "spreadsheet"; the names of further parts have "/" for "__" and "." for the last "_"."""
    mime = f"application/vnd.oasis.opendocument.{kind}"
    namespaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{path}:1.0"'
        for name, path in (
            ("office", "office"),
            ("text", "text"),
            ("table", "table"),
            ("draw", "drawing"),
            ("script", "script"),
            ("svg", "svg-compatible"),
        )
    )
    content = (
        f'<?xml version="1.0"?><office:document-content {namespaces} xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'xmlns:ooo="http://openoffice.org/2004/office" office:version="1.2">{body}</office:document-content>'
    )
    entries = "".join(
        f'<manifest:file-entry manifest:full-path="{path}" manifest:media-type="{media}"/>'
        for path, media in (("/", mime), ("content.xml", "text/xml"), *((path, "text/xml") for path in parts))
    )
    listing = (
        '<?xml version="1.0"?><manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0">'
        f"{entries}{manifest}</manifest:manifest>"
    )
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(zipfile.ZipInfo("mimetype"), mime)
        for path, data in {"content.xml": content, "META-INF/manifest.xml": listing, **parts}.items():
            package.writestr(path, data)
    return stream.getvalue()


def make_text(body, **parts):
    return make_open_document("text", f"<office:body><office:text>{body}</office:text></office:body>", **parts)
