"""What was bound where a task was sent is bound where it runs; and its line, its time, its count."""

import logging
import time
from contextvars import Token
from typing import Any, Final

from celery import Task, signals

from kb.base.metrics import observe_task
from kb.base.telemetry import logs

logger = logging.getLogger("zhiku.tasks")

HEADER: Final = "zhiku"
# Of the work, not of the process that sent it.
CARRIED: Final = ("request_id", "batch_id")
_running: dict[str, tuple[Token[logs.Fields], float]] = {}


@signals.before_task_publish.connect
def send_along(headers: dict[str, Any] | None = None, **_: Any) -> None:
    if headers is not None:
        bound = logs.fields()
        headers[HEADER] = {name: bound[name] for name in CARRIED if name in bound}


@signals.task_prerun.connect
def begin(task_id: str, task: "Task[..., Any]", **_: Any) -> None:
    # A worker makes attributes of the headers; a task that is run in place keeps them together.
    sent = getattr(task.request, HEADER, None) or (task.request.headers or {}).get(HEADER)
    carried = {name: str(sent[name]) for name in CARRIED if name in sent} if isinstance(sent, dict) else {}
    token = logs.bind({"request_id": None, **carried, "task": task.name, "task_id": task_id})
    _running[task_id] = token, time.perf_counter()


@signals.task_postrun.connect
def end(task_id: str, task: "Task[..., Any]", state: str | None = None, **_: Any) -> None:
    if task_id not in _running:
        return
    token, started = _running.pop(task_id)
    seconds = time.perf_counter() - started
    observe_task(task.name, (state or "unknown").lower(), seconds)
    # The sweeps come every half minute.
    level = logging.DEBUG if ".sweep_" in task.name else logging.INFO
    logger.log(level, "%s %s", task.name, state, extra={"zhiku": {"state": state, "ms": round(seconds * 1_000, 1)}})
    logs.unbind(token)
