"""Uploads in an object store that speaks S3."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.utils.crypto import get_random_string
from storages.backends.s3 import S3File, S3Storage

from kb.base.files import FilesUnavailable

# Between two pieces of an answer, not for all of it.
READ_SECONDS: Final = 15


@contextmanager
def _mapped_errors() -> Iterator[None]:
    """Faults of the store as `FilesUnavailable`; that an object is not there stays a `FileNotFoundError`."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise FilesUnavailable(
            f"The object store cannot be used ({error}): look at S3_BUCKET, S3_ENDPOINT_URL and its credentials."
        ) from error


class ObjectFile(S3File):  # type: ignore[misc] # the package has no types
    file = property(_mapped_errors()(S3File._get_file), S3File._set_file)


class ObjectStorage(S3Storage):  # type: ignore[misc] # the package has no types
    """S3 whose objects are never public; each has a name of its own, as no call creates one only where none is yet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        limits = Config(
            connect_timeout=3, read_timeout=READ_SECONDS, retries={"total_max_attempts": 2, "mode": "standard"}
        )
        self.client_config: Config = self.client_config.merge(limits)

    @_mapped_errors()
    def _open(self, name: str, mode: str = "rb") -> ObjectFile:
        try:
            return ObjectFile(self._normalize_name(name), mode, self)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                raise FileNotFoundError(f"there is no object {name}") from error
            raise

    def get_available_name(self, name: str, max_length: int | None = None) -> str:  # noqa: ARG002 - 500 are enough
        """A name that nothing has: two uploads of the same bytes must not share an object, which the loser deletes."""
        root, extension = os.path.splitext(name)  # noqa: PTH122 - a name, no path
        return f"{root}_{get_random_string(12)}{extension}"

    _save = _mapped_errors()(S3Storage._save)
    replace = _save  # under exactly this name, over what is there
    delete = _mapped_errors()(S3Storage.delete)
    exists = _mapped_errors()(S3Storage.exists)
    size = _mapped_errors()(S3Storage.size)

    def files_below(self, name: str) -> Iterator[tuple[str, int, datetime]]:
        """Name, bytes and time of writing of all objects whose names begin with `name` and a slash, a thousand a request."""
        folder = f"{self._normalize_name(name).rstrip('/')}/"
        with _mapped_errors():
            for each in self.bucket.objects.filter(Prefix=folder):
                yield f"{name.rstrip('/')}/{each.key[len(folder) :]}", each.size, each.last_modified

    @_mapped_errors()
    def delete_folder(self, name: str) -> None:
        """Deletes all objects whose names begin with `name` and a slash, a thousand a request."""
        self.bucket.objects.filter(Prefix=f"{self._normalize_name(name).rstrip('/')}/").delete()
