"""What a visitor of a chat sees when an answer stops in its middle: nothing is lost, and nothing is doubled."""

import os
import signal
import socket
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.chat_model import variables_for
from tests.browser.conftest import SECONDS
from tests.browser.visitors import *  # noqa: F403 - its fixtures
from tests.browser.visitors import ANSWER, answered, ask, expected, messages
from tests.model_process import ModelProcess
from tests.network import Network

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser
OWN_SERVER = True  # its processes are ended

BEGINNING, END = "每周一", "润滑油"
ASKED_ONCE = [("user", "done"), ("assistant", "done")]
BROKEN = [("user", "done"), ("assistant", "broken")]


@pytest.fixture(scope="module")
def model():
    with ModelProcess(ANSWER) as process:
        yield process


@pytest.fixture(scope="module")
def variables(model):
    return {**variables_for(model.base_url), "WEB_GRACE_SECONDS": "20", "WEB_STREAMS": "4"}


@pytest.fixture(autouse=True)
def _the_model_stops_in_the_middle(model):
    model.say("hold 3")


def begun(page):
    """The turn of a question whose answer has begun."""
    turn = ask(page)
    expect(turn.locator(".text")).to_contain_text(BEGINNING)
    return turn


def ask_again(page):
    """With the one button beside what happened; the answer comes in the same place."""
    page.get_by_test_id("note-broken").locator("button").click()
    turn = page.get_by_test_id("turn")
    expect(turn).to_have_count(1)
    expect(turn.locator(".text")).to_contain_text(END)
    expect(turn.locator(".acts")).to_be_visible()
    expect(turn.locator(".note")).to_have_count(0)


def has_one_whole_turn(page):
    turn = page.get_by_test_id("turn")
    expect(turn).to_have_count(1)
    expect(turn.locator(".acts")).to_be_visible()
    return turn.locator(".text").inner_text().count(END) == 1


def test_a_model_that_is_killed(phone, model, database):
    page = phone().page
    turn = begun(page)
    model.kill()
    expect(turn.get_by_test_id("note-broken")).to_be_visible()
    expect(turn.locator(".text")).to_contain_text(BEGINNING)
    assert messages(database) == BROKEN
    model.start()
    ask_again(page)
    assert messages(database) == ASKED_ONCE
    page.reload()
    assert has_one_whole_turn(page)


def refuses(url):
    """Returns once nobody listens there any more."""
    address = urlsplit(url)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            socket.create_connection((address.hostname, address.port)).close()
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_a_server_that_is_restarted_finishes_an_answer_within_its_time(phone, model, database, served):
    page = phone().page
    turn = begun(page)
    web = served.child("gunicorn")
    web.terminate()
    assert refuses(served.url)
    model.say("go")
    expect(turn.locator(".acts")).to_be_visible()
    expect(turn.locator(".text")).to_contain_text(END)
    assert messages(database) == ASKED_ONCE
    web.wait(SECONDS)
    answered(page, "油位低了怎么办？")  # which waits until the server is there again
    expect(page.get_by_test_id("turn")).to_have_count(2)
    assert messages(database) == ASKED_ONCE * 2


def test_a_server_that_is_restarted_marks_an_answer_that_takes_too_long(phone, model, database, served):
    model.say("slow 0.2")
    page = phone().page
    turn = begun(page)
    served.child("gunicorn").terminate()
    expect(page.locator("#network")).to_be_visible()
    expect(turn.get_by_test_id("note-broken")).to_be_visible()
    expect(page.locator("#network")).to_be_hidden()
    expect(turn.locator(".text")).to_contain_text(BEGINNING)
    assert messages(database) == BROKEN
    model.say("go")
    ask_again(page)
    assert messages(database) == ASKED_ONCE


def test_a_server_that_is_killed(phone, model, database, served):
    page = phone().page
    turn = begun(page)
    with suppress(ProcessLookupError):
        os.killpg(served.child("gunicorn").pid, signal.SIGKILL)
    expect(page.locator("#network")).to_be_visible()
    expect(turn.get_by_test_id("note-broken")).to_be_visible()
    expect(page.locator("#network")).to_be_hidden()
    expect(turn.locator(".text")).to_contain_text(BEGINNING)
    assert messages(database) == BROKEN
    model.say("go")
    ask_again(page)
    assert messages(database) == ASKED_ONCE
    page.reload()
    assert has_one_whole_turn(page)


