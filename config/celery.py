"""The Celery application. Importing it reads no setting; the first look at its configuration does."""

import os
from typing import Any

from celery import Celery

from config import embedded

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("zhiku", namespace="CELERY")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@app.on_configure.connect
def start_embedded_services(**_: Any) -> None:
    """The settings are about to be read, so the URLs of the services have to be there."""
    embedded.ensure()
