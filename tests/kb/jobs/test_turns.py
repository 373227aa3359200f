"""Work is handed out in turn by owner, whatever the order in which it arrived."""

import uuid
from datetime import timedelta
from threading import Event

import pytest
from django.conf import settings as configured
from django.core.files.base import ContentFile
from django.db import OperationalError
from django.utils import timezone

from kb import tasks
from kb.base.cancellation import interruptible
from kb.graph.services.writing import EXTRACTIONS
from kb.ingest.services.batches import batch_create, batch_retry
from kb.ingest.services.documents import DOCUMENTS, MOST_TIMEOUTS, document_add
from kb.ingest.services.indexing import index_document
from kb.jobs.leases import TASK_AWAITED, LeaseLost, Queue, after, watching
from kb.models import Document, EvalRun, EvalSet, GraphExtraction, Source, Turn
from kb.quality.runs.services.runs import RUNS
from kb.sources.services.sources import SOURCES
from kb.tasks import LONG_WORK, UPLOADS
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch):
    found = []
    monkeypatch.setattr(tasks, "enqueue", lambda task, *ids: found.append((task.__name__, ids)))
    return found


def note(kb, text, **fields):
    return document_add(knowledge_base=kb, file=ContentFile(text.encode()), name="note.txt", user=None, **fields)


def notes(kb, count):
    return [note(kb, f"note {number}") for number in range(count)]


def taken(queue, *rows):
    """In the hands of a process."""
    for row in rows:
        queue.model.objects.filter(pk=row.pk).update(**queue.taken(uuid.uuid4()))


def next_of(line, queue, row):
    turn = line.next(queue, [getattr(row, queue.key)])
    return turn and turn[1][0]


def make_source(kb, **fields):
    return Source.objects.create(
        knowledge_base=kb, name=f"{uuid.uuid4()}", url="http://a.example/", status="waiting", **fields
    )


def make_run(kb):
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    return EvalRun.objects.create(eval_set=eval_set, profile=kb.profile, configuration={}, total=1)


def test_who_holds_all_processes_but_one_waits_while_somebody_else_does(sent):
    many, one = make_kb(), make_kb()
    first, *others = notes(many, 10)
    taken(DOCUMENTS, first)
    late = note(one, "a short note")

    tasks.ingest_documents(*(each.pk for each in others))

    assert Document.objects.get(pk=late.pk).status == "ready"
    assert set(Document.objects.filter(knowledge_base=many).values_list("status", flat=True)) == {
        "pending",
        "processing",
    }
    assert sent == [("ingest_documents", tuple(each.pk for each in others))]


def test_one_owner_alone_may_have_every_process():
    first, second, third = notes(make_kb(), 3)
    taken(DOCUMENTS, first, second)
    assert next_of(UPLOADS, DOCUMENTS, third) == third.pk


def test_with_one_process_owners_take_turns():
    a, b = make_kb(), make_kb()
    rows = [*notes(a, 3), *notes(b, 3)]
    order = []
    while rows:
        chosen = next_of(UPLOADS, DOCUMENTS, rows[0])
        order.append(Document.objects.get(pk=chosen).knowledge_base)
        Document.objects.filter(pk=chosen).update(status="ready")
        rows = [row for row in rows if row.pk != chosen]
    assert order == [a, b, a, b, a, b]


def test_two_knowledge_bases_of_one_owner_are_one_turn():
    kb = make_kb()
    (first, *_), (other, *_), (late, *_) = notes(kb, 2), notes(make_kb(kb.owner), 2), notes(make_kb(), 1)
    assert next_of(UPLOADS, DOCUMENTS, first) == first.pk
    Document.objects.filter(pk=first.pk).update(status="ready")
    assert next_of(UPLOADS, DOCUMENTS, other) == late.pk


def test_a_batch_of_small_ones_gives_way_after_each(sent, monkeypatch):
    monkeypatch.setattr("kb.ingest.services.indexing.BATCH_BYTES", len("note 1"))
    many, one = make_kb(), make_kb()
    ids = [each.pk for each in notes(many, 4)]
    note(one, "a short note")

    tasks.ingest_documents(*ids)
    tasks.ingest_documents(*ids)

    assert [kb for (kb,) in Document.objects.filter(status="ready").order_by("pk").values_list("knowledge_base")] == [
        many.pk,
        one.pk,
    ]


