import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.utils import timezone

from kb.answers.services import progress
from kb.answers.services.conversations import turn_begin, turn_end
from kb.answers.services.resuming import lost_answers_end, resume_answer, text_so_far
from kb.base.errors import Rejected
from kb.base.streams import Streams
from kb.models import Conversation, KnowledgeBase, Message, Visitor
from tests.factories import make_kb
from tests.kb.assistants.making import make_assistant

pytestmark = pytest.mark.django_db


@pytest.fixture
def message():
    kb = make_kb()
    return turn_begin(owner=kb.owner, conversation=None, knowledge_base_ids=[kb.pk], question="?", trace_id="0" * 32)


def test_an_answer_that_is_written_already_is_told_at_once(message):
    turn_end(message.pk, Message.Status.DONE, text="Two years.")
    message.refresh_from_db()
    [done] = resume_answer(message)
    assert (done.name, done.data["answer"], done.data["status"]) == ("done", "Two years.", "done")


@contextmanager
def written(message, text):
    with progress.Progress(message.pk) as writing:
        writing.text = text
        progress.note([writing])
        yield writing


def test_a_reader_gets_what_was_missed_and_then_the_end(message):
    with written(message, "Two years"):
        events = resume_answer(message, seen=4)
        assert next(events).name == "sources"
        assert next(events).data == {"text": "years"}
        turn_end(message.pk, Message.Status.DONE, text="Two years.")
    [done] = events
    assert done.data["answer"] == "Two years."


def long_ago(message):
    """As if nothing had been heard of it for as long as that takes."""
    then = timezone.now() - timedelta(seconds=progress.longest_silence() + 1)
    Message.objects.filter(pk=message.pk).update(created_at=then)


def test_an_answer_that_nobody_writes_is_broken_and_keeps_what_was_noted(message, monkeypatch):
    killed = progress.Progress(message.pk)
    killed.text = "Two"
    progress.note([killed])
    monkeypatch.setattr(progress, "LOST_SECONDS", -1)
    *_, done = resume_answer(message)
    assert (done.data["answer"], done.data["status"]) == ("Two", "broken")
    message.refresh_from_db()
    assert (message.status, message.text) == ("broken", "Two")
    assert progress.noted(message.pk) is None


def test_an_answer_of_a_silent_model_is_noted_again_and_again(message, monkeypatch):
    monkeypatch.setattr(progress, "NOTE_SECONDS", 0.01)
    with written(message, "Two") as writing:
        writing.text = "Two years"
        assert any(progress.noted(message.pk).text == "Two years" for _ in range(100_000))
        assert text_so_far(message) == "Two years"
        assert message.status == "writing"
    assert progress.noted(message.pk) is None


def test_a_fault_while_answers_are_noted_does_not_end_the_noting_of_others(message, monkeypatch):
    monkeypatch.setattr(progress, "NOTE_SECONDS", 0.01)
    noting, faults = progress.note, [KeyError("answer"), ValueError("of Redis' client")]

    def note(under_way):
        if faults and threading.current_thread().name == "answers":
            raise faults.pop()
        noting(under_way)

    monkeypatch.setattr(progress, "note", note)
    with written(message, "Two") as writing:
        writing.text = "Two years"
        assert any(progress.noted(message.pk).text == "Two years" for _ in range(100_000))
        assert not faults


def test_an_answer_that_ends_while_it_is_noted_leaves_no_note(message, monkeypatch):
    monkeypatch.setattr(progress, "NOTE_SECONDS", 0.01)
    writing, noting, was_noted = progress.Progress(message.pk), progress.note, threading.Event()
    with writing:
        pass

    def ends_meanwhile(under_way):
        writing.__exit__()
        noting(under_way)
        was_noted.set()

    monkeypatch.setattr(progress, "note", ends_meanwhile)
    progress._NOTES.add(writing)
    assert was_noted.wait(60)
    assert any(progress.noted(message.pk) is None for _ in range(10_000))


def test_an_answer_that_is_deleted_meanwhile_stops_no_sweep(message, monkeypatch):
    conversation = message.conversation
    other = turn_begin(
        owner=conversation.user,
        conversation=None,
        knowledge_base_ids=conversation.knowledge_base_ids,
        question="!",
        trace_id="1" * 32,
    )
    long_ago(message)
    long_ago(other)
    noted = progress.noted

    def deleted_meanwhile(message_id):
        Message.objects.filter(pk=message.pk).delete()
        return noted(message_id)

    monkeypatch.setattr(progress, "noted", deleted_meanwhile)
    lost_answers_end()
    other.refresh_from_db()
    assert other.status == "broken"


def test_without_a_note_only_time_tells_that_nobody_writes(message):
    assert text_so_far(message) == ""
    assert message.status == "writing"
    long_ago(message)
    *_, done = resume_answer(message)
    assert done.data["status"] == "broken"


def test_an_answer_that_was_taken_for_broken_off_is_stored_all_the_same(message):
    long_ago(message)
    list(resume_answer(message))
    assert turn_end(message.pk, Message.Status.DONE, text="Two years.")
    message.refresh_from_db()
    assert (message.status, message.text) == ("done", "Two years.")
    assert not turn_end(message.pk, Message.Status.BROKEN, text="Two")


def test_what_an_assistant_keeps_no_text_of_is_shown_and_not_stored(message):
    kb = KnowledgeBase.objects.get()
    assistant = make_assistant(kb.owner, kb, keeps_text=False)
    visitor = Visitor.objects.create(assistant=assistant)
    Conversation.objects.update(user=None, visitor=visitor)
    with written(message, "The secret answer"):
        events = resume_answer(message)
        next(events), next(events)
        turn_end(message.pk, Message.Status.DONE, text="")
    *_, done = events
    assert (done.data["answer"], done.data["status"]) == ("The secret answer", "broken")  # there may have been more
    Message.objects.update(status="writing")
    message.refresh_from_db()
    long_ago(message)
    assert text_so_far(message, "The secret answer") == "The secret answer"
    message.refresh_from_db()
    assert (message.status, message.text) == ("broken", "")


def test_a_process_that_streams_all_it_may_takes_up_no_answer(message, monkeypatch):
    monkeypatch.setattr("kb.answers.services.answers.STREAMS", Streams(0))
    with pytest.raises(Rejected) as refused:
        resume_answer(message)
    assert refused.value.code == "too_many_streams"
