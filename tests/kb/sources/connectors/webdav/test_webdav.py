"""Against wsgidav, which is a WebDAV server of its own making, and against what other servers do otherwise."""

import hashlib
import json
import re
import socket
import threading
from io import BytesIO

import pytest

from kb.base.errors import Rejected
from kb.base.net.addresses import AllowList, FetchError, Guard
from kb.sources.connectors.protocol import UNAVAILABLE, Item
from kb.sources.connectors.webdav import connector
from kb.sources.connectors.webdav.connector import WebDav
from tests.dav_server import PASSWORD, USER, DavServer

ALLOWED = Guard(AllowList.parse(["127.0.0.1"]))


@pytest.fixture
def dav(tmp_path):
    with DavServer(tmp_path) as server:
        yield server


def opened(dav, guard=ALLOWED, path="/dav/", host="127.0.0.1", seconds=20, **values):
    values = {"url": dav.url(path, host), "user": USER, "password": PASSWORD} | values
    return WebDav(values, guard=guard, seconds=seconds)


def write(dav, **texts):
    for path, text in texts.items():
        file = dav.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def keys(dav, **values):
    with opened(dav, **values) as place:
        return [item.key for item in place.items()]


def content(place, item, most=1_000):
    into = BytesIO()
    return place.fetch(item, into, most), into.getvalue().decode()


def refusal(dav, **values):
    with opened(dav, **values) as place, pytest.raises(FetchError) as caught:
        list(place.items())
    return caught.value


NAMES = {"第一章 #1.md": "一", "手册/100%?.md": "二", "手册/a&b/'c'+[d].txt": "三", "手册/空 格/尾.txt": "四"}


def test_files_of_all_folders_are_listed_and_read_whatever_their_names(dav):
    write(dav, **NAMES)
    with opened(dav) as place:
        items = {item.key: item for item in place.items()}
        assert items.keys() == NAMES.keys()
        for key, text in NAMES.items():
            read, got = content(place, items[key])
            assert (got, read.size, read.version) == (text, len(text.encode()), items[key].version)
    assert items["手册/空 格/尾.txt"].name == "尾.txt"


@pytest.mark.parametrize("path", ["/dav", "/dav/", "/dav/手册", "/dav/%E6%89%8B%E5%86%8C/"])
def test_the_address_may_be_written_with_a_slash_at_the_end_or_without_and_encoded_or_not(dav, path):
    write(dav, **NAMES)
    below = {name.removeprefix("手册/") for name in NAMES if "手册" in name}
    assert set(keys(dav, path=path)) == (set(NAMES) if path.rstrip("/") == "/dav" else below)


def test_the_order_stays_the_same(dav):
    write(dav, **NAMES)
    assert keys(dav) == keys(dav)


def test_a_change_gives_another_version_and_leaves_the_others(dav):
    write(dav, **{"a.md": "one", "b.md": "two"})
    with opened(dav) as place:
        before = {item.key: item.version for item in place.items()}
        write(dav, **{"a.md": "another text"})
        after = {item.key: item.version for item in place.items()}
    assert all(before.values())
    assert before["a.md"] != after["a.md"]
    assert before["b.md"] == after["b.md"]


def test_a_file_that_has_gone_since_it_was_listed_is_gone(dav):
    write(dav, **{"a.md": "one"})
    with opened(dav) as place:
        [item] = place.items()
        (dav.folder / "a.md").unlink()
        with pytest.raises(FetchError) as caught:
            content(place, item)
    assert caught.value.code == "gone"


def test_a_file_that_has_changed_since_it_was_listed_comes_with_its_new_version(dav):
    write(dav, **{"a.md": "one"})
    with opened(dav) as place:
        [item] = place.items()
        write(dav, **{"a.md": "another text"})
        read, got = content(place, item)
        [now] = place.items()
    assert (got, read.version) == ("another text", now.version)
    assert read.version != item.version
    assert "If-Match" in dav.asked[1].headers


