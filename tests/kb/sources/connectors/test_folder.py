"""A folder on the server, read from a real file system."""

import os
import shutil
import threading
from contextlib import contextmanager
from io import BytesIO

import pytest
from hypothesis import given, strategies

from kb.base.errors import Rejected
from kb.base.net.addresses import FetchError
from kb.sources.connectors.folder import tree
from kb.sources.connectors.folder.connector import Folder
from kb.sources.connectors.protocol import UNAVAILABLE

MOST = 10_000_000


@pytest.fixture
def allowed(tmp_path, settings):
    folder = tmp_path / "allowed"
    folder.mkdir()
    settings.SOURCE_FOLDERS = [str(folder)]
    return folder


@pytest.fixture
def place(allowed):
    folder = allowed / "docs"
    for name, text in {"a.md": "alpha", "b/c.txt": "gamma", "b/d/e.md": "delta", "z.md": "omega"}.items():
        write(folder / name, text)
    return folder


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def reading(place, **values):
    return Folder({"path": str(place), **values})


def keys(place, **values):
    with reading(place, **values) as folder:
        return [item.key for item in folder.items()]


def code_of(call):
    with pytest.raises(FetchError) as caught:
        call()
    return caught.value.code


def fetched(folder, item, most=MOST):
    into = BytesIO()
    return folder.fetch(item, into, most), into.getvalue()


def test_files_are_listed_in_an_order_that_stays_and_read(place):
    with reading(place) as folder:
        items = list(folder.items())
        contents = [fetched(folder, item) for item in items]

    assert [item.key for item in items] == ["a.md", "z.md", "b/c.txt", "b/d/e.md"]
    assert [content for _, content in contents] == [b"alpha", b"omega", b"gamma", b"delta"]
    assert [item for item, _ in contents] == items
    assert (items[3].name, items[3].size, items[3].modified.tzname()) == ("e.md", 5, "UTC")


def test_the_version_moves_with_the_content_and_stays_without(place):
    def versions():
        with reading(place) as folder:
            return {item.key: item.version for item in folder.items()}

    before = versions()
    write(place / "a.md", "ALPHA")  # as many bytes
    os.utime(place / "a.md", ns=(1, 1))
    (place / "z.md").replace(place / "y.md")

    after = versions()
    assert after["a.md"] != before["a.md"]
    assert after["b/c.txt"] == before["b/c.txt"]
    assert after["y.md"] == before["z.md"]


def test_links_pipes_hidden_and_unreadable_kinds_are_left_out(place, tmp_path):
    write(tmp_path / "outside" / "secret.md", "secret")
    (place / "link.md").symlink_to(tmp_path / "outside" / "secret.md")
    (place / "linked").symlink_to(tmp_path / "outside")
    (place / "loop").symlink_to(place)
    (place / "dangling.md").symlink_to("nowhere")
    os.mkfifo(place / "pipe.md")
    write(place / ".hidden.md", "hidden")
    write(place / "x.bin", "x")

    assert keys(place) == ["a.md", "z.md", "b/c.txt", "b/d/e.md"]
    assert ".hidden.md" in keys(place, hidden=True)


def test_a_file_or_folder_that_turns_into_a_link_after_the_listing_leads_nowhere(place, tmp_path):
    write(tmp_path / "outside" / "c.txt", "secret")
    write(tmp_path / "outside" / "d" / "e.md", "secret")
    with reading(place) as folder:
        items = {item.key: item for item in folder.items()}
        (place / "a.md").unlink()
        (place / "a.md").symlink_to(tmp_path / "outside" / "c.txt")
        (place / "b").rename(place / "was-b")
        (place / "b").symlink_to(tmp_path / "outside")
        (place / "z.md").unlink()
        os.mkfifo(place / "z.md")

        for item in items.values():
            assert code_of(lambda item=item: fetched(folder, item)) == "gone"


@pytest.mark.parametrize("key", ["../secret.md", "b/../../secret.md", "/etc/passwd", "b//c.txt", ""])
def test_a_key_that_leads_out_is_of_nothing(place, key):
    write(place.parent / "secret.md", "secret")
    with reading(place) as folder:
        item = next(folder.items())
        forged = type(item)(key=key)

        assert code_of(lambda: fetched(folder, forged)) == "gone"


@pytest.mark.parametrize("path", ["/etc", "{allowed}/../other", "{allowed}other", "relative", "/"])
def test_a_folder_outside_the_list_is_refused(allowed, path):
    path = path.format(allowed=allowed)

    with pytest.raises(Rejected) as caught:
        Folder.check({"path": path})
    assert caught.value.code == "path_invalid"
    assert code_of(lambda: keys(path)) == "folder_not_allowed"


def test_folders_are_off_unless_some_are_named(place, settings):
    Folder.check({"path": str(place)})
    settings.SOURCE_FOLDERS = []

    with pytest.raises(Rejected) as caught:
        Folder.check({"path": str(place)})
    assert caught.value.code == "path_invalid"
    assert code_of(lambda: keys(place)) == "folder_not_allowed"


def test_a_source_whose_folder_is_reached_by_a_link_is_refused(allowed, tmp_path):
    write(tmp_path / "outside" / "secret.md", "secret")
    (allowed / "way").symlink_to(tmp_path / "outside")
    (allowed / "up").symlink_to("..")

    assert code_of(lambda: keys(allowed / "way")) == "folder_missing"
    assert code_of(lambda: keys(allowed / "up" / "outside")) == "folder_missing"


