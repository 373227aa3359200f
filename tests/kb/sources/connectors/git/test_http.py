"""Against real repositories behind `git http-backend`."""

import os
import re
import socket
import zlib
from io import BytesIO
from pathlib import Path

import pytest

from kb.base.net.addresses import AllowList, FetchError, Guard
from kb.sources.connectors.git import listings
from kb.sources.connectors.git.connector import GitBranch
from kb.sources.connectors.git.listings import Listings
from kb.sources.connectors.protocol import UNAVAILABLE
from tests.git_server import PASSWORD, USER, Bare, GitServer, git
from tests.web_server import CERTIFICATE

ALLOWED = Guard(AllowList.parse(["127.0.0.1"]))
NAMES = {
    "README.md": "一",
    "docs/第一章 #1.md": "二",
    "docs/--upload-pack=x.md": "三",
    "docs/deep/a b?.txt": "四",
    "-x.md": "五",
}


@pytest.fixture(autouse=True)
def data_dir(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path / "data/tmp"
    yield settings.DATA_DIR
    assert list(settings.FILE_UPLOAD_TEMP_DIR.glob("*")) == []  # whatever happened, nothing is left


@pytest.fixture
def server(tmp_path):
    with GitServer(tmp_path / "served") as each:
        yield each


@pytest.fixture(params=[True, False], ids=["partial", "whole"])
def bare(request, server):
    """Of a server that leaves contents out when asked, and of one that always sends all."""
    return Bare(server.folder / "r.git", filters=request.param)


@pytest.fixture
def partial(server):
    return Bare(server.folder / "r.git")


def opened(server, guard=ALLOWED, name="r.git", host="127.0.0.1", most=None, seconds=60, **values):
    return GitBranch({"url": server.url(name, host)} | values, guard=guard, most=most, seconds=seconds)


def keys(server, **values):
    with opened(server, **values) as place:
        return [item.key for item in place.items()]


def content(place, item, most=10_000):
    into = BytesIO()
    return place.fetch(item, into, most), into.getvalue().decode()


def refusal(server, **values):
    with opened(server, **values) as place, pytest.raises(FetchError) as caught:
        list(place.items())
    return caught.value


def test_files_are_listed_in_order_and_read_whatever_their_names(server, bare):
    bare.commit(NAMES)
    with opened(server) as place:
        items = list(place.items())
        assert [item.key for item in items] == sorted(NAMES)
        for item in items:
            read, got = content(place, item)
            assert (got, read.version, read.size) == (NAMES[item.key], item.version, len(got.encode()))
    assert [item.name for item in items if "upload" in item.key] == ["--upload-pack=x.md"]


def test_versions_are_the_hashes_of_the_contents(server, bare):
    bare.commit(NAMES)
    with opened(server) as place:
        for item in place.items():
            assert item.version == git(bare.folder, "rev-parse", f"main:{item.key}")
            assert item.size is None


def test_contents_come_in_one_round_trip(server, partial):
    partial.commit({f"{number}.md": str(number) for number in range(300)})
    with opened(server) as place:
        items = list(place.items())
        assert server.fetches() == 1  # of the folders
        assert [content(place, item)[1] for item in items] == [item.name.removesuffix(".md") for item in items]
    assert server.fetches() == 2


def test_an_unchanged_branch_is_listed_without_fetching_anything(server, bare):
    bare.commit(NAMES)
    before = keys(server)
    server.posts.clear()
    assert keys(server) == before
    assert server.fetches() == 0


def test_of_a_changed_branch_only_the_changed_contents_are_fetched(server, partial):
    partial.commit({f"{number}.md": str(number) for number in range(100)})
    with opened(server) as place:
        before = {item.key: item.version for item in place.items()}
    partial.commit({"7.md": "seven", "new.md": "new"})
    server.posts.clear()
    with opened(server) as place:
        items = [item for item in place.items() if before.get(item.key) != item.version]
        assert [content(place, item)[1] for item in items] == ["seven", "new"]
    assert server.fetches() == 2
    assert sum(body.count(b"want ") for body in server.posts) == 1 + 2


def test_what_was_missed_before_is_fetched_in_few_round_trips(server, partial):
    partial.commit({f"{number:03}.md": str(number) for number in range(300)})
    keys(server)  # a run that ended before it has read one
    server.posts.clear()
    with opened(server) as place:
        assert [content(place, item)[1] for item in place.items()] == [str(number) for number in range(300)]
    assert server.fetches() <= 5


def test_a_server_that_hands_out_no_content_by_its_hash_sends_all_of_the_commit(server, partial):
    """As servers do that speak the protocol before version 2 only."""
    partial.commit(NAMES)
    server.answer = lambda environ: environ.pop("HTTP_GIT_PROTOCOL", "") and None
    with opened(server) as place:
        items = list(place.items())
        assert {item.key: content(place, item)[1] for item in items} == NAMES


def test_a_server_that_throttles_while_contents_are_fetched_is_asked_once(server, partial):
    partial.commit(NAMES)
    with opened(server) as place:
        item, *_ = place.items()
        server.asked.clear()
        server.answer = lambda _: ("429 Too Many Requests", {"Content-Length": "0"}, [])
        with pytest.raises(FetchError) as caught:
            content(place, item)
    assert caught.value.code == "too_many_requests"
    assert len(server.asked) == 1


def test_a_renamed_file_keeps_its_version(server, bare):
    bare.commit(NAMES)
    with opened(server) as place:
        before = {item.key: item.version for item in place.items()}
    bare.commit({"moved/there.md": NAMES["README.md"]}, gone=["README.md"])
    with opened(server) as place:
        after = {item.key: item.version for item in place.items()}
    assert after["moved/there.md"] == before["README.md"]
    assert "README.md" not in after


def test_a_history_that_was_replaced_is_followed(server, bare):
    bare.commit(NAMES)
    keys(server)
    bare.commit({"other.md": "other"}, onto=False)
    with opened(server) as place:
        [item] = place.items()
        assert content(place, item)[1] == "other"


def test_a_file_changed_or_gone_since_it_was_listed(server, bare):
    bare.commit(NAMES)
    keys(server)  # so that the next listing needs no objects, and the objects come only for the file
    with opened(server) as place:
        items = {item.key: item for item in place.items()}
        now = bare.commit({"README.md": "newer"}, gone=["-x.md"])
        read, got = content(place, items["README.md"])
        assert (got, read.version) == ("newer", git(bare.folder, "rev-parse", f"{now}:README.md"))
        with pytest.raises(FetchError) as caught:
            content(place, items["-x.md"])
    assert caught.value.code == "gone"


def test_branch_folder_and_patterns_choose_the_files(server, bare):
    bare.commit(NAMES)
    bare.commit({"docs/only.md": "here", "docs/a.txt": ""}, branch="-x", onto=False)
    assert keys(server, branch="-x") == ["docs/a.txt", "docs/only.md"]
    assert keys(server, branch="-x", path="/docs/", include="*.md") == ["docs/only.md"]
    assert keys(server, path="docs", exclude="deep/") == ["docs/--upload-pack=x.md", "docs/第一章 #1.md"]


def test_links_submodules_and_kinds_that_nobody_reads_are_left_out(server, bare):
    modes = {"link.md": "120000", "module.md": "160000", "run.md": "100755"}
    bare.commit(
        {"link.md": "/etc/passwd", "module.md": "1" * 40, "run.md": "x", "a.md": "x", "b.exe": "x"}, modes=modes
    )
    assert keys(server) == ["a.md", "run.md"]


def test_a_name_that_is_no_utf_8_can_be_read(server, bare):
    bare.commit({b"caf\xe9.md": "latin"})
    with opened(server) as place:
        [item] = place.items()
        assert item.key == "caf\\xe9.md"
        assert content(place, item)[1] == "latin"


def test_pointers_of_large_file_storage_are_left_out_with_a_reason(server, bare):
    bare.commit({"a.pdf": f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"})
    with opened(server) as place:
        [item] = place.items()
        with pytest.raises(FetchError) as caught:
            content(place, item)
    assert caught.value.code == "lfs_pointer"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"branch": "nowhere"}, "no_branch"),
        ({"path": "nowhere"}, "no_folder"),
        ({"name": "nowhere.git"}, "no_repository"),
    ],
)
def test_what_is_not_there_is_said(server, bare, values, code):
    bare.commit(NAMES)
    assert refusal(server, **values).code == code