def test_a_folder_that_goes_while_the_listing_goes_on_has_no_files(dav):
    write(dav, **{"a/a.md": "one", "b/b.md": "two"})

    def delete(asked):
        if asked.path == "/dav/b/":
            (dav.folder / "b/b.md").unlink(missing_ok=True)
            (dav.folder / "b").rmdir() if (dav.folder / "b").exists() else None

    dav.answer = delete
    assert keys(dav) == ["a/a.md"]


def test_a_file_larger_than_allowed_is_not_read_to_its_end(dav):
    write(dav, **{"a.md": "x" * 2_000})
    with opened(dav) as place:
        [item] = place.items()
        into = BytesIO()
        with pytest.raises(FetchError) as caught:
            place.fetch(item, into, 1_000)
    assert caught.value.code == "too_large"
    assert len(into.getvalue()) <= 1_000


def test_one_connection_serves_ten_thousand_files_and_is_opened_once(dav):
    for folder in range(100):
        (dav.folder / f"{folder:02}").mkdir()
        for file in range(100):
            (dav.folder / f"{folder:02}/{file:02}.md").write_bytes(b"")
    assert len(keys(dav)) == 10_000
    assert len(dav.asked) == 101
    assert len({each.connection for each in dav.asked}) == 1


def test_patterns_choose_the_files(dav):
    write(dav, **{"docs/a.md": "", "docs/deep/b.md": "", "drafts/c.md": "", "d.txt": "", "e.exe": ""})
    assert keys(dav, include="docs/**\n*.txt", exclude="deep/") == ["d.txt", "docs/a.md"]
    assert keys(dav, exclude="docs/") == ["d.txt", "drafts/c.md"]


def test_folders_that_are_left_out_are_not_asked_for(dav):
    write(dav, **{"docs/a.md": "", "drafts/b.md": "", ".trash/c.md": ""})
    assert keys(dav, exclude="drafts") == ["docs/a.md"]
    assert [each.path for each in dav.asked] == ["/dav/", "/dav/docs/"]
    assert keys(dav, hidden=True) == [".trash/c.md", "docs/a.md", "drafts/b.md"]


def test_a_wrong_password_is_said(dav):
    error = refusal(dav, password="wrong")
    assert error.code == "bad_credentials"
    assert error.code in UNAVAILABLE
    assert "wrong" not in str(error)


def test_a_folder_that_is_not_there_is_said(dav):
    assert refusal(dav, path="/dav/nowhere/").code == "no_folder"


def test_an_address_that_answers_with_a_page_is_no_webdav_folder(dav):
    dav.answer = lambda _: ("200 OK", {"Content-Type": "text/html"}, b"<html><body>Sign in</body></html>")
    assert refusal(dav).code == "not_webdav"
    dav.answer = lambda _: ("207 Multi-Status", {}, b"<html><body>Sign in<br></body></html>")
    assert refusal(dav).code == "not_webdav"
    dav.answer = lambda _: ("405 Method Not Allowed", {}, b"")
    assert refusal(dav).code == "not_webdav"


def test_the_address_of_a_file_is_no_folder(dav):
    write(dav, **{"a.md": "one"})
    assert refusal(dav, path="/dav/a.md").code in {"not_webdav", "no_folder"}


@pytest.mark.parametrize(
    ("status", "headers", "code", "seconds"),
    [
        ("429 Too Many Requests", {"Retry-After": "120"}, "too_many_requests", 120),
        ("503 Service Unavailable", {"Retry-After": "7"}, "too_many_requests", 7),
        ("423 Locked", {}, "too_many_requests", 0),
        ("503 Service Unavailable", {}, "too_many_requests", 0),
        ("500 Internal Server Error", {}, "bad_status", None),
        ("403 Forbidden", {}, "forbidden", None),
    ],
)
def test_a_server_that_throttles_or_fails_says_so(dav, status, headers, code, seconds):
    write(dav, **{"a.md": "one"})
    with opened(dav) as place:
        [item] = place.items()
        dav.answer = lambda _: (status, headers, b"")
        with pytest.raises(FetchError) as caught:
            content(place, item)
        with pytest.raises(FetchError) as listed:
            list(place.items())
    assert (caught.value.code, listed.value.code) == (code, code)
    assert caught.value.params.get("retry_after") == seconds


