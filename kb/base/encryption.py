"""Columns that hold secrets: encrypted with a key derived from SECRET_KEY, so that a copy of the database gives none away."""

import base64
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.db import models


class SecretsUnreadable(Exception):
    """Secrets were encrypted with a key that is neither SECRET_KEY nor one of SECRET_KEY_FALLBACKS: enter them again."""


def encrypted(values: Mapping[str, str]) -> str:
    """A token of a JSON object; blank for an empty one."""
    return _cipher().encrypt(json.dumps(dict(values)).encode()).decode("ascii") if values else ""


def decrypted(token: str) -> dict[str, str]:
    """The object of a token; raises SecretsUnreadable where none of the keys opens it."""
    if not token:
        return {}
    try:
        values: dict[str, str] = json.loads(_cipher().decrypt(token.encode()))
    except (InvalidToken, ValueError) as error:
        raise SecretsUnreadable from error
    return values


def renewed(token: str) -> str:
    """A token under SECRET_KEY itself, the same where it is already; raises SecretsUnreadable as `decrypted`."""
    values = decrypted(token)
    try:
        _cipher_of((settings.SECRET_KEY,)).decrypt(token.encode())
    except InvalidToken:
        return encrypted(values)
    return token


class SecretsField(models.TextField):  # type: ignore[type-arg]
    """Texts by their names, encrypted in the column; the attribute is the token, which `decrypted` opens.

    So a row that is read, printed, copied or written to a log gives no secret away. To the database and to migrations it
    is a column of text. Assigning a mapping encrypts it when the row is saved.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"blank": True, "default": "", "db_default": "", "editable": False, **kwargs})

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        name, _path, positional, named = super().deconstruct()
        return name, "django.db.models.TextField", list(positional), named

    def get_prep_value(self, value: Any) -> Any:
        return encrypted(value) if isinstance(value, Mapping) else super().get_prep_value(value)


def _cipher() -> MultiFernet:
    return _cipher_of((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


@lru_cache(maxsize=4)
def _cipher_of(keys: tuple[str, ...]) -> MultiFernet:
    """The first key encrypts; all of them decrypt."""
    return MultiFernet([Fernet(base64.urlsafe_b64encode(_derived(key))) for key in keys])


def _derived(key: str) -> bytes:
    """32 bytes for this purpose alone (HKDF, RFC 5869), so that no other use of the key tells anything about them."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"zhiku secrets").derive(key.encode())