def test_a_repository_without_a_commit_is_empty(server, bare):
    assert refusal(server).code == "empty_repository"
    assert refusal(server, branch="main").code == "no_branch"


def test_a_branch_that_ends_like_the_one_that_was_asked_for_is_another(server, bare):
    bare.commit(NAMES, branch="refs/heads/main")
    assert refusal(server, branch="main").code == "no_branch"


def test_a_password_lets_in_and_is_on_no_command_line(server, bare, monkeypatch, tmp_path):
    bare.commit(NAMES)
    server.password = True
    seen = []
    server.answer = lambda _: seen.extend(_command_lines())
    with opened(server, user=USER, password=PASSWORD) as place:
        items = list(place.items())
        assert content(place, items[0])[1] == NAMES[items[0].key]
    assert any("git" in line for line in seen)
    assert not any(PASSWORD in line or "token with" in line for line in seen)


def _command_lines():
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield each.read_bytes().decode(errors="replace")
        except OSError:
            continue


@pytest.mark.parametrize("values", [{}, {"user": USER, "password": "wrong"}])
def test_a_wrong_password_or_none_is_said(server, bare, values):
    bare.commit(NAMES)
    server.password = True
    error = refusal(server, **values)
    assert error.code == "bad_credentials"
    assert error.code in UNAVAILABLE
    assert "wrong" not in str(error)