def relative(body):
    folder = re.search(rb"href>([^<]*)<", body)[1]  # wsgidav lists it first
    return body.replace(b"href>" + folder, b"href>").replace(b"href><", b"href>./<")


@pytest.mark.parametrize(
    "rewrite",
    [
        relative,
        lambda body: body.replace(b"href>/dav/", b"href>https://127.0.0.1/dav/"),
        lambda body: body.replace(b"a%20b.md", b"a b.md"),
        lambda body: body.replace("é".encode(), b"%C3%A9"),
        lambda body: body.replace(b"folder/</", b"folder</"),
    ],
)
def test_hrefs_may_be_relative_or_absolute_encoded_or_not_with_a_slash_or_without(dav, rewrite):
    write(dav, **{"folder/a b.md": "one", "folder/é.md": "two"})
    dav.rewrite = rewrite
    with opened(dav) as place:
        items = list(place.items())
        assert [item.key for item in items] == ["folder/a b.md", "folder/é.md"]
        assert [content(place, item)[1] for item in items] == ["one", "two"]


@pytest.mark.parametrize(
    "href",
    [
        b"/etc/passwd.md",
        b"/dav/../secret.md",
        b"/dav/%2e%2e/secret.md",
        b"/dav/%2E%2E%2Fsecret.md",
        b"/dav/deep/er.md",
        b"https://elsewhere.example.org/dav/a.md",
        b"//elsewhere.example.org/dav/a.md",
        b"/dav",
        b"/",
    ],
)
def test_a_server_that_lists_what_lies_elsewhere_is_refused_as_a_whole(dav, href):
    write(dav, **{"a.md": "one", "b.md": "two"})
    dav.rewrite = lambda body: body.replace(b"/dav/a.md", href)
    with opened(dav) as place, pytest.raises(FetchError) as caught:
        list(place.items())
    assert caught.value.code in {"outside_folder", "not_webdav"}


def test_a_folder_that_holds_itself_is_listed_to_a_bound(dav):
    write(dav, **{"loop/a.md": "one"})
    (dav.folder / "loop/loop").symlink_to(dav.folder / "loop")

    def endless(asked):
        path = asked.path.encode("latin-1").decode() + "deeper/"
        body = (
            '<d:multistatus xmlns:d="DAV:">'
            f"<d:response><d:href>{asked.path}</d:href></d:response>"
            f"<d:response><d:href>{path}</d:href><d:propstat><d:prop><d:resourcetype><d:collection/></d:resourcetype>"
            "</d:prop><d:status>HTTP/1.1 200 OK</d:status></d:propstat></d:response></d:multistatus>"
        )
        return "207 Multi-Status", {}, body.replace("<d:href>/dav/</d:href></d:response>", _ITSELF, 1).encode()

    dav.answer = endless
    assert refusal(dav).code in {"too_many_items", "not_webdav"}
    assert len(dav.asked) < 100


_ITSELF = (
    "<d:href>/dav/</d:href><d:propstat><d:prop><d:resourcetype><d:collection/></d:resourcetype></d:prop></d:propstat>"
    "</d:response>"
)


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]><d:multistatus xmlns:d="DAV:"><d:response><d:href>/dav/&a;'
        b"</d:href></d:response></d:multistatus>",
        b'<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><d:multistatus xmlns:d="DAV:">&b;'
        b"</d:multistatus>",
        b'<d:multistatus xmlns:d="DAV:"/>',
        b"",
    ],
)
def test_a_listing_with_entities_or_without_anything_is_refused(dav, body):
    dav.answer = lambda _: ("207 Multi-Status", {}, body)
    assert refusal(dav).code == "not_webdav"


