"""Where previews lie, and how many: what was used last stays, within a bound on the bytes of all of them."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Final

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.utils import timezone

from kb.access.models import KnowledgeBase
from kb.base.disk import DiskFull
from kb.base.files import StoredFile, delete_folder, files_below, note_use, replace_file
from kb.content.models import documents_folder

KEPT_FOR: Final = timedelta(days=30)  # without being used: they are made again when they are asked for
# Shares of the bound: what is left once it was passed, and what a process writes between two looks at all of them. Several
# processes pass it by so much each.
LEFT: Final = 0.9
UNSEEN: Final = 0.05


class _Unseen:
    """The bytes that this process has written since it last looked; it has not yet: any."""

    def __init__(self) -> None:
        self._bytes: float = inf
        self._lock = threading.Lock()

    def add(self, count: int) -> bool:
        """Whether it is time to look; of several threads one is told."""
        with self._lock:
            self._bytes += count
            is_due = bool(self._bytes > UNSEEN * settings.PREVIEWS_MAX_BYTES)
            if is_due:
                self._bytes = 0
            return is_due


_unseen = _Unseen()


def preview_read(place: str) -> bytes | None:
    """What is stored under a name, which counts as a use of it; None: nothing, or nothing any more."""
    try:
        with default_storage.open(place, "rb") as file:
            data = bytes(file.read())
    except FileNotFoundError:
        return None
    note_use(place)
    return data


def preview_write(place: str, data: bytes) -> None:
    """Stores a preview, and deletes those that were used longest ago where they are too many bytes now.

    On a full disk none is stored: it is shown, and drawn again the next time.
    """
    with suppress(DiskFull):
        replace_file(place, ContentFile(data))
    if _unseen.add(len(data)):
        previews_trim(but=place)


def previews_trim(but: str = "") -> int:
    """Deletes the previews that were used longest ago, but for one, down to a share of the bound; returns how many bytes."""
    files = list(_all_files())
    too_many, deleted = sum(file.size for file in files) - settings.PREVIEWS_MAX_BYTES, 0
    if too_many <= 0:
        return 0
    too_many += int((1 - LEFT) * settings.PREVIEWS_MAX_BYTES)
    for file in sorted(files, key=lambda file: file.used_at):
        if deleted >= too_many:
            break
        if file.name != but:
            default_storage.delete(file.name)
            deleted += file.size
    return deleted


def previews_purge() -> int:
    """Deletes the previews of documents that were not used for a while; returns of how many."""
    before, count = timezone.now() - KEPT_FOR, 0
    for root in _roots():
        newest: dict[str, bool] = {}
        for file in files_below(root):
            folder = file.name[len(root) + 1 :].partition("/")[0]
            newest[folder] = newest.get(folder, False) or file.used_at >= before
        for folder, was_used in newest.items():
            if not was_used:
                delete_folder(f"{root}/{folder}")
                count += 1
    previews_trim()
    return count


def _roots() -> Iterator[str]:
    for kb_id in KnowledgeBase.objects.order_by("pk").values_list("pk", flat=True):
        yield f"{documents_folder(kb_id)}/previews"


def _all_files() -> Iterator[StoredFile]:
    for root in _roots():
        yield from files_below(root)