@pytest.mark.parametrize(
    ("status", "code"),
    [("429 Too Many Requests", "too_many_requests"), ("503 Busy", "too_many_requests"), ("500 Broken", "git_failed")],
)
def test_a_server_that_throttles_or_fails_is_said(server, bare, status, code):
    server.answer = lambda _: (status, {"Content-Length": "0"}, [])
    error = refusal(server)
    assert error.code == code
    assert error.code in UNAVAILABLE


def test_redirects_are_not_followed_but_to_the_name_with_git_at_its_end(server, bare, tmp_path):
    bare.commit(NAMES)
    with GitServer(tmp_path / "served") as other:
        target = f"http://127.0.0.1:{other.port}/r.git/info/refs?service=git-upload-pack"
        server.answer = lambda _: ("302 Found", {"Location": target, "Content-Length": "0"}, [])
        assert refusal(server).code == "redirected"
        assert refusal(server, name="r").code == "redirected"
        assert other.asked == []
    server.answer = lambda environ: (
        ("301 Moved", {"Location": server.url("r.git/info/refs"), "Content-Length": "0"}, [])
        if environ["PATH_INFO"].startswith("/r/")
        else None
    )
    assert keys(server, name="r") == sorted(NAMES)


def test_a_page_for_people_is_no_repository(server, bare):
    page = b"<html>Sign in</html>"
    headers = {"Content-Type": "text/html", "Content-Length": str(len(page))}
    server.answer = lambda _: ("200 OK", headers, [page])
    assert refusal(server).code == "empty_repository"


def test_addresses_inside_are_not_connected_to(server, bare):
    values = {"url": f"https://127.0.0.1:{server.port}/r.git"}
    with GitBranch(values, guard=Guard()) as place, pytest.raises(FetchError) as caught:
        list(place.items())
    assert caught.value.code == "forbidden_address"
    assert server.asked == []


def test_the_address_that_was_checked_is_connected_to(server, bare):
    bare.commit(NAMES)
    guard = Guard(AllowList.parse(["git.invalid"]), resolver=lambda *_: ["127.0.0.1"])
    assert keys(server, guard=guard, host="git.invalid") == sorted(NAMES)


