"""Other users of the machine read no upload, no archive and no backup."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from django.core.files.base import ContentFile
from django.core.management import call_command

from kb.base.files import replace_file
from kb.base.findings import State
from kb.operations.services.archives.export import archive_folder
from kb.operations.services.health import health
from tests.factories import make_document, make_kb


def mode(path):
    return Path(path).stat().st_mode & 0o777


def test_uploads_are_their_owner_s(db):
    document = make_document(make_kb(), "text")
    document.file.save("a.txt", ContentFile(b"text"))
    assert (mode(document.file.path), mode(Path(document.file.path).parent)) == (0o600, 0o700)


def test_a_file_of_the_store_is_its_owner_s_also_when_it_is_replaced(settings):
    path = Path(settings.MEDIA_ROOT) / "backups-of-a-test" / "a.tar"
    for content in (b"one", b"two"):
        replace_file("backups-of-a-test/a.tar", ContentFile(content))
        assert (path.read_bytes(), mode(path), mode(path.parent)) == (content, 0o600, 0o700)


def test_folders_that_are_missing_are_made_private(settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path / "data" / "media"
    assert {mode(each) for each in (archive_folder(), settings.MEDIA_ROOT, tmp_path / "data")} == {0o700}


def test_an_exported_archive_is_its_owner_s(db, tmp_path):
    kb = make_kb(name="small")
    make_document(kb, "text")
    call_command("export_kb", str(tmp_path / "kb.zip"), kb="small")
    assert mode(tmp_path / "kb.zip") == 0o600


@pytest.mark.parametrize(("folder", "expected"), [(0o755, State.DEGRADED), (0o750, State.OK), (0o700, State.OK)])
def test_the_doctor_says_when_others_can_read_the_uploads(settings, folder, expected):
    with TemporaryDirectory() as data:
        Path(data).chmod(0o711)
        settings.DATA_DIR, settings.MEDIA_ROOT = Path(data), Path(data) / "media"
        settings.MEDIA_ROOT.mkdir()
        settings.MEDIA_ROOT.chmod(folder)
        assert health.data_directory().state is expected
