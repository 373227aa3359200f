"""A full disk is one error, whoever finds it."""

import errno
from pathlib import Path

import psycopg
import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import OperationalError
from django.http import UnreadablePostError

from kb.base.disk import DiskFull, has_room, is_disk_full, noticing_full_disk, reserve
from kb.base.files import DiskStorage, replace_file
from tests.disks import fill, no_room, small_disk


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (caused(UnreadablePostError(), OSError(errno.ENOSPC, "No space left on device")), True),
        (caused(OperationalError(), psycopg.errors.DiskFull()), True),
        (DiskFull(), True),
        (OSError(errno.EIO, "Input/output error"), False),
        (caused(OperationalError(), psycopg.errors.AdminShutdown()), False),
        (ValueError(), False),
    ],
    ids=repr,
)
def test_what_says_that_a_disk_is_full(error, expected):
    assert is_disk_full(error) is expected
    with pytest.raises(DiskFull if expected else type(error)), noticing_full_disk():
        raise error


def test_a_write_to_a_full_device_is_noticed():
    with pytest.raises(DiskFull), noticing_full_disk(), Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"a")


def test_a_small_disk_has_a_small_reserve(settings):
    settings.DISK_RESERVE_BYTES = 100
    assert (reserve(10_000), reserve(500)) == (100, 50)


def test_room_is_what_is_free_besides_the_reserve(settings, tmp_path):
    assert has_room(1, tmp_path)
    assert not has_room(2**60, tmp_path)


def test_files_are_refused_while_only_the_reserve_is_free():
    with no_room(), pytest.raises(DiskFull, match="已满"):
        default_storage.save("a.txt", ContentFile(b"a"))
    assert default_storage.save("a.txt", ContentFile(b"a")) == "a.txt"


def test_a_file_that_finds_no_room_leaves_the_former_one():
    with small_disk(1) as folder:
        storage = DiskStorage(location=folder)
        storage.save("a.txt", ContentFile(b"former"))
        fill(folder)
        with pytest.raises(DiskFull):
            storage.save("b.txt", ContentFile(bytes(100_000)))
        assert (folder / "a.txt").read_bytes() == b"former"


def test_a_replaced_file_that_finds_no_room_leaves_the_former_one(settings):
    with small_disk(1) as folder:
        settings.MEDIA_ROOT = folder
        replace_file("a.txt", ContentFile(b"former"))
        fill(folder)
        with pytest.raises(DiskFull):
            replace_file("a.txt", ContentFile(bytes(100_000)))
        assert {path.name for path in folder.iterdir()} == {"a.txt", "filler"}