def test_over_https_the_certificate_is_that_of_the_name_and_the_password_goes_there(tmp_path, monkeypatch):
    guard = Guard(AllowList.parse(["127.0.0.1"]), resolver=lambda *_: ["127.0.0.1"])
    Bare(tmp_path / "served/r.git").commit(NAMES)

    def place(host):
        values = {"url": f"https://{host}:{server.port}/r.git", "user": USER, "password": PASSWORD}
        return GitBranch(values, guard=guard)

    with GitServer(tmp_path / "served", password=True, certificate=CERTIFICATE) as server:
        with place("named.example.org") as untrusted, pytest.raises(FetchError) as caught:
            list(untrusted.items())
        assert caught.value.code == "tls_failed"
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        with place("named.example.org") as trusted:
            assert [item.key for item in trusted.items()] == sorted(NAMES)
        with place("other.example.org") as other, pytest.raises(FetchError) as caught:
            list(other.items())
        assert caught.value.code == "tls_failed"


def test_a_server_that_nobody_runs_is_out_of_reach(server, bare):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        GitBranch({"url": f"http://127.0.0.1:{port}/r.git"}, guard=ALLOWED) as place,
        pytest.raises(FetchError) as caught,
    ):
        list(place.items())
    assert caught.value.code == "unreachable"


def test_a_server_that_never_answers_ends_by_the_time_limit_with_all_its_processes():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/silent-{os.getpid()}.git"
        with GitBranch({"url": url}, guard=ALLOWED, seconds=0.5) as place, pytest.raises(FetchError) as caught:
            list(place.items())
    assert caught.value.code == "timeout"
    assert not any(url in line for line in _command_lines())


def test_a_repository_larger_than_allowed_ends_at_the_limit(server, tmp_path):
    Bare(server.folder / "r.git", filters=False).commit({"a.pdf": os.urandom(4_000_000), "b.md": "x"})
    assert refusal(server, most=1_000_000).code == "repository_too_large"


def test_a_file_larger_than_allowed_is_left_out_and_the_others_are_read(server, partial):
    partial.commit({"a.pdf": os.urandom(4_000_000), "b.md": "x", "c.md": "y"})
    with opened(server, most=2_000_000) as place:
        large, *small = place.items()
        with pytest.raises(FetchError) as caught:
            content(place, large, most=100_000)
        assert caught.value.code == "too_large"
        assert [content(place, item)[1] for item in small] == ["x", "y"]


def test_more_contents_than_the_disk_may_hold_are_read_one_after_another(server, partial):
    texts = {f"{number:02}.md": os.urandom(200_000).hex() for number in range(12)}  # 2.4 MB packed
    partial.commit(texts)
    with opened(server, most=1_000_000) as place:
        assert {item.key: content(place, item, most=500_000)[1] for item in place.items()} == texts


def test_contents_that_are_larger_than_allowed_are_not_given_out(server, bare):
    bare.commit({"a.md": "x" * 2_000, "b.md": "y"})
    with opened(server) as place:
        large, small = place.items()
        with pytest.raises(FetchError) as caught:
            content(place, large, most=1_000)
        assert caught.value.code == "too_large"
        assert content(place, small)[1] == "y"


def test_a_repository_without_end_ends_at_the_limit(server, tmp_path):
    """Its pack holds one object of a terabyte, and is sent for as long as somebody reads."""
    commit = "1" * 40
    sent = []

    def packet(data):
        return b"%04x%s" % (len(data) + 4, data)

    def pack():
        yield packet(b"shallow " + commit.encode()) + b"0000"
        if b"done" not in server.posts[-1]:
            return
        yield packet(b"NAK\n")
        size = 2**40
        head = bytearray([0x80 | 0x30 | (size & 15)])
        size >>= 4
        while size >= 128:
            head.append(0x80 | (size & 127))
            size >>= 7
        head.append(size)
        yield packet(b"\1PACK" + (2).to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes(head))
        stream = zlib.compressobj(0)
        while True:
            if data := stream.compress(os.urandom(32_768)):
                for start in range(0, len(data), 60_000):
                    sent.append(len(data[start : start + 60_000]))
                    yield packet(b"\1" + data[start : start + 60_000])

    def answer(environ):
        if environ["PATH_INFO"].endswith("/info/refs"):
            able = b"\0shallow side-band-64k symref=HEAD:refs/heads/main\n"
            body = packet(b"# service=git-upload-pack\n") + b"0000"
            body += (
                packet(commit.encode() + b" HEAD" + able) + packet(commit.encode() + b" refs/heads/main\n") + b"0000"
            )
            return "200 OK", {"Content-Type": "application/x-git-upload-pack-advertisement"}, [body]
        return "200 OK", {"Content-Type": "application/x-git-upload-pack-result"}, pack()

    server.answer = answer
    assert refusal(server, most=20_000_000).code == "repository_too_large"
    assert sum(sent) > 20_000_000


