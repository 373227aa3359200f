"""Weights are fetched by a worker from a hub, with progress, and where they stopped when they are asked for again."""

import shutil
from collections import namedtuple
from io import StringIO

import pytest
from django.core.management import call_command

from kb.base import draining
from kb.base.errors import NotAllowed, Rejected
from kb.base.messages import shown
from kb.models import ModelDownload
from kb.providers.downloads import services
from kb.providers.downloads.services import DOWNLOADS, download_cancel, download_run, download_start, mirrors
from kb.tasks import fetch_model, sweep_model_downloads
from retrieval.model_files import cache_folder, installed_path, probe
from tests.factories import make_user
from tests.hub import reachable

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("english")]

MODEL = "BAAI/bge-small-zh-v1.5"
OTHER = "somebody/own-model"
PIECE = 64 * 1024
WEIGHTS = bytes(range(256)) * 8_000
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}
Status = ModelDownload.Status


@pytest.fixture
def admin():
    return make_user("root", superuser=True)


@pytest.fixture
def hub(monkeypatch, tmp_path, settings):
    with reachable(monkeypatch, tmp_path / "cache", {MODEL: FILES, OTHER: FILES}) as hub:
        settings.HF_ENDPOINT = hub.url
        yield hub


def run(row):
    download_run(row.pk)
    row.refresh_from_db()
    return row


def test_a_model_is_fetched_and_can_be_used(hub, admin):
    row = download_start(admin, MODEL)
    assert (row.status, row.mirror, row.bytes_total) == (Status.WAITING, hub.url, 96_000_000)

    run(row)

    assert (row.status, row.error, row.percent) == (Status.DONE, "", 100)
    assert row.bytes_done == row.bytes_total == sum(map(len, FILES.values()))
    assert installed_path(MODEL)
    with pytest.raises(Rejected, match="already"):
        download_start(admin, MODEL)


def test_only_superusers_start_and_cancel(hub, admin):
    row, other = download_start(admin, MODEL), make_user("other")

    with pytest.raises(NotAllowed):
        download_start(other, OTHER)
    with pytest.raises(NotAllowed):
        download_cancel(other, row)


@pytest.mark.parametrize("name", ["", "../../etc", "a/b/c", "https://elsewhere/x", "a b", "x" * 201])
def test_what_is_no_id_is_refused(hub, admin, name):
    with pytest.raises(Rejected, match="id of a model"):
        download_start(admin, name)


def test_only_known_hubs_are_asked(hub, admin):
    with pytest.raises(Rejected, match="HF_ENDPOINT"):
        download_start(admin, MODEL, "http://169.254.169.254")
    assert mirrors() == [hub.url, "https://huggingface.co", "https://hf-mirror.com"]


def test_a_connection_that_breaks_is_told_and_files_that_have_arrived_are_not_fetched_again(hub, admin):
    hub.cut.add("model.safetensors")
    row = run(download_start(admin, MODEL))
    assert row.status == Status.FAILED
    assert "could not be downloaded" in shown(row.error)
    assert row.bytes_done < row.bytes_total

    hub.cut.clear()
    row = run(download_start(admin, MODEL))

    assert (row.status, row.error) == (Status.DONE, "")
    assert hub.sent["config.json"] == len(FILES["config.json"])


def test_a_connection_that_breaks_in_a_file_goes_on_where_it_was(hub, admin, monkeypatch):
    """Within one download, which the hub's client tries again; what is left of one that ended it deletes."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", PIECE)
    hub.cut_once.add("model.safetensors")

    row = run(download_start(admin, MODEL))

    assert row.status == Status.DONE
    assert len(WEIGHTS) <= hub.sent["model.safetensors"] < len(WEIGHTS) + PIECE
    assert not list(cache_folder().rglob("*.incomplete"))


def test_a_model_that_the_hub_does_not_have(hub, admin):
    row = run(download_start(admin, "nobody/nothing"))

    assert row.status == Status.FAILED
    assert "not available" in shown(row.error)


def test_a_cancelled_one_ends_while_it_is_fetched(hub, admin, monkeypatch):
    monkeypatch.setattr(services, "REPORT_SECONDS", 0.0)
    row = download_start(admin, MODEL)
    real = services.Job.update

    def cancelled_meanwhile(job, **fields):
        if fields.get("bytes_done"):
            assert download_cancel(admin, row)
        real(job, **fields)

    monkeypatch.setattr(services.Job, "update", cancelled_meanwhile)
    run(row)

    assert row.status == Status.CANCELLED
    assert installed_path(MODEL) is None
    assert not download_cancel(admin, row)
    monkeypatch.undo()


def test_one_that_waits_can_be_cancelled_and_is_not_fetched(hub, admin):
    row = download_start(admin, MODEL)

    assert download_cancel(admin, row)
    run(row)

    assert row.status == Status.CANCELLED
    assert not hub.sent


def test_a_worker_that_ends_leaves_it_to_another(hub, admin, settings):
    settings.WORKER_GRACE_SECONDS = 0.0
    row = download_start(admin, MODEL)
    draining.begin()
    try:
        assert download_run(row.pk)
    finally:
        draining.forget()
    row.refresh_from_db()
    assert row.status == Status.WAITING

    assert run(row).status == Status.DONE


def test_a_lost_worker_s_download_is_taken_up_by_the_sweep(hub, admin, django_capture_on_commit_callbacks):
    row = download_start(admin, MODEL)
    job = DOWNLOADS.claim(DOWNLOADS.claimable())
    ModelDownload.objects.update(lease_until="2020-01-01T00:00:00Z")

    sweep_model_downloads.apply()
    fetch_model.apply([row.pk])

    row.refresh_from_db()
    assert row.status == Status.DONE
    assert job.lease != row.lease


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(hub, admin, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 10 * 1024**2))

    row = run(download_start(admin, MODEL))

    assert row.status == Status.FAILED
    assert "10 MB left, and 501 MB are needed" in shown(row.error)
    assert not hub.sent


def test_pickles_of_strangers_are_left_to_whoever_runs_the_server(hub, admin):
    hub.models[OTHER] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}

    row = run(download_start(admin, OTHER))

    assert row.status == Status.FAILED
    assert "safetensors" in shown(row.error)
    assert not hub.sent
    call_command("download_model", OTHER, stdout=StringIO(), stderr=StringIO())
    assert installed_path(OTHER)


def test_weights_that_become_pickles_once_they_were_looked_at_are_not_fetched(hub, admin, monkeypatch):
    def looked_at(*arguments, **keywords):
        found = probe(*arguments, **keywords)
        hub.models[OTHER] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
        return found

    monkeypatch.setattr(services, "probe", looked_at)

    row = run(download_start(admin, OTHER))

    assert row.status == Status.FAILED
    assert installed_path(OTHER) is None


def test_a_download_that_ends_its_worker_each_time_is_given_up_and_can_be_started_again(hub, admin):
    row = download_start(admin, MODEL)
    ModelDownload.objects.update(attempts=services.MAX_ATTEMPTS)
    assert "stopped three times" in shown(run(row).error)
    assert row.status == Status.FAILED
    assert download_start(admin, MODEL).attempts == 0
    assert run(row).status == Status.DONE
