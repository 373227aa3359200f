"""Packed bytes, unpacked within a bound: never more is held than may be kept."""

import zlib
from typing import Final

from kb.base.net.errors import FetchCode, FetchError

MIB: Final = 1024**2
_GZIP_OR_ZLIB: Final = 47
_GZIP_MAGIC: Final = b"\x1f\x8b"


class Inflater:
    """Unpacks gzip, of several members too, as it comes in.

    Args:
        max_bytes: of what comes out, in all.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._left = max_bytes
        self._member = zlib.decompressobj(_GZIP_OR_ZLIB)

    def feed(self, data: bytes) -> bytes:
        """The next piece unpacked.

        Raises:
            FetchError: it is more than allowed, or broken.
        """
        pieces = []
        while data:
            try:
                piece = self._member.decompress(data, self._left + 1)
            except zlib.error as error:
                raise FetchError(FetchCode.BROKEN_RESPONSE, host="gzip") from error
            self._left -= len(piece)
            if self._left < 0:
                raise too_large(self._max)
            pieces.append(piece)
            data = self._member.unconsumed_tail
            if self._member.eof:
                data = self._member.unused_data
                if not data.startswith(_GZIP_MAGIC):
                    break  # padding
                self._member = zlib.decompressobj(_GZIP_OR_ZLIB)
        return b"".join(pieces)


def too_large(max_bytes: int) -> FetchError:
    return FetchError(FetchCode.TOO_LARGE, megabytes=max(1, max_bytes // MIB))


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """The bytes of a gzip file; others as they are.

    Raises:
        FetchError: they are more than allowed, or broken.
    """
    return Inflater(max_bytes).feed(data) if data.startswith(_GZIP_MAGIC) else data