def test_a_place_that_is_missing_or_empty_does_not_look_as_if_all_had_gone(place):
    with reading(place) as folder:
        item = next(folder.items())
        place.rename(place.with_name("elsewhere"))
        listing = code_of(lambda: list(folder.items()))
    assert listing == "folder_missing"
    assert "folder_missing" in UNAVAILABLE
    assert code_of(lambda: keys(place)) == "folder_missing"

    place.mkdir()  # as the folder on which a disk is mounted otherwise
    assert code_of(lambda: keys(place)) == "folder_empty"
    with reading(place) as folder:
        assert code_of(lambda: fetched(folder, item)) == "gone"
        place.rmdir()
        assert code_of(lambda: fetched(folder, item)) == "folder_missing"


def test_a_folder_that_is_deleted_while_the_listing_goes_on_has_no_files(place):
    with reading(place) as folder:
        portions = folder.portions(None)
        first = next(portions)
        shutil.rmtree(place / "b")
        rest = list(portions)

    assert [item.key for item in first.items] == ["a.md", "z.md"]
    assert rest == []


def test_a_file_that_is_deleted_while_its_folder_is_listed_is_left_out(place, monkeypatch):
    scan = os.scandir

    @contextmanager
    def interrupted(at):
        with scan(at) as entries:
            found = list(entries)
            (place / "a.md").unlink(missing_ok=True)
            yield found

    monkeypatch.setattr(os, "scandir", interrupted)

    assert keys(place) == ["z.md", "b/c.txt", "b/d/e.md"]


@pytest.fixture
def not_root():
    """As a user whom file modes bind."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        yield


def test_what_the_server_may_not_read_is_said(place, request):
    for folder in (place, *place.parents):
        if folder.stat().st_uid == os.geteuid() and folder.name:
            folder.chmod(0o755)
    (place / "a.md").chmod(0)
    locked = place / "b" / "d"
    locked.chmod(0)
    try:
        request.getfixturevalue("not_root")
        with reading(place, exclude="d") as folder:
            items = list(folder.items())
            assert [item.key for item in items] == ["a.md", "z.md", "b/c.txt"]
            assert code_of(lambda: fetched(folder, items[0])) == "file_unreadable"
        # Its files must not look as if they had gone.
        assert code_of(lambda: keys(place)) == "folder_unreadable"
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        locked.chmod(0o755)


def test_names_that_are_no_utf8_are_read(place):
    (place / os.fsdecode(b"\xb2\xe2\\\xca\xd4.md")).write_bytes(b"gbk")

    with reading(place) as folder:
        item = next(item for item in folder.items() if item.name not in {"a.md", "z.md"})
        _, content = fetched(folder, item)

    assert item.key == "\\xb2\\xe2\\\\\\xca\\xd4.md"
    assert item.key.encode()  # fit for a database
    assert content == b"gbk"


@given(strategies.binary(min_size=1).filter(lambda name: b"\x00" not in name))
def test_a_key_leads_back_to_its_path(name):
    path = os.fsdecode(name)

    assert os.fsencode(tree.path_of(tree.key_of(path))) == name


@given(strategies.text(strategies.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_path_of_text_without_backslash_is_its_own_key(path):
    assert tree.key_of(path) == path.replace("\\", "\\\\")


def test_more_than_the_most_bytes_are_refused(place):
    with reading(place) as folder:
        item = next(folder.items())

        assert fetched(folder, item, most=5)[1] == b"alpha"
        assert code_of(lambda: fetched(folder, item, most=4)) == "too_large"


class Meddling(BytesIO):
    """Changes the file while it is copied, so many times."""

    def __init__(self, path, times):
        super().__init__()
        self.path, self.times = path, times

    def write(self, data):
        if self.times:
            self.times -= 1
            with self.path.open("a") as file:
                file.write("+")
        return super().write(data)


def test_a_file_that_changes_while_it_is_read_is_read_again(place):
    with reading(place) as folder:
        item = next(folder.items())
        into = Meddling(place / "a.md", times=1)
        read = folder.fetch(item, into, MOST)
        listed = next(folder.items())

    assert into.getvalue() == b"alpha+"
    assert read == listed
    assert read.version != item.version


def test_a_file_that_never_rests_is_read_again_at_the_next_run(place):
    with reading(place) as folder:
        item = next(folder.items())
        read = folder.fetch(item, Meddling(place / "a.md", times=1_000), MOST)
        listed = next(folder.items())

    assert read.version != listed.version


def test_a_file_replaced_while_it_is_read_comes_as_it_was(place):
    """A link that a thread turns to and fro between a file inside and one outside never lets the outside through."""
    secret = place.parent / "secret.md"
    write(secret, "secret")
    ends = threading.Event()

    def flip():
        while not ends.is_set():
            (place / "new").symlink_to(secret)
            (place / "new").replace(place / "a.md")
            write(place / "new", "alpha")
            (place / "new").replace(place / "a.md")

    thread = threading.Thread(target=flip)
    thread.start()
    contents = set()
    try:
        with reading(place) as folder:
            item = next(iter(folder.items()))
            for _ in range(2_000):
                try:
                    contents.add(fetched(folder, type(item)(key="a.md"))[1])
                except FetchError as error:
                    contents.add(error.code)
    finally:
        ends.set()
        thread.join()

    assert contents <= {b"alpha", b"", "gone"}
    assert contents != {"gone"}


def test_ten_thousand_files_are_listed(place):
    for number in range(10_000):
        write(place / f"f{number % 100}" / f"{number}.md", "x")

    assert len(keys(place)) == 10_004