def with_response(content):
    """A folder of one file, and a further response as the server writes it."""
    body = part(["a.md"]).decode().replace("</d:multistatus>", f"<d:response>{content}</d:response></d:multistatus>")
    return lambda _: ("207 Multi-Status", {}, body.encode())


@pytest.mark.parametrize(("status", "more"), [("HTTP/1.1 200 OK", ["b.md"]), ("HTTP/1.1 404 Not Found", [])])
def test_a_file_with_a_status_of_its_own_is_listed_unless_it_has_gone(dav, status, more):
    dav.answer = with_response(f"<d:href>/dav/b.md</d:href><d:status>{status}</d:status>")
    assert keys(dav) == ["a.md", *more]


@pytest.mark.parametrize(("status", "code"), [("HTTP/1.1 403 Forbidden", 403), ("HTTP/1.1", 500), ("nonsense", 500)])
def test_a_file_that_the_server_cannot_tell_about_does_not_look_as_if_it_had_gone(dav, status, code):
    dav.answer = with_response(f"<d:href>/dav/b.md</d:href><d:status>{status}</d:status>")
    error = refusal(dav)
    assert (error.code, error.params["status"]) == ("bad_status", code)


def test_a_response_without_an_address_is_passed_over(dav):
    dav.answer = with_response("<d:href> </d:href><d:status>HTTP/1.1 200 OK</d:status>")
    assert keys(dav) == ["a.md"]


def test_a_digest_of_nextcloud_is_taken_and_its_page_linked(dav):
    digest = hashlib.sha256(b"one").hexdigest()

    def nextcloud(asked):
        return (
            "207 Multi-Status",
            {},
            f"""<?xml version="1.0"?><d:multistatus xmlns:d="DAV:" xmlns:oc="http://owncloud.org/ns">
            <d:response><d:href>{asked.path}</d:href><d:propstat><d:prop><d:resourcetype><d:collection/></d:resourcetype>
            <oc:fileid>1</oc:fileid></d:prop><d:status>HTTP/1.1 200 OK</d:status></d:propstat></d:response>
            <d:response><d:href>{asked.path}a.md</d:href><d:propstat><d:prop><d:resourcetype/><d:getetag>"e1"</d:getetag>
            <d:getcontentlength>3</d:getcontentlength><oc:fileid>42</oc:fileid>
            <oc:checksums><oc:checksum>SHA1:00 MD5:11 SHA256:{digest.upper()}</oc:checksum></oc:checksums></d:prop>
            <d:status>HTTP/1.1 200 OK</d:status></d:propstat>
            <d:propstat><d:prop><d:getlastmodified/></d:prop><d:status>HTTP/1.1 404 Not Found</d:status></d:propstat>
            </d:response></d:multistatus>""".encode(),
        )

    dav.answer = nextcloud
    with opened(dav, path="/remote.php/dav/files/me/") as place:
        [item] = place.items()
    assert (item.version, item.digest, item.size) == ('"e1"', digest, 3)
    assert item.url == f"http://127.0.0.1:{dav.port}/index.php/f/42"


def test_without_an_etag_date_and_size_are_the_version(dav):
    write(dav, **{"a.md": "one"})
    dav.rewrite = lambda body: re.sub(rb"<(\w+:getetag)>[^<]*", rb"<\1>", body)
    with opened(dav) as place:
        [before] = place.items()
        assert content(place, before)[0].version == before.version
        assert before.version.endswith(";3")
        write(dav, **{"a.md": "other"})
        [after] = place.items()
    assert before.version != after.version