def test_a_server_that_fails_again_and_again(phone, model, database):
    page = phone().page
    turn = begun(page)
    database.autocommit = True
    database.execute("ALTER TABLE kb_chunk RENAME TO kb_chunk_away")  # from which come the questions to ask next
    try:
        model.say("go")
        expect(turn.get_by_test_id("note-broken")).to_be_visible()
    finally:
        database.execute("ALTER TABLE kb_chunk_away RENAME TO kb_chunk")
    expect(page.locator("#trouble")).not_to_be_empty()
    assert has_one_whole_turn(page)
    page.reload()
    assert has_one_whole_turn(page)
    assert messages(database) == ASKED_ONCE


@pytest.fixture
def network(served):
    with Network(urlsplit(served.url).port) as made:
        yield made


def is_stored(database):
    """Returns once the answer is."""
    for _ in range(20 * SECONDS):
        if messages(database) == ASKED_ONCE:
            return True
        database.execute("SELECT pg_sleep(0.05)")
    return False


def test_a_network_that_is_cut(phone, model, database, network):
    page = phone(at=network.url).page
    turn = begun(page)
    network.cut()
    expect(page.locator("#network")).to_be_visible()
    model.say("go")
    assert is_stored(database)  # also while nobody reads it
    expect(page.locator("#network")).to_be_visible()
    network.restore()
    expect(turn.locator(".acts")).to_be_visible()
    expect(page.locator("#network")).to_be_hidden()
    assert has_one_whole_turn(page)
    assert messages(database) == ASKED_ONCE


def test_a_network_that_is_cut_before_the_answer_begins_and_again_in_its_middle(phone, model, database, network):
    page = phone(at=network.url).page
    network.cut_after(b"/ask/ HTTP")
    turn = ask(page)
    assert network.was_cut.wait(SECONDS)
    expect(page.locator("#network")).to_be_visible()
    network.restore()  # the browser sends the question a second time
    expect(turn.locator(".text")).to_contain_text(BEGINNING)
    network.cut()
    expect(page.locator("#network")).to_be_visible()
    network.restore()
    expect(page.locator("#network")).to_be_hidden()
    assert turn.locator(".text").inner_text().count(BEGINNING) == 1
    model.say("go")
    expect(turn.locator(".acts")).to_be_visible()
    assert has_one_whole_turn(page)
    assert messages(database) == ASKED_ONCE


def test_a_network_that_is_cut_while_the_server_writes_as_many_answers_as_it_can(phone, model, network):
    visitor = phone(at=network.url)
    page = visitor.page
    begun(page)
    others = [begun(phone().page) for _ in range(3)]
    network.cut()
    expect(page.locator("#network")).to_be_visible()
    with page.expect_response(lambda response: response.status == 503):
        network.restore()
    expect(page.get_by_test_id("turn").locator(".text")).to_contain_text(BEGINNING)
    model.say("go")
    for turn in others:
        expect(turn.locator(".acts")).to_be_visible()
    page.evaluate("dispatchEvent(new Event('online'))")  # waits no longer
    assert has_one_whole_turn(page)
    expected(visitor, "503 /chat/by-link/answers/")


def test_a_network_that_is_cut_where_no_text_is_kept(phone, model, database, network):
    page = phone(at=network.url).page
    page.goto(f"{network.url}/chat/unkept/")
    turn = begun(page)
    network.cut()
    expect(page.locator("#network")).to_be_visible()
    model.say("go")
    assert is_stored(database)
    network.restore()
    expect(turn.get_by_test_id("note-broken")).to_be_visible()
    expect(turn.locator(".text")).to_contain_text(BEGINNING)
    expect(turn.locator(".sources")).to_contain_text("manual.pdf")
    ask_again(page)


def test_a_browser_that_is_offline_asks_as_soon_as_it_is_not(phone, model, database):
    model.say("go")
    page = phone().page
    page.context.set_offline(True)
    ask(page)
    expect(page.locator("#network")).to_be_visible()
    page.context.set_offline(False)
    expect(page.locator("#network")).to_be_hidden()
    assert has_one_whole_turn(page)
    assert messages(database) == ASKED_ONCE
