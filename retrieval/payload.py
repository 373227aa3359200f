"""Signed bytes for objects of builtin types: what a cache outside this process may hold.

    payload = format byte | HMAC-SHA256 (32 bytes) | zlib of pickle protocol 5

The MAC covers the format byte, the full key text and the compressed bytes, so that a payload opens under the key it was
signed for only, and nothing is decompressed or unpickled before it is verified.
"""

import hmac
import io
import pickle
import zlib
from typing import NoReturn

from retrieval.errors import RetrievalError

FORMAT = b"\x01"


class PayloadError(RetrievalError):
    """A payload that must not be used; the message says why."""


class Signer:
    """Signs bytes together with the key that they are stored under, so that they open under no other.

    The MAC's key is derived from the secret, which every process that shares a cache has; `purpose` keeps the
    signatures of one cache from those of another. `covered` are bytes that the signature is of too, before the key.
    """

    MAC_SIZE = 32

    def __init__(self, secret: bytes, purpose: bytes, covered: bytes = b"") -> None:
        if not secret:
            raise ValueError("the payload secret is empty: pass the installation's secret key")
        self._mac_key = hmac.digest(secret, purpose, "sha256")
        self._covered = covered

    def seal(self, key: str, value: bytes) -> bytes:
        """HMAC-SHA256 (32 bytes) | value."""
        return self._mac(key, value) + value

    def open(self, key: str, signed: bytes) -> bytes:
        """What was signed under `key`.

        Raises PayloadError where it is truncated, changed, signed with another secret or under another key.
        """
        if len(signed) < self.MAC_SIZE:
            raise PayloadError(f"truncated to {len(signed)} bytes")
        value = signed[self.MAC_SIZE :]
        if not hmac.compare_digest(signed[: self.MAC_SIZE], self._mac(key, value)):
            raise PayloadError("the signature does not match: changed, another secret, or another key's payload")
        return value

    def _mac(self, key: str, value: bytes) -> bytes:
        name = key.encode()
        # The length says where the key ends, so no key can borrow bytes from the value.
        mac = hmac.new(self._mac_key, self._covered + len(name).to_bytes(8, "little") + name, "sha256")
        mac.update(value)
        return mac.digest()


class PayloadCodec:
    """Seals and opens payloads, with a secret as for `Signer`; no pickle above `max_bytes` is signed or unpacked."""

    def __init__(self, secret: bytes, *, max_bytes: int = 1 << 31) -> None:
        self._signer = Signer(secret, b"zhiku/retrieval/payload", covered=FORMAT)
        self._max_bytes = max_bytes

    def seal(self, key: str, state: object) -> bytes:
        """Pickles, compresses and signs a state of builtin types; raises PayloadError where it is above `max_bytes`."""
        pickled = pickle.dumps(state, protocol=5)
        if len(pickled) > self._max_bytes:
            raise PayloadError(f"a state of {len(pickled)} bytes is over the limit of {self._max_bytes}")
        return FORMAT + self._signer.seal(key, zlib.compress(pickled, level=1))

    def open(self, key: str, payload: bytes) -> object:
        """The state that was signed under `key`.

        Raises PayloadError where the payload is of another format, truncated, changed, signed with another secret or
        under another key, too large, or holds more than builtin types.
        """
        if not payload:
            raise PayloadError("truncated to nothing")
        if payload[: len(FORMAT)] != FORMAT:
            raise PayloadError(f"format {payload[: len(FORMAT)].hex()}, not {FORMAT.hex()}")
        stream = zlib.decompressobj()
        try:
            pickled = stream.decompress(self._signer.open(key, payload[len(FORMAT) :]), self._max_bytes + 1)
        except zlib.error as error:
            raise PayloadError(f"does not decompress: {error}") from error
        if len(pickled) > self._max_bytes:
            raise PayloadError(f"decompresses to more than {self._max_bytes} bytes")
        if not stream.eof:
            raise PayloadError("the compressed data ends early")
        try:
            return _BuiltinsUnpickler(io.BytesIO(pickled)).load()
        # What the pickle documentation names, and what its opcodes raise on operands of a wrong type.
        except (
            pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, ValueError, OverflowError, MemoryError,
        ) as error:  # fmt: skip
            raise PayloadError(f"does not unpickle: {error}") from error


class _BuiltinsUnpickler(pickle.Unpickler):
    """Builds numbers, text, bytes and their containers; refuses to look up any class, function or extension."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"refers to {module_name}.{global_name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError(f"refers to the persistent id {pid!r}")