def test_a_token_whose_rows_are_done_does_nothing(sent):
    done, waiting = notes(make_kb(), 2)
    Document.objects.filter(pk=done.pk).update(status="ready")
    tasks.ingest_document(done.pk)
    assert Document.objects.get(pk=waiting.pk).status == "pending"
    assert sent == []
    assert not Turn.objects.exists()


def test_large_ones_get_a_token_each_so_that_other_processes_help(sent, monkeypatch):
    monkeypatch.setattr("kb.ingest.services.indexing.SMALL_BYTES", 1)
    rows = notes(make_kb(), 3)
    tasks.ingest_documents(*(row.pk for row in rows))
    assert sent == [("ingest_document", (row.pk,)) for row in rows]


def test_after_three_files_that_exhaust_their_time_the_rest_of_an_upload_comes_last(monkeypatch):
    kb = make_kb()
    batch = batch_create(knowledge_base=kb, name="files", user=kb.owner)
    slow = [note(kb, f"slow {number}", batch=batch) for number in range(MOST_TIMEOUTS + 2)]
    same_owner, other_owner = note(kb, "a note of the same owner"), note(make_kb(), "a note of another owner")
    from kb.ingest.parser.parsed import ParseError
    from kb.ingest.services import indexing

    def exhausted(*_args, **_kwargs):
        raise ParseError("timeout", seconds=120)

    monkeypatch.setattr(indexing, "read_file", exhausted)
    for document in slow[:MOST_TIMEOUTS]:
        index_document(document.pk)

    order = []
    for _time in range(3):
        chosen = next_of(UPLOADS, DOCUMENTS, slow[-1])
        order.append(chosen)
        Document.objects.filter(pk=chosen).update(status="ready")
    assert order == [same_owner.pk, other_owner.pk, slow[-1].pk]
    batch_retry(batch)
    batch.refresh_from_db()
    assert batch.timeouts == 0


def test_what_waits_for_another_attempt_is_nobodys_turn():
    kb = make_kb()
    failed, fresh = (
        GraphExtraction.objects.create(
            document=make_document(kb, text), asked_at=timezone.now(), due_at=timezone.now() + TASK_AWAITED
        )
        for text in ("failed", "fresh")
    )
    GraphExtraction.objects.filter(pk=failed.pk).update(due_at=after(timedelta(minutes=1)))
    assert next_of(LONG_WORK, EXTRACTIONS, fresh) == fresh.document_id
    assert next_of(LONG_WORK, EXTRACTIONS, failed) is None


def test_paused_uploads_and_sources_are_nobodys_turn():
    a, b = make_kb(), make_kb()
    batch = batch_create(knowledge_base=a, name="files", user=a.owner)
    note(a, "paused", batch=batch)
    batch.paused = True
    batch.save()
    free = note(b, "free")
    assert next_of(UPLOADS, DOCUMENTS, free) == free.pk
    make_source(a, paused=True)
    source = make_source(b)
    assert next_of(LONG_WORK, SOURCES, source) == source.pk


def test_work_of_different_kinds_is_in_one_turn(sent, monkeypatch):
    """A hundred sources of one owner do not stand before another's evaluation run."""
    many, one = make_kb(), make_kb()
    sources = [make_source(many) for _number in range(3)]
    taken(SOURCES, sources[0])
    run = make_run(one)
    carried_out = []
    monkeypatch.setitem(tasks.WORK, EvalRun, (tasks.run_evaluation, carried_out.append))

    tasks.read_source(sources[1].pk)

    assert carried_out == [run.pk]
    assert sent == [("read_source", (sources[1].pk,))]


def test_a_run_whose_process_died_is_not_taken_again():
    kb = make_kb()
    lost, waiting = make_run(kb), make_run(make_kb())
    taken(RUNS, lost)
    EvalRun.objects.filter(pk=lost.pk).update(lease_until=timezone.now() - timedelta(minutes=1))
    assert next_of(LONG_WORK, RUNS, waiting) == waiting.pk
    assert next_of(LONG_WORK, RUNS, lost) is None


