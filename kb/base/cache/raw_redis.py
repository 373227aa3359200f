"""django-redis with bytes in and the same bytes out: nothing is pickled, unpickled or taken for a number."""

from typing import Any

from django_redis.client import DefaultClient
from django_redis.serializers.base import BaseSerializer


class BytesOnlySerializer(BaseSerializer):  # type: ignore[misc]
    """Refuses whatever is not bytes."""

    def dumps(self, value: Any) -> bytes:
        if not isinstance(value, bytes):
            raise TypeError(f"this cache holds bytes only, not {type(value).__name__}: encode the value first")
        return value

    def loads(self, value: bytes) -> bytes:
        return value


class RawBytesClient(DefaultClient):  # type: ignore[misc]
    """The stock client turns b"123" into the integer 123 and lets integers pass by the serializer."""

    def encode(self, value: Any, *, allow_int: bool = True) -> bytes:  # noqa: ARG002 - the library's signature
        return BytesOnlySerializer({}).dumps(value)

    def decode(self, value: bytes) -> bytes:
        return value
