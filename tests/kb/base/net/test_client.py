import socket
import ssl

import pytest
from hypothesis import given, strategies as st

from kb.base.net.addresses import AllowList, FetchError, Guard
from kb.base.net.client import MAX_REDIRECTS, MIB, Deadline, Inflater, Politeness, gunzip
from tests.web_server import Page, client_for


def refusal_of(client, url, **wanted):
    with pytest.raises(FetchError) as refusal:
        client.fetch(url, **wanted)
    return refusal.value


def test_a_page_is_read_with_what_its_header_says(web):
    web.pages["/a"] = Page("你好".encode("gbk"), type="text/html; charset=GBK", etag='"1"', last_modified="yesterday")

    page = client_for(web).fetch(web.url("/a#part"))

    assert page.content.decode(page.charset) == "你好"
    assert (page.media_type, page.etag, page.last_modified) == ("text/html", '"1"', "yesterday")
    assert web.asked[0].headers["User-Agent"] == "Zhiku/test"
    assert web.asked[0].headers["Host"] == f"127.0.0.1:{web.port}"


def test_a_copy_that_is_at_hand_is_not_sent_again(web):
    web.pages["/a"] = Page("text", etag='"1"')

    page = client_for(web).fetch(web.url("/a"), etag='"1"', last_modified="yesterday")

    assert (page.not_modified, page.content) == (True, b"")
    assert web.asked[0].headers["If-Modified-Since"] == "yesterday"


def test_loopback_is_refused_unless_it_is_allowed(web):
    client = client_for(web, guard=Guard())

    assert refusal_of(client, web.url("/")).code == "forbidden_address"
    assert refusal_of(client, web.url("/", host="localhost")).code == "forbidden_address"
    assert web.asked == []


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://169.254.169.254/latest/meta-data/", "forbidden_address"),
        ("http://[::ffff:169.254.169.254]/", "forbidden_address"),
        ("http://[::1]/", "forbidden_address"),
        ("http://10.0.0.1/", "forbidden_address"),
        ("//0x7f000001/", "numeric_host"),
        ("http://user@10.0.0.1/", "has_userinfo"),
        ("file:///etc/passwd", "bad_scheme"),
        ("http://[::1/", "bad_url"),
    ],
)
def test_a_redirect_is_checked_as_the_first_address_was(web, location, code):
    web.pages["/a"] = Page(location=location)
    assert refusal_of(client_for(web), web.url("/a")).code == code


def test_a_redirect_from_an_allowed_name_to_loopback_is_refused(web):
    web.pages["/a"] = Page(location=web.url("/secret"))
    web.pages["/secret"] = Page("secret")
    guard = Guard(AllowList.parse(["wiki.intranet"]), lambda host, port: ["127.0.0.1"])

    refusal = refusal_of(client_for(web, guard=guard), web.url("/a", host="wiki.intranet"))

    assert refusal.code == "forbidden_address"
    assert web.paths == ["/a"]


def test_the_address_that_was_checked_is_the_one_connected_to(web):
    """A name that answers with an allowed address first, and with another when it is asked again (DNS rebinding)."""
    answers = iter(["127.0.0.1", "10.255.255.1", "10.255.255.1"])
    guard = Guard(AllowList.parse(["127.0.0.1"]), lambda host, port: [next(answers)])
    web.pages["/a"] = Page("first")

    assert client_for(web, guard=guard).fetch(web.url("/a", host="rebinding.example.org")).content == b"first"
    assert web.asked[0].headers["Host"] == f"rebinding.example.org:{web.port}"
    assert next(answers) == "10.255.255.1"  # it was asked once only


def test_a_name_is_checked_again_at_every_redirect(web):
    answers = iter(["127.0.0.1", "10.255.255.1"])
    guard = Guard(AllowList.parse(["127.0.0.1"]), lambda host, port: [next(answers)])
    web.pages["/a"] = Page(location="/b")

    refusal = refusal_of(client_for(web, guard=guard), web.url("/a", host="rebinding.example.org"))

    assert (refusal.code, refusal.params["address"]) == ("forbidden_address", "10.255.255.1")


def test_redirects_lead_to_the_page_and_its_address(web):
    web.pages["/a"] = Page(location="/b?x=1")
    web.pages["/b?x=1"] = Page("found")

    page = client_for(web).fetch(web.url("/a"))

    assert (page.url, page.content) == (web.url("/b?x=1"), b"found")


def test_endless_redirects_end(web):
    web.pages["/a"] = Page(location="/a")

    assert refusal_of(client_for(web), web.url("/a")).code == "too_many_redirects"
    assert len(web.asked) == MAX_REDIRECTS + 1


def test_whoever_asks_may_refuse_a_hop(web):
    web.pages["/a"] = Page(location="/b")

    def before_hop(url):
        if url.path == "/b":
            raise FetchError("robots")
        return 0.0

    assert refusal_of(client_for(web), web.url("/a"), before_hop=before_hop).code == "robots"
    assert web.paths == ["/a"]


def test_a_body_that_never_ends_runs_out_of_time(web):
    web.pages["/a"] = Page("text" * 100, hang_after=10)
    assert refusal_of(client_for(web, seconds=0.3), web.url("/a")).code == "timeout"


def test_a_deadline_holds_for_all_hops_together(web):
    web.pages["/a"] = Page(location="/b")
    web.pages["/b"] = Page("text" * 100, hang_after=10)
    assert refusal_of(client_for(web), web.url("/a"), deadline=Deadline(0.3)).code == "timeout"