def test_a_redirect_is_followed_within_the_host_only(dav):
    write(dav, **{"a.md": "one"})
    dav.answer = lambda asked: ("301 Moved", {"Location": "/dav/"}, b"") if asked.path == "/old/" else None
    assert keys(dav, path="/old") == ["a.md"]
    asked = len(dav.asked)
    dav.answer = lambda _: ("302 Found", {"Location": f"http://localhost:{dav.port}/dav/"}, b"")
    assert refusal(dav).code == "off_site"
    dav.answer = lambda _: ("302 Found", {"Location": "http://127.0.0.1:1/dav/"}, b"")
    assert refusal(dav).code == "off_site"
    assert len(dav.asked) == asked + 2  # the password went nowhere else


def test_a_server_that_hangs_up_between_two_requests_is_asked_again():
    with HangingUp() as server, WebDav({"url": server.url}, guard=ALLOWED, seconds=20) as place:
        [item] = place.items()
        assert content(place, item)[1] == "one"
    assert server.asked == [["PROPFIND", "GET"], ["GET"]]


def test_addresses_inside_are_not_connected_to(dav):
    with opened(dav, guard=Guard(), user="", password="") as place, pytest.raises(FetchError) as caught:
        list(place.items())
    assert caught.value.code == "forbidden_address"
    assert dav.asked == []


def test_the_address_that_was_checked_is_connected_to(dav):
    write(dav, **{"a.md": "one"})
    guard = Guard(AllowList.parse(["cloud.invalid"]), resolver=lambda *_: ["127.0.0.1"])
    assert keys(dav, guard=guard, host="cloud.invalid") == ["a.md"]
    assert dav.asked[0].headers["Host"] == f"cloud.invalid:{dav.port}"


def test_a_password_goes_over_https_unless_the_operator_names_the_host(settings):
    values = {"url": "http://cloud.example.org/dav/", "user": "me", "password": "secret"}
    settings.WEB_ALLOWED_HOSTS = []
    with pytest.raises(Rejected) as caught:
        WebDav.check(values)
    assert "https://" in str(caught.value)
    WebDav.check(values | {"url": "https://cloud.example.org/dav/"})
    WebDav.check(values | {"user": "", "password": ""})
    settings.WEB_ALLOWED_HOSTS = ["cloud.example.org"]
    WebDav.check(values)


