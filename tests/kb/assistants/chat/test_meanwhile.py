"""What changes while a chat is open, or an answer is being written."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection

from kb.assistants.services.assistants import link_create, link_revoke
from kb.assistants.services.entry import link_token
from kb.models import AssistantUse, Membership, Message
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.assistants.chat.visiting import QUESTION, Browser, events
from tests.kb.assistants.making import WARRANTY, make_assistant
from tests.servers import Reply

pytestmark = pytest.mark.django_db


def entered(assistant, **body):
    browser = Browser(assistant)
    assert browser.enter(**body).status_code == 200
    return browser


def at_once(*requests):
    """The answers to requests that are sent at the same time, each read to its end."""
    barrier = Barrier(len(requests))

    def send(request):
        barrier.wait()
        try:
            response = request()
            return response.status_code, events(response)[-1][1] if response.streaming else response.json()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(send, requests))


def used(assistant):
    return AssistantUse.objects.get(assistant=assistant, whose="").questions


@pytest.mark.django_db(transaction=True)
def test_of_two_windows_that_write_the_last_answer_again_one_does(assistant, llm):
    browser = entered(assistant)
    first = browser.answered()
    of_both = {"conversation_id": first["conversation_id"], "instead_of": first["message_id"]}
    answers = dict(at_once(*[lambda: browser.ask("What about the heater?", **of_both)] * 2))
    assert answers.keys() == {200, 400}
    assert answers[400]["code"] == "not_the_last_answer"
    shown = Message.objects.filter(is_replaced=False)
    assert [each.text for each in shown.filter(role="user")] == ["What about the heater?"]
    assert used(assistant) == 2  # what was refused is not counted


@pytest.mark.django_db(transaction=True)
def test_of_two_windows_that_ask_at_once_each_has_its_turn(assistant, llm):
    browser = entered(assistant)
    conversation = browser.answered()["conversation_id"]
    asked = ["What about the heater?", "How long is the warranty?"]
    answers = at_once(*[lambda question=each: browser.ask(question, conversation_id=conversation) for each in asked])
    assert [status for status, _done in answers] == [200, 200]
    turns = browser.get(f"conversations/{conversation}/").json()["turns"]
    by_question = {turn["question"]: turn["answer"]["message_id"] for turn in turns}
    assert by_question == {QUESTION: turns[0]["answer"]["message_id"]} | {
        question: done["message_id"] for question, (_status, done) in zip(asked, answers, strict=True)
    }


def test_an_answer_that_is_still_written_is_not_written_again(assistant, llm):
    browser = entered(assistant)
    done = browser.answered()
    Message.objects.filter(pk=done["message_id"]).update(status="writing")
    again = browser.ask(conversation_id=done["conversation_id"], instead_of=done["message_id"])
    assert (again.status_code, again.json()["code"]) == (400, "not_the_last_answer")


def test_a_link_that_is_revoked_while_an_answer_is_written_lets_that_end_and_nothing_more(owner, kb, llm):
    llm.always("chat", Reply(["Two ", "years ", "[1]."]))
    assistant = make_assistant(owner, kb, access="link")
    link = link_create(principal(owner), assistant)
    browser = entered(assistant, key=link_token(link))
    answer = browser.ask()
    pieces = iter(answer.streaming_content)
    begun = next(pieces).decode()
    link_revoke(link)
    rest = b"".join(pieces).decode()
    assert '"status": "done"' in rest
    message_id = json.loads(begun.partition("data: ")[2])["message_id"]
    for path in ("conversations/", f"answers/{message_id}/", f"passages/{message_id}/1/"):
        assert browser.get(path).json()["code"] == "not_let_in"
    assert browser.ask().json()["code"] == "not_let_in"


@pytest.fixture
def lost(kb, llm):
    """A chat whose publisher, with an answer given already, loses the rights to the one knowledge base that it cites."""
    editor = make_user()
    other = make_kb(make_user("other owner"), language="en")
    make_document(other, "The boiler is guaranteed for ten years.", source="Boiler.md").chunks.update(
        questions=["How long is the boiler guaranteed?"]
    )
    for each in (kb, other):
        Membership.objects.create(user=editor, knowledge_base=each, role="editor")
    browser = entered(make_assistant(editor, kb, other, access="public"))
    done = browser.answered("boiler guaranteed")
    assert "Boiler.md" in [each["label"] for each in done["sources"]]
    assert "How long is the boiler guaranteed?" in browser.enter().json()["suggested_questions"]
    return browser, done, other, editor


def assert_nothing_is_told_of_the_boiler(browser, done):
    number = next(each["number"] for each in done["sources"] if each["label"] == "Boiler.md")
    told = [
        browser.enter(),
        browser.get(f"conversations/{done['conversation_id']}/"),
        browser.get(f"answers/{done['message_id']}/"),
        browser.get(f"passages/{done['message_id']}/{number}/"),
        browser.get(f"passages/{done['message_id']}/{number}/text/"),
        browser.ask("boiler guaranteed"),
    ]
    for response in told:
        content = b"".join(response) if response.streaming else response.content
        assert b"Boiler.md" not in content
        assert b"ten years" not in content
        assert b"How long is the boiler" not in content


def test_a_publisher_who_loses_a_knowledge_base_takes_it_out_of_open_chats(lost):
    browser, done, other, editor = lost
    Membership.objects.filter(user=editor, knowledge_base=other).delete()
    assert_nothing_is_told_of_the_boiler(browser, done)
    assert WARRANTY in json.dumps(browser.answered())


def test_a_knowledge_base_that_is_deleted_goes_out_of_open_chats(lost):
    browser, done, other, _editor = lost
    other.delete()
    assert_nothing_is_told_of_the_boiler(browser, done)
    assert WARRANTY in json.dumps(browser.answered())


def test_a_page_that_sends_more_than_there_is_room_for_is_told_so(assistant, llm):
    browser = entered(assistant)
    too_long = {"page": {"url": "https://www.example.com", "title": "x" * 4_001}}
    assert (browser.ask(**too_long).status_code, browser.ask(**too_long).json()["code"]) == (400, "invalid")
    far_too_long = browser.ask(page={"title": "x" * 70_000})
    assert (far_too_long.status_code, far_too_long.json()["code"]) == (413, "too_large")
    assert llm.requests == []
