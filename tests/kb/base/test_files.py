"""Files of the store that several threads write at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, default_storage

from kb.base.files import replace_file

PATIENCE_S = 60


def test_two_that_replace_a_file_at_once_leave_one_of_both_whole(monkeypatch):
    both, save = threading.Barrier(2, timeout=PATIENCE_S), FileSystemStorage.save

    def save_together(*arguments, **keywords):
        both.wait()
        saved = save(*arguments, **keywords)
        both.wait()
        return saved

    monkeypatch.setattr(FileSystemStorage, "save", save_together)
    contents = (b"one", b"two")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda content: replace_file("previews/1/page", ContentFile(content)), contents))

    assert default_storage.listdir("previews/1") == ([], ["page"])
    with default_storage.open("previews/1/page") as file:
        assert file.read() in contents
