"""The bounds of connections to the provider."""

import pytest
from requests.exceptions import InvalidSchema

from kb.base.net.addresses import AllowList, FetchError, Guard
from kb.signin.http import MOST_BYTES, Unreachable, guarded_session
from tests.web_server import Page, WebServer

ALLOWED = Guard(AllowList(any_private=True), ports=range(1, 65_536))


@pytest.fixture
def web():
    with WebServer() as server:
        yield server


def code_of(refused):
    assert isinstance(refused.value.__cause__, FetchError)
    return refused.value.__cause__.code


def test_an_answer_is_read_with_its_status_and_type(web):
    web.pages["/config?x=1"] = Page('{"issuer": "知库"}', status=418, type="application/json")

    answer = guarded_session(ALLOWED).get(web.url("/config?x=1"), headers={"Authorization": "Bearer x"})

    assert (answer.status_code, answer.json()) == (418, {"issuer": "知库"})
    assert answer.headers["content-type"] == "application/json"
    assert web.asked[0].headers["Authorization"] == "Bearer x"


def test_no_redirect_is_followed_since_the_secret_would_go_along(web):
    web.pages["/"] = Page(location="/elsewhere")

    with pytest.raises(Unreachable) as refused:
        guarded_session(ALLOWED).get(web.url("/"))

    assert code_of(refused) == "redirected"
    assert web.paths == ["/"]


def test_a_private_address_is_not_connected_to_unless_allowed(web):
    with pytest.raises(Unreachable) as refused:
        guarded_session(Guard(ports=range(1, 65_536))).get(web.url("/"))

    assert code_of(refused) == "forbidden_address"
    assert web.paths == []


def test_no_more_is_read_than_a_document_of_the_protocol_has(web):
    web.pages["/"] = Page(b"x" * (MOST_BYTES + 1))

    with pytest.raises(Unreachable) as refused:
        guarded_session(ALLOWED).get(web.url("/"))

    assert code_of(refused) == "too_large"


def test_nothing_but_the_web_is_asked():
    with pytest.raises(InvalidSchema):
        guarded_session(ALLOWED).get("file:///etc/passwd")
