"""What the workers do beside their tasks."""

import logging
from types import SimpleNamespace

import pytest

from config.celery import Alive, LivingScheduler, app
from kb.base import draining, probe


@pytest.fixture
def _draining():
    yield
    draining.forget()


class Ended:
    def is_alive(self):
        return False


@pytest.mark.usefixtures("_draining")
def test_a_worker_that_ends_leaves_its_scheduler_alone(caplog):
    made = []
    step = SimpleNamespace(obj=Ended(), create=lambda _worker: made.append(1) or SimpleNamespace(start=lambda: None))
    worker = SimpleNamespace(beat=step.obj, steps=[step])
    looking = LivingScheduler.__new__(LivingScheduler)
    with caplog.at_level(logging.ERROR):
        draining.begin()
        looking._look(worker)
        assert (made, caplog.messages) == ([], [])
        draining.forget()
        looking._look(worker)
    assert made == [1]
    assert caplog.messages == ["The scheduler has ended, and is restarted."]


@pytest.mark.parametrize(
    ("queues", "kind"), [(None, "worker"), ("celery,documents", "worker"), ("long,moves", "long-worker")]
)
def test_a_worker_for_long_work_beats_by_another_name_and_none_passes_by_a_former_ones(
    queues, kind, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("HEARTBEAT_DIR", str(tmp_path))
    monkeypatch.setattr(app.amqp, "queues", app.amqp.Queues(app.conf.task_queues))
    app.amqp.queues.select(queues.split(",") if queues else None)
    probe.beat(kind)
    assert probe.main([kind]) == 0
    alive = Alive(SimpleNamespace())
    assert probe.main([kind]) == 1
    alive.start(SimpleNamespace(timer=SimpleNamespace(call_repeatedly=lambda *_: None)))
    assert [each.name for each in tmp_path.iterdir()] == [kind]