def test_a_lost_workers_row_has_its_turn_and_holds_no_process():
    a, b = make_kb(), make_kb()
    lost, fresh = note(a, "lost"), note(b, "fresh")
    taken(DOCUMENTS, lost)
    Document.objects.filter(pk=lost.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    assert next_of(UPLOADS, DOCUMENTS, fresh) == lost.pk


def test_documents_of_one_lease_are_one_process():
    a, b = make_kb(), make_kb()
    lease = uuid.uuid4()
    together = notes(a, 5)
    Document.objects.filter(pk__in=[each.pk for each in together[:4]]).update(**DOCUMENTS.taken(lease))
    taken(DOCUMENTS, *notes(b, 2))
    waiting = note(b, "one more")
    assert next_of(UPLOADS, DOCUMENTS, waiting) == together[4].pk


def test_a_choice_costs_the_same_number_of_queries_whatever_waits(django_assert_num_queries):
    first, *_others = notes(make_kb(), 20)
    with django_assert_num_queries(6 + 2):  # two of them of this test's own transaction
        UPLOADS.next(DOCUMENTS, [first.pk], limit=200)
    for _owner in range(5):
        notes(make_kb(), 2)
    with django_assert_num_queries(8 + 2):
        UPLOADS.next(DOCUMENTS, [first.pk], limit=200)


def test_work_that_takes_minutes_has_queues_of_its_own():
    from config.celery import app

    def queue_of(task):
        return app.amqp.router.route({}, task.name)["queue"].name

    assert {queue_of(each) for each in (tasks.ingest_document, tasks.ingest_documents)} == {"documents"}
    assert {queue_of(task) for task, _work in tasks.WORK.values()} == {"long"}
    moves = (tasks.reembed_knowledge_base, tasks.migrate_store, tasks.tokenize_knowledge_base)
    slices = (tasks.sweep_vector_indexes, tasks.describe_document_pictures, tasks.fetch_demo_models)
    assert {queue_of(each) for each in (*moves, *slices)} == {"moves"}
    taken_by_a_worker_for_uploads = {queue.name for queue in configured.CELERY_TASK_QUEUES}
    assert taken_by_a_worker_for_uploads == {"celery", "documents"}
    assert {name.rpartition(".")[2] for name in configured.CELERY_TASK_ROUTES} >= {"read_web_source", "ingest_document"}
    assert set(configured.CELERY_TASK_ROUTES) <= set(app.tasks)


def test_what_another_process_takes_amid_the_choice_costs_nobody_a_turn(monkeypatch):
    """Between the choice of an owner and that of the rows, whose lock has ended by then."""
    first, second = note(make_kb(), "first"), note(make_kb(), "second")
    due = Queue.due

    def taken_meanwhile(queue):
        if Turn.objects.exists():
            monkeypatch.undo()
            taken(DOCUMENTS, first)
        return due(queue)

    monkeypatch.setattr(Queue, "due", taken_meanwhile)
    assert UPLOADS.next(DOCUMENTS, [second.pk]) == (DOCUMENTS, [second.pk])


def test_what_another_process_takes_before_the_choice_leaves_nothing_to_choose(monkeypatch):
    """Between the look whether the task's rows wait and the lock."""
    only = note(make_kb(), "only")
    first_by_owner = Queue.first_by_owner

    def taken_meanwhile(queue):
        taken(DOCUMENTS, only)
        return first_by_owner(queue)

    monkeypatch.setattr(Queue, "first_by_owner", taken_meanwhile)
    assert UPLOADS.next(DOCUMENTS, [only.pk]) is None
    assert not Turn.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_row_that_cannot_be_read_for_a_moment_is_read_again_and_its_loss_ends_the_work(caplog):
    looks = iter([OperationalError("the connection is lost"), True, False])

    def is_wanted():
        look = next(looks)
        if isinstance(look, Exception):
            raise look
        return look

    with pytest.raises(LeaseLost), watching(is_wanted, every_s=0.01), interruptible((ended := Event()).set):
        assert ended.wait(60)
    assert next(looks, "all were made") == "all were made"
    assert "which is tried again: the connection is lost" in caplog.text
