"""Against a real sshd of the tests' own."""

import shutil
from io import BytesIO

import pytest

from kb.base.net.addresses import AllowList, FetchError, Guard
from kb.sources.connectors.git.connector import GitBranch
from tests.git_server import SSHD, Bare, SshServer

pytestmark = pytest.mark.skipif(SSHD is None, reason="sshd is missing: apt install openssh-server")
ALLOWED = Guard(AllowList.parse(["127.0.0.1"]))
FILES = {"README.md": "一", "docs/--upload-pack=x.md": "三"}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with SshServer(tmp_path_factory.mktemp("sshd") / "own") as server:
        yield server


@pytest.fixture(autouse=True)
def data_dir(settings, tmp_path):
    settings.DATA_DIR = tmp_path / "data"
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path / "data/tmp"
    yield settings.DATA_DIR
    assert list(settings.FILE_UPLOAD_TEMP_DIR.glob("*")) == []  # no key is left


@pytest.fixture(params=[True, False], ids=["partial", "whole"])
def bare(request, tmp_path):
    repository = Bare(tmp_path / "库/r.git", filters=request.param)
    repository.commit(FILES)
    return repository


def opened(sshd, bare, guard=ALLOWED, host="127.0.0.1", seconds=60, **values):
    values = {"url": sshd.url(bare.folder, host), "key": sshd.key, "known_hosts": sshd.known_hosts} | values
    return GitBranch(values, guard=guard, seconds=seconds)


def texts(place):
    found = {}
    for item in place.items():
        into = BytesIO()
        place.fetch(item, into, 1_000)
        found[item.key] = into.getvalue().decode()
    return found


def refusal(sshd, bare, **values):
    with opened(sshd, bare, **values) as place, pytest.raises(FetchError) as caught:
        list(place.items())
    return caught.value


def test_files_are_listed_and_read_with_a_key(sshd, bare):
    with opened(sshd, bare) as place:
        assert texts(place) == FILES


def test_a_key_that_a_form_has_made_one_line_of_is_read(sshd, bare):
    with opened(sshd, bare, key=" ".join(sshd.key.split("\n"))) as place:
        assert texts(place) == FILES


def test_another_key_is_refused(sshd, bare):
    assert refusal(sshd, bare, key=sshd.other_key).code == "bad_credentials"


@pytest.mark.parametrize("lines", ["{other}", "elsewhere.example.org {key}", "[127.0.0.1]:1 {key}"])
def test_a_host_with_another_key_than_the_known_ones_gets_no_connection(sshd, bare, lines):
    key = sshd.known_hosts.partition(" ")[2]
    known = sshd.other_hosts if lines == "{other}" else lines.format(key=key)
    assert refusal(sshd, bare, known_hosts=known).code == "host_key"


def test_the_address_that_was_checked_is_connected_to_and_the_key_is_that_of_the_name(sshd, bare):
    guard = Guard(AllowList.parse(["git.invalid"]), resolver=lambda *_: ["127.0.0.1"])
    known = sshd.known_hosts.replace("127.0.0.1", "git.invalid")
    with opened(sshd, bare, guard=guard, host="git.invalid", known_hosts=known) as place:
        assert texts(place) == FILES
    assert refusal(sshd, bare, guard=guard, host="git.invalid").code == "host_key"


def test_of_several_addresses_the_next_is_tried(sshd, bare):
    guard = Guard(AllowList.parse(["git.invalid"]), resolver=lambda *_: ["127.0.0.9", "127.0.0.1"])
    known = sshd.known_hosts.replace("127.0.0.1", "git.invalid")
    with opened(sshd, bare, guard=guard, host="git.invalid", known_hosts=known) as place:
        assert texts(place) == FILES


def test_addresses_inside_are_not_connected_to(sshd, bare):
    before = sshd.log().count("Connection from")
    assert refusal(sshd, bare, guard=Guard()).code == "forbidden_address"
    assert sshd.log().count("Connection from") == before


@pytest.mark.parametrize(("values", "code"), [({"branch": "nowhere"}, "no_branch"), ({"path": "nowhere"}, "no_folder")])
def test_what_is_not_there_is_said(sshd, bare, values, code):
    assert refusal(sshd, bare, **values).code == code


def test_a_repository_that_is_not_there_is_said(sshd, bare, tmp_path):
    assert refusal(sshd, bare, url=sshd.url(tmp_path / "nowhere.git")).code == "no_repository"


def test_without_ssh_nothing_is_asked(sshd, bare, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    error = refusal(sshd, bare)
    assert (error.code, error.params["program"]) == ("git_missing", "ssh")


def test_an_unchanged_branch_is_listed_again(sshd, bare):
    for _ in range(2):
        with opened(sshd, bare) as place:
            assert {item.key for item in place.items()} == set(FILES)
