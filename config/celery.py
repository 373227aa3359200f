"""The Celery application. Importing it reads no setting; the first look at its configuration does."""

import logging
import os
from typing import Any, Final

from celery import Celery, bootsteps

from config import embedded

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("zhiku", namespace="CELERY")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@app.on_configure.connect
def start_embedded_services(**_: Any) -> None:
    """The settings are about to be read, so the URLs of the services have to be there."""
    embedded.ensure()


class LivingScheduler(bootsteps.StartStopStep):
    """Begins the scheduler inside a worker anew where it was killed, as the pool does with its processes.

    Without it the worker would go on, and nothing that was lost would ever be taken up again.
    """

    requires = ("celery.worker.components:Beat", "celery.worker.components:Timer")

    def start(self, parent: Any) -> None:
        if parent.beat is not None:
            parent.timer.call_repeatedly(LOOK_SECONDS, self._look, (parent,))

    def stop(self, parent: Any) -> None:
        """The timer ends with the worker."""

    def _look(self, worker: Any) -> None:
        if worker.beat.is_alive():
            return
        logger.error("The scheduler has ended, and is begun anew.")
        step = next(step for step in worker.steps if step.obj is worker.beat)
        step.obj = step.create(worker)
        step.obj.start()


app.steps["worker"].add(LivingScheduler)
