"""What the workers do beside their tasks."""

import logging
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.signals import worker_process_shutdown

from config.celery import Alive, BeatingScheduler, LivingScheduler, app
from kb.base import draining, probe
from kb.models import ModelUse
from retrieval.usage import Use, report


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


def test_a_scheduler_beats_with_each_tick_and_none_passes_by_a_former_ones(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HEARTBEAT_DIR", str(tmp_path / "heartbeats"))
    probe.beat("beat")
    scheduler = BeatingScheduler(
        Celery("nothing to do", set_as_current=False), schedule_filename=str(tmp_path / "schedule")
    )
    try:
        assert probe.main(["beat"]) == 1
        assert scheduler.tick() > 0
    finally:
        scheduler.close()
    assert probe.main(["beat"]) == 0


@pytest.mark.django_db
def test_a_process_of_the_pool_writes_what_it_has_counted_before_it_ends():
    report(Use("chat", "m", 10, 2))
    assert not ModelUse.objects.exists()

    worker_process_shutdown.send(None)

    assert ModelUse.objects.values_list("requests", "input_tokens", "output_tokens").get() == (1, 10, 2)
