"""What is on the disk only while somebody works with it: in a folder of the data directory, never in memory."""

import contextlib
import shutil
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler

_DAY_S: Final = 24 * 60 * 60
"""Longer than any request or task lasts."""


class UnnamedFileUploadHandler(FileUploadHandler):
    """Streams into a file without a name, which goes with its process, also with one that is killed."""

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        super().new_file(*args, **kwargs)
        file = TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR)  # noqa: SIM115 - the view's, or `upload_interrupted`
        details = (self.file_name, self.content_type, 0, self.charset, self.content_type_extra)
        self.file = UploadedFile(file, *details)

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:  # noqa: ARG002 - the framework's interface
        self.file.write(raw_data)

    def file_complete(self, file_size: int) -> "UploadedFile[Any]":
        self.file.seek(0)
        self.file.size = file_size
        return self.file

    def upload_interrupted(self) -> None:
        if self.file is not None:
            self.file.close()


def make_temporary_folder() -> None:
    """Makes the folder, which only its owner may read, and removes what processes that were killed have left in it."""
    folder = Path(settings.FILE_UPLOAD_TEMP_DIR)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.iterdir():
        with contextlib.suppress(OSError):  # another process has removed it, or it is not ours
            if time.time() - left.lstat().st_mtime < _DAY_S:
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
