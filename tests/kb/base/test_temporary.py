import os
import stat

from kb.base.files import make_temporary_folder

LONG_AGO = 1_000_000_000


def test_the_folder_is_its_owner_s_alone(settings, tmp_path):
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path / "data" / "tmp"

    make_temporary_folder()

    assert stat.S_IMODE(settings.FILE_UPLOAD_TEMP_DIR.stat().st_mode) == 0o700


def test_what_killed_processes_have_left_goes_and_what_is_in_use_stays(settings, tmp_path):
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    (outside / "file").touch()
    for name in ("old", "new"):
        (tmp_path / f"{name}.txt").touch()
        (tmp_path / name).mkdir()
        (tmp_path / name / "inside.txt").touch()
    (tmp_path / "old-link").symlink_to(outside)
    for left in ("old", "old.txt", "old-link"):
        os.utime(tmp_path / left, (LONG_AGO, LONG_AGO), follow_symlinks=False)

    make_temporary_folder()

    assert {path.name for path in tmp_path.iterdir()} == {"new", "new.txt"}
    assert (outside / "file").exists()