def test_a_body_that_breaks_off_is_no_page(web):
    web.pages["/a"] = Page("text" * 100, cut_after=10)
    assert refusal_of(client_for(web), web.url("/a")).code == "broken_response"


def test_what_is_too_large_is_not_read_to_its_end(web):
    web.pages["/a"] = Page("x" * 2 * MIB)
    assert refusal_of(client_for(web, max_bytes=MIB), web.url("/a")).code == "too_large"


def test_a_length_that_the_header_states_is_believed(web):
    web.pages["/a"] = Page("x", headers={"Content-Length": "99999999999"})
    assert refusal_of(client_for(web, max_bytes=MIB), web.url("/a")).code == "too_large"


def test_a_gzip_bomb_is_not_unpacked(web):
    web.pages["/a"] = Page(b"\0" * 64 * MIB, packed=True)
    assert refusal_of(client_for(web, max_bytes=MIB), web.url("/a")).code == "too_large"


def test_a_packed_page_is_unpacked(web):
    web.pages["/a"] = Page("text " * 1_000, packed=True)
    assert client_for(web).fetch(web.url("/a")).content == b"text " * 1_000


def test_what_is_said_to_be_packed_and_is_not_is_no_page(web):
    web.pages["/a"] = Page("text", headers={"Content-Encoding": "gzip"})
    assert refusal_of(client_for(web), web.url("/a")).code == "broken_response"


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "compress"])
def test_another_packing_is_refused(web, encoding):
    web.pages["/a"] = Page("text", headers={"Content-Encoding": encoding})
    assert refusal_of(client_for(web), web.url("/a")).code == "bad_encoding"


def test_another_type_is_refused(web):
    web.pages["/a"] = Page("text", type="video/mp4")
    assert refusal_of(client_for(web), web.url("/a"), types=frozenset({"text/html"})).params == {"type": "video/mp4"}


@pytest.mark.parametrize(
    ("page", "code"),
    [
        (Page(status=404), "gone"),
        (Page(status=410), "gone"),
        (Page(status=401), "forbidden"),
        (Page(status=403), "forbidden"),
        (Page(status=429), "too_many_requests"),
        (Page(status=503, headers={"Retry-After": "60"}), "too_many_requests"),
        (Page(status=503), "bad_status"),
        (Page(status=500), "bad_status"),
        (Page(status=304), "bad_status"),
    ],
)
def test_an_answer_without_a_page_says_what_it_is(web, page, code):
    web.pages["/a"] = page
    assert refusal_of(client_for(web), web.url("/a")).code == code


def test_a_server_that_is_not_there_is_out_of_reach(web):
    guard = Guard(AllowList.parse(["127.0.0.1"]), lambda host, _: ["127.0.0.1"])
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else may listen there
        refusal = refusal_of(client_for(web, guard=guard), f"http://nobody.example.org:{silent.getsockname()[1]}/")
    assert refusal.code == "unreachable"


def test_a_server_that_speaks_no_tls_has_no_valid_certificate(web):
    assert refusal_of(client_for(web), f"https://127.0.0.1:{web.port}/").code == "tls_failed"


def test_the_certificate_is_that_of_the_name(tls_web):
    web, trusted = tls_web
    guard = Guard(AllowList.parse(["127.0.0.1"]), lambda host, port: ["127.0.0.1"])
    web.pages["/a"] = Page("text")
    client = client_for(web, guard=guard, tls=trusted)

    assert client.fetch(f"https://named.example.org:{web.port}/a").content == b"text"
    assert refusal_of(client, f"https://other.example.org:{web.port}/a").code == "tls_failed"


def test_without_trust_in_its_authority_a_certificate_is_refused(tls_web):
    web, _ = tls_web
    guard = Guard(AllowList.parse(["127.0.0.1"]), lambda host, port: ["127.0.0.1"])
    client = client_for(web, guard=guard, tls=ssl.create_default_context())
    assert refusal_of(client, f"https://named.example.org:{web.port}/a").code == "tls_failed"


class TestPoliteness:
    def test_a_host_is_not_asked_twice_at_once(self):
        now, slept = [100.0], []
        politeness = Politeness(2.0, clock=lambda: now[0], sleep=slept.append)

        for host in ("a", "b", "a", "a"):
            politeness.wait(host)

        assert slept == [2.0, 4.0]

    def test_a_host_that_asks_for_longer_pauses_gets_them(self):
        slept = []
        politeness = Politeness(1.0, clock=lambda: 0.0, sleep=slept.append)

        politeness.wait("a", at_least=10.0)
        politeness.wait("a")

        assert slept == [10.0]


class TestInflate:
    @given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 50))
    def test_members_come_out_as_they_went_in_however_they_are_cut(self, members, size):
        import gzip

        packed = b"".join(map(gzip.compress, members))
        inflater = Inflater(10_000)
        pieces = [inflater.feed(packed[start : start + size]) for start in range(0, len(packed), size)]
        assert b"".join(pieces) == b"".join(members)

    def test_other_bytes_are_no_gzip(self):
        assert gunzip(b"<urlset/>", 10) == b"<urlset/>"


def test_a_server_that_says_only_that_nothing_has_changed_is_asked_alike_next_time(web):
    web.pages["/a"] = Page(status=304)
    page = client_for(web).fetch(web.url("/a"), etag='"1"', last_modified="yesterday")
    assert (page.not_modified, page.etag, page.last_modified) == (True, '"1"', "yesterday")
