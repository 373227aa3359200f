"""Archives that come over the network: imported while the caller waits, so only those that do not take long."""

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.conf import settings
from django.core.files import File
from django.utils.translation import gettext as _

from kb.access.models.accounts import Principal, User
from kb.base.errors import NotAllowed, Rejected
from kb.ingest.services.chunk_work.checks import TEXT_CHARACTERS
from kb.operations.services.archives.export import archive_folder
from kb.operations.services.archives.restore import Bounds, Restored, restore_kb

AT_ONCE = Bounds(
    rows=20_000,
    json_bytes=20 * 1024**2,
    embedded_chunks=500,
    embedded_texts=2_000,
    characters=4_000_000,
    longest=TEXT_CHARACTERS,
)
"""Some seconds of checking, of tokenising and of a local model; the command knows no such bounds."""


def import_upload(principal: Principal, owner: User, file: "File[Any]", name: str = "") -> Restored:
    """Makes a knowledge base of an uploaded archive.

    Args:
        principal: the caller, who must not be bound to knowledge bases.
        owner: the caller's user.
        file: the archive.
        name: blank: that in the archive.

    Raises:
        NotAllowed: the caller may not make knowledge bases.
        Rejected: the archive is wrong, or too large to wait for; nothing was made.
    """
    if principal.kb_ids is not None or not principal.can_write:
        raise NotAllowed(_("This API key is bound to knowledge bases and cannot make another: use one that is not."))
    if file.size > settings.MAX_UPLOAD_BYTES:
        raise _too_large()
    with TemporaryDirectory(dir=archive_folder()) as folder:
        path = Path(folder) / "upload.zip"
        with path.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        try:
            return restore_kb(
                path, owner=owner, name=name, bounds=replace(AT_ONCE, unpacked_bytes=settings.MAX_ZIP_BYTES)
            )
        except Rejected as error:
            if error.code == "too_large":
                raise _too_large() from error
            raise


def _too_large() -> Rejected:
    message = _(
        "This archive takes too long to import while you wait: have it imported on the server with “manage.py import_kb "
        "FILE --owner USER”. Where only its vectors are missing, export it with them."
    )
    return Rejected("too_large", message)
