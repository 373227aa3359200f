"""Fetches weights of local models in the background: started, cancelled and tried again by superusers."""

import logging
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import httpx
from django.conf import settings
from django.db.models import Q
from django.utils.translation import gettext as _

from kb.access.models import User
from kb.base.errors import NotAllowed, Rejected
from kb.base.findings import gettext_noop
from kb.base.net.interruptible import made_interruptible
from kb.jobs.leases import Job, LeaseLost, Queue, WorkerEnds, return_if_ending
from kb.providers.downloads.models import ModelDownload
from kb.providers.recommended import MODELS
from retrieval.errors import DependencyMissing, Message, ModelUnavailable, message_of
from retrieval.model_files import DEFAULT_ENDPOINT, HUB_ID, cache_folder, download, installed_path, probe

logger = logging.getLogger(__name__)

Status = ModelDownload.Status

OTHER_MIRRORS: Final = ("https://hf-mirror.com",)
LEASE: Final = timedelta(minutes=2)
REPORT_SECONDS: Final = 0.5
PROBE_SECONDS: Final = 30.0
SPARE_BYTES: Final = 500 * 1024**2
MAX_ATTEMPTS: Final = 3
WORKER_LOST: Final = gettext_noop(
    "The worker stopped three times while it downloaded this model. Its log says why: fix it, then start the download again."
)
RECOMMENDED: Final = frozenset(each.model_id for each in MODELS)

DOWNLOADS = Queue(
    ModelDownload,
    waiting=Status.WAITING,
    running=Status.RUNNING,
    lasts=lambda: LEASE,
    waits_since="updated_at",
    stamp="updated_at",
    owner="created_by",
)


def mirrors() -> list[str]:
    """The hubs that weights may come from, the usual one first: HF_ENDPOINT names one of the operator's own."""
    return list(dict.fromkeys(filter(None, (settings.HF_ENDPOINT.rstrip("/"), DEFAULT_ENDPOINT, *OTHER_MIRRORS))))


def download_start(user: User, model_id: str, mirror: str = "") -> ModelDownload:
    """Has a worker fetch a model, or go on with one that failed or was cancelled; what has arrived is not fetched again.

    Raises NotAllowed to all but superusers, and Rejected for what is no id of a hub, is here, or is under way.
    """
    if not user.is_superuser:
        raise NotAllowed(_("Only superusers may download models."))
    name, hub = model_id.strip(), mirror or mirrors()[0]
    if not HUB_ID.fullmatch(name) or len(name) > 200:
        raise Rejected("unknown_model", _("Give the id of a model on the hub, such as BAAI/bge-m3."))
    if hub not in mirrors():
        raise Rejected("unknown_mirror", _("Choose one of the mirrors offered; HF_ENDPOINT adds one of your own."))
    if installed_path(name) is not None:
        raise Rejected("already_here", _("“%(model)s” is on this server already."), model=name)
    announced = next((each.download_mb * 10**6 for each in MODELS if each.model_id == name), None)
    row, is_new = ModelDownload.objects.get_or_create(
        model=name, defaults={"mirror": hub, "created_by": user, "bytes_total": announced}
    )
    if is_new:
        return row
    if row.is_unfinished:
        raise Rejected("under_way", _("“%(model)s” is being downloaded already."), model=name)
    row.status, row.mirror, row.error, row.created_by, row.attempts = Status.WAITING, hub, "", user, 0
    row.save(update_fields=["status", "mirror", "error", "created_by", "attempts", "updated_at"])
    return row


def download_cancel(user: User, row: ModelDownload) -> bool:
    """Whether it could be ended; its worker notices within a second, and what has arrived stays for the next try."""
    if not user.is_superuser:
        raise NotAllowed(_("Only superusers may download models."))
    unfinished = ModelDownload.objects.filter(pk=row.pk, status__in=ModelDownload.UNFINISHED)
    return bool(unfinished.update(**DOWNLOADS.freed(Status.CANCELLED)))


def download_run(download_id: int) -> bool:
    """Fetches a model that waits; True: this worker ends, and another one is to go on."""
    job = DOWNLOADS.claim(Q(pk=download_id), error="")
    if job is None:
        return False
    try:
        if job.row.attempts > MAX_ATTEMPTS:
            job.leave(Status.FAILED, error=WORKER_LOST)
            return False
        with DOWNLOADS.renewing(job.lease):
            _fetch(job)
        job.leave(Status.DONE)
    except LeaseLost:
        logger.info("the download of %s was cancelled", job.row.model)
    except WorkerEnds:
        job.wait(attempts=0)
        return True
    except (ModelUnavailable, DependencyMissing) as error:
        logger.warning("model %s was not downloaded: %s", job.row.model, message_of(error))
        job.leave(Status.FAILED, error=message_of(error))
    return False


def _fetch(job: Job[ModelDownload]) -> None:
    """Raises ModelUnavailable where the hub cannot serve it, the disk is too small, or its weights are not to be trusted."""
    model, hub = job.row.model, job.row.mirror
    with made_interruptible(httpx.Client()) as client:
        found = probe(model, endpoint=hub, timeout_s=PROBE_SECONDS, client=client)
    if found.found == "none":
        raise ModelUnavailable(found.reason)
    if found.is_pickled and model not in RECOMMENDED:
        raise ModelUnavailable(
            Message(
                gettext_noop(
                    "the weights of “{model}” are pickles, which can run code when they are opened: choose a model with "
                    "safetensors, or run `manage.py download_model {model}` on the server if you trust whoever made it"
                ),
                model=model,
            )
        )
    if found.size_bytes:
        _require_room(found.size_bytes - job.row.bytes_done)
    job.update(bytes_total=found.size_bytes)
    reported_at = 0.0

    def progress(done: int, _total: int) -> None:
        nonlocal reported_at
        return_if_ending()
        if time.monotonic() - reported_at >= REPORT_SECONDS:
            reported_at = time.monotonic()
            job.update(bytes_done=done)

    cache_folder()  # DependencyMissing: there is no client of the hub
    from huggingface_hub.utils import _http  # noqa: PLC0415 - optional, and slow to import

    # Downloads of this process end with their rows, wherever the client waits.
    _http.set_client_factory(lambda: made_interruptible(_http.default_client_factory()))
    folder = download(model, endpoint=hub, progress=progress, revision=found.revision, files=found.files)
    size = found.size_bytes or sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    job.update(bytes_done=size, bytes_total=size)


def _require_room(needed: int) -> None:
    free = free_bytes()
    if free < needed + SPARE_BYTES:
        text = gettext_noop(
            "The disk of the models has {free} MB left, and {needed} MB are needed: delete what is not used from {folder}, or "
            "set HF_HOME to a folder on a larger disk."
        )
        need, have = (needed + SPARE_BYTES) // 1024**2, free // 1024**2
        raise ModelUnavailable(Message(text, free=have, needed=need, folder=str(cache_folder())))


def free_bytes() -> int:
    """What is left on the disk that holds the weights."""
    folder: Path = cache_folder()
    return shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