def test_a_tree_that_unfolds_without_end_is_bounded(server, partial):
    blob = git(partial.folder, "hash-object", "-w", "--stdin", given=b"x")
    kind = "blob"
    for _ in range(10):
        mode = "100644" if kind == "blob" else "040000"
        lines = "".join(f"{mode} {kind} {blob}\t{name}{'.md' if kind == 'blob' else ''}\n" for name in "abcdefghij")
        blob, kind = git(partial.folder, "mktree", given=lines.encode()), "tree"
    commit = git(partial.folder, "commit-tree", blob, "-m", "x")
    git(partial.folder, "update-ref", "refs/heads/main", commit)
    assert refusal(server).code == "too_many_items"


def test_ten_thousand_files_are_listed_and_read(server, bare):
    bare.commit({f"{number % 100:02}/{number:05}.md": f"text {number}" for number in range(10_000)})
    with opened(server) as place:
        items = list(place.items())
        assert len(items) == 10_000
        assert sum(content(place, item)[1] == f"text {int(item.name[:5])}" for item in items) == 10_000
    assert server.fetches() <= 2


def test_a_folder_that_a_killed_process_has_left_is_taken_away(server, bare, settings):
    bare.commit(NAMES)
    left = settings.FILE_UPLOAD_TEMP_DIR / "git-left"
    left.mkdir(parents=True)
    (left / "lock").touch()
    (left / "key").write_text("secret")
    assert keys(server)
    assert not left.exists()


def test_the_page_of_a_file_is_that_of_its_branch(server, bare):
    bare.commit(NAMES)
    with opened(server, pages="gitea") as place:
        urls = {item.key: item.url for item in place.items()}
    assert urls["docs/第一章 #1.md"] == (
        f"http://127.0.0.1:{server.port}/r/src/branch/main/docs/%E7%AC%AC%E4%B8%80%E7%AB%A0%20%231.md"
    )
    with opened(server) as place:
        assert {item.url for item in place.items()} == {""}


def test_nothing_of_the_machine_configures_it(server, bare, monkeypatch, tmp_path):
    """Neither a file of this user nor the environment leads it to another place or program."""
    bare.commit(NAMES)
    (tmp_path / ".gitconfig").write_text(f'[url "file:///nowhere/"]\n\tinsteadOf = http://127.0.0.1:{server.port}/\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_SSH_COMMAND", "touch /nowhere")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert keys(server) == sorted(NAMES)


@pytest.mark.parametrize("version", ["", "git version 2.30.2", "nonsense"])
def test_without_git_or_with_one_too_old_nothing_is_asked(server, bare, monkeypatch, tmp_path, version):
    if version:
        (tmp_path / "git").write_text(f"#!/bin/sh\necho '{version}'\n")
        (tmp_path / "git").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refusal(server)
    assert error.code == "git_missing"
    assert error.code in UNAVAILABLE
    assert server.asked == []


def test_a_listing_on_the_disk_that_is_damaged_is_made_again(server, bare, settings):
    bare.commit(NAMES)
    keys(server)
    [file] = (settings.DATA_DIR / "git").iterdir()
    assert re.fullmatch(r"[0-9a-f]{64}\.listing", file.name)
    file.write_bytes(b"damaged")
    assert keys(server) == sorted(NAMES)


def test_of_too_many_listings_on_the_disk_the_one_that_was_not_read_for_longest_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(listings, "MOST_LISTINGS", 2)
    folder = tmp_path / "listings"
    read, unread, new = (Listings(folder, "https://example.org/r.git", branch) for branch in ("a", "b", "c"))
    read.write("1" * 40, b"")
    unread.write("2" * 40, b"")
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    assert read.read() is not None

    new.write("3" * 40, b"")

    assert [each.read() is not None for each in (read, unread, new)] == [True, False, True]
