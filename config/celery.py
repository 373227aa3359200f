"""The Celery application. Importing it reads no setting; the first look at its configuration does."""

import logging
import logging.config
import os
from typing import Any, Final

from celery import Celery, bootsteps, signals
from celery.beat import PersistentScheduler

from config import embedded
from config.installation import data_dir
from kb.base import draining, probe
from kb.base.metrics import serve_metrics
from kb.base.telemetry import (
    otel,
    requests as _requests,  # noqa: F401 - connects its signals
)

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ.setdefault("HEARTBEAT_DIR", str(data_dir() / "heartbeats"))

app = Celery("zhiku", namespace="CELERY")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@app.on_configure.connect
def start_embedded_services(**_: Any) -> None:
    """The settings are about to be read, so the URLs of the services have to be there."""
    embedded.ensure(role="worker")


@signals.worker_init.connect
def prepare_worker(sender: Any, **_: Any) -> None:
    """Ends the worker before it takes a task that it would not do as it is meant."""
    from django.conf import settings  # noqa: PLC0415 - importing this module reads no setting

    from kb.checks import require_sound_settings  # noqa: PLC0415 - after Django's setup

    # To the audit log, once a connection and not with every statement, which would cost ingestion time
    options = settings.DATABASES["default"]["OPTIONS"]
    options["options"] = f"{options.get('options', '')} -c zhiku.how=task"
    require_sound_settings()
    if "prefork" not in str(sender.pool_cls):  # a process that is forked afterwards exports by itself
        otel.start("worker")


@signals.setup_logging.connect
def log_as_the_rest(loglevel: int | str | None = None, **_: Any) -> None:
    """Celery's lines in the form of all others; the level of its command line is that of its own loggers."""
    from django.conf import settings  # noqa: PLC0415 - configured only now

    logging.config.dictConfig(settings.LOGGING)
    if loglevel:
        logging.getLogger("celery").setLevel(loglevel)


@signals.worker_init.connect
def warn_of_an_open_sandbox(**_: Any) -> None:
    """In the log of who parses: `manage.py doctor` is run by hand."""
    from kb.base.findings import State  # noqa: PLC0415 - after Django's setup
    from kb.operations.services.health.health import parser_sandbox  # noqa: PLC0415

    found = parser_sandbox()
    if found.state is not State.OK:
        logger.warning("The %s: %s -> %s", found.name, found.detail, found.remedy)


@signals.worker_process_init.connect
def trace_in_pool(**_: Any) -> None:
    otel.start("worker")


@signals.worker_process_shutdown.connect
def write_what_is_left(**_: Any) -> None:
    """Such a process ends without what Python does at its end."""
    from kb.providers.usage import counting  # noqa: PLC0415 - after Django's setup

    counting.flush()
    otel.flush()


@signals.worker_shutting_down.connect
def begin_to_drain(**_: Any) -> None:
    """Known to the processes of the pool at once: they give back what they cannot finish in time."""
    draining.begin()


class Alive(bootsteps.StartStopStep):
    """Tells `python -m kb.base.probe worker`, or `long-worker`, that the worker's loop goes on, and serves its metrics where they are wanted."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, parent: Any, **_: Any) -> None:
        super().__init__(parent)
        is_for_uploads = app.conf.task_default_queue in app.amqp.queues.consume_from
        self._kind = "worker" if is_for_uploads else "long-worker"
        probe.begin(self._kind)

    def start(self, parent: Any) -> None:
        probe.beat(self._kind)
        parent.timer.call_repeatedly(probe.INTERVAL_SECONDS, probe.beat, (self._kind,))
        serve_metrics()


class BeatingScheduler(PersistentScheduler):
    """Celery's scheduler, which also tells `python -m kb.base.probe beat` that it goes on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        probe.begin("beat")
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        probe.beat("beat")
        return float(super().tick(*args, **kwargs))


class LivingScheduler(bootsteps.StartStopStep):
    """Starts the scheduler inside a worker again where it was killed, as the pool does with its processes.

    Without it the worker would go on, and nothing that was lost would ever be retried.
    """

    requires = ("celery.worker.components:Beat", "celery.worker.components:Timer")

    def start(self, parent: Any) -> None:
        if parent.beat is not None:
            parent.timer.call_repeatedly(LOOK_SECONDS, self._look, (parent,))

    def _look(self, worker: Any) -> None:
        if worker.beat.is_alive() or draining.since() is not None:
            return
        logger.error("The scheduler has ended, and is restarted.")
        step = next(step for step in worker.steps if step.obj is worker.beat)
        step.obj = step.create(worker)
        step.obj.start()


app.steps["worker"].update({Alive, LivingScheduler})