@pytest.mark.parametrize(
    "values",
    [
        {"url": ""},
        {"url": "file:///etc"},
        {"url": "https://me:secret@example.org/"},
        {"url": "https://a.org", "password": "x"},
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_a_sentence(values):
    with pytest.raises(Rejected) as caught:
        WebDav.check(values)
    assert caught.value.code in {"url_invalid", "user_invalid"}
    assert str(caught.value)[-1] in ".。"


def test_a_server_that_never_answers_ends_by_the_time_limit(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        values = {"url": f"http://127.0.0.1:{port}/dav/"}
        with WebDav(values, guard=ALLOWED, seconds=0.3) as place, pytest.raises(FetchError) as caught:
            list(place.items())
    assert caught.value.code == "timeout"


def test_what_is_not_listed_can_be_fetched_by_its_key(dav):
    write(dav, **NAMES)
    with opened(dav) as place:
        assert content(place, Item("手册/100%?.md"))[1] == "二"


def part(names, path="/dav/"):
    """A part of a folder as Nutstore gives it, which may name the folder itself again."""
    files = "".join(f"<d:response><d:href>{path}{name}</d:href></d:response>" for name in names)
    folder = (
        f"<d:response><d:href>{path}</d:href><d:propstat><d:prop><d:resourcetype><d:collection/></d:resourcetype></d:prop>"
        "</d:propstat></d:response>"
    )
    return f'<d:multistatus xmlns:d="DAV:">{folder}{files}</d:multistatus>'.encode()


def test_a_folder_that_comes_in_parts_is_read_to_its_end(dav):
    parts = {
        "": (["a.md", "b.md"], "?mk=2"),
        "mk=2": (["c.md"], "http://127.0.0.1:{port}/dav/?mk=3"),
        "mk=3": (["d.md"], ""),
    }

    def answer(asked):
        names, following = parts[asked.query]
        link = {"Link": f'<{following.format(port=dav.port)}>; rel="next"'} if following else {}
        return "207 Multi-Status", link, part(names)

    dav.answer = answer
    assert keys(dav) == ["a.md", "b.md", "c.md", "d.md"]
    parts["mk=3"] = (["d.md"], "http://elsewhere.example.org/dav/?mk=4")
    assert refusal(dav).code == "off_site"
    parts["mk=3"] = (["c.md"], "?mk=3")
    assert refusal(dav).code == "not_webdav"


class HangingUp:
    """Reads the second request of a connection and closes it, as servers do whose time for idle ones ends just then."""

    LISTING = (
        b'<d:multistatus xmlns:d="DAV:"><d:response><d:href>/</d:href><d:propstat><d:prop><d:resourcetype><d:collection/>'
        b"</d:resourcetype></d:prop></d:propstat></d:response><d:response><d:href>/a.md</d:href></d:response></d:multistatus>"
    )

    def __enter__(self):
        self.asked = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._thread.join()
        self._socket.close()

    def _serve(self):
        for most in (1, 1):
            connection, _address = self._socket.accept()
            with connection, connection.makefile("rb") as lines:
                self.asked.append([])
                while line := lines.readline():
                    self.asked[-1].append(line.split()[0].decode())
                    headers = {}
                    while (header := lines.readline().strip()) != b"":
                        name, _colon, value = header.partition(b":")
                        headers[name.lower()] = value
                    lines.read(int(headers.get(b"content-length", 0)))
                    if len(self.asked[-1]) > most:
                        break
                    status, body = (b"207 M", self.LISTING) if line.startswith(b"PROPFIND") else (b"200 OK", b"one")
                    connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


def test_a_listing_goes_on_where_it_stopped_and_asks_for_no_folder_twice(dav):
    write(dav, **{"a.md": "one", "下/b 1.md": "two", "下/deeper/c.md": "three", "z/d.md": "four"})
    with opened(dav) as place:
        portions = place.portions(None)
        first = next(portions)
        asked = len(dav.asked)
    with opened(dav) as place:
        rest = [item for portion in place.portions(json.loads(json.dumps(first.position))) for item in portion.items]
        assert [content(place, item)[1] for item in rest] == ["four", "two", "three"]
    assert [item.key for item in first.items] == ["a.md"]
    assert asked == 1
    assert [each.path for each in dav.asked if each.method == "PROPFIND"].count("/dav/") == 1


def test_what_was_listed_is_fetched_by_another_connector_whatever_its_name(dav):
    """As the server writes it, which is not UTF-8 here."""
    body = part(["caf%E9.md"])
    dav.answer = lambda asked: ("207 Multi-Status", {}, body) if asked.method == "PROPFIND" else ("200 OK", {}, b"read")
    with opened(dav) as place:
        (item,) = place.items()
    with opened(dav) as place:
        assert content(place, item)[1] == "read"
    assert dav.asked[-1].path == "/dav/caf\xe9.md"


def test_a_server_that_invents_folders_is_asked_for_so_many_only(dav, monkeypatch):
    monkeypatch.setattr(connector, "MOST_FOLDERS", 5)
    for number in range(10):
        (dav.folder / f"{number}").mkdir()
    assert refusal(dav).code == "too_many_items"
    assert len(dav.asked) == 6


def test_a_list_of_one_folder_that_is_too_large_is_not_read_to_its_end(dav, monkeypatch):
    monkeypatch.setattr(connector, "MOST_LISTING", 1_000)
    dav.rewrite = lambda body: body + b" " * 1_000
    assert refusal(dav).code == "folder_too_large"


@pytest.mark.parametrize("link", ["<" * 50_000, "<a" * 50_000, "<a>" * 50_000 + ";", "<a>" + " " * 100_000])
def test_a_link_is_looked_for_in_time_of_the_order_of_its_length(link):
    """Which a pattern that begins anew at every sign does not: that took minutes here."""
    assert connector._NEXT.search(link) is None
