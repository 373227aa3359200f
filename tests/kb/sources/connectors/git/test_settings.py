import base64

import pytest

from kb.base.errors import Rejected
from kb.base.net.addresses import FetchError
from kb.sources.connectors.git.connector import GitBranch
from kb.sources.connectors.git.remote import Remote


def pem(kind, content):
    begin, end = (f"-----{word} {kind} PRIVATE KEY-----" for word in ("BEGIN", "END"))
    return f"{begin}\n{content}\n{end}"


def key_file(cipher):
    """Of the form of OpenSSH, without a key in it."""
    content = b"openssh-key-v1\0" + len(cipher).to_bytes(4, "big") + cipher + b"\0" * 60
    return pem("OPENSSH", base64.b64encode(content).decode()) + "\n"


KEY = key_file(b"none")
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
SSH = {"url": "git@github.com:o/r.git", "key": KEY, "known_hosts": f"github.com ssh-ed25519 {HOST_KEY}"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/srv/git/r.git",
        "./r.git",
        "file:///srv/git/r.git",
        "ext::sh -c touch% /tmp/x",
        "git://example.org/r.git",
        "ftp://example.org/r.git",
        "ext+https://example.org/r.git",
        "--upload-pack=touch /tmp/x",
        "-oProxyCommand=x@example.org:r.git",
        "ssh://-oProxyCommand=x/r.git",
        "git@-oProxyCommand=x:r.git",
        "git@example.org:-x",
        "ssh://git@example.org/r.git\nx",
        "https://example.org/r.git\nhttps://example.org",
        "https://me:secret@example.org/r.git",
        "http://example.org/r.git",
        "example.org:r.git",
        "C:\\repositories\\r.git",
    ],
)
def test_only_addresses_of_https_and_ssh_are_taken(url):
    with pytest.raises(Rejected) as caught:
        GitBranch.check(SSH | {"url": url})
    assert caught.value.code == "url_invalid"


@pytest.mark.parametrize("url", ["https://github.com/o/r", "https://git.example.org:8443/a/b/r.git"])
def test_https_needs_nothing_else(url):
    GitBranch.check({"url": url})


@pytest.mark.parametrize(
    "url", ["git@github.com:o/r.git", "ssh://git@github.com/o/r.git", "ssh://git@github.com:443/o/r.git"]
)
def test_ssh_needs_a_key_and_the_keys_of_the_host(url):
    GitBranch.check(SSH | {"url": url})
    for name in ("key", "known_hosts"):
        with pytest.raises(Rejected) as caught:
            GitBranch.check(SSH | {"url": url, name: ""})
        assert caught.value.code == f"{name}_invalid"


@pytest.mark.parametrize(
    "key",
    [
        "secret",
        KEY.replace("BEGIN", "START"),
        key_file(b"aes256-ctr"),
        pem("RSA", "Proc-Type: 4,ENCRYPTED\n\nAAAA"),
    ],
)
def test_what_is_no_key_or_has_a_passphrase_is_refused_and_not_repeated(key):
    with pytest.raises(Rejected) as caught:
        GitBranch.check(SSH | {"key": key})
    assert caught.value.code == "key_invalid"
    assert key not in str(caught.value)


@pytest.mark.parametrize("name", ["user", "password"])
@pytest.mark.parametrize("end", ["\n", "\r"])
def test_a_user_name_or_password_of_several_lines_is_refused_and_not_repeated(name, end):
    with pytest.raises(Rejected) as caught:
        GitBranch.check({"url": "https://github.com/o/r", name: f"secret{end}url=https://example.org"})
    assert caught.value.code == "password_invalid"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("branch", ["main", "-x", "feature/中文", "release-1.2", "--upload-pack=x", "@"])
def test_names_of_branches_are_taken(branch):
    GitBranch.check({"url": "https://github.com/o/r", "branch": branch})


@pytest.mark.parametrize(
    "branch", ["a..b", "a b", "a:b", "a*", "/a", "a/", "a.lock", "a~1", "a^", "@{u}", "a\\b", "a//b", ".", "a/.b"]
)
def test_what_git_takes_for_no_name_of_a_branch_is_refused(branch):
    with pytest.raises(Rejected) as caught:
        GitBranch.check({"url": "https://github.com/o/r", "branch": branch})
    assert caught.value.code == "branch_invalid"


def test_a_folder_leads_nowhere_else():
    with pytest.raises(Rejected) as caught:
        GitBranch.check({"url": "https://github.com/o/r", "path": "docs/../../x"})
    assert caught.value.code == "path_invalid"


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("https://github.com/o/r.git", "https://github.com/o/r/blob/a%23b/d%20x/%E4%B8%80.md"),
        ("git@github.com:o/r.git", "https://github.com/o/r/blob/a%23b/d%20x/%E4%B8%80.md"),
        ("ssh://git@gitlab.com/g/s/r.git", "https://gitlab.com/g/s/r/-/blob/a%23b/d%20x/%E4%B8%80.md"),
        ("https://gitlab.example.org:8443/g/r", "https://gitlab.example.org:8443/g/r/-/blob/a%23b/d%20x/%E4%B8%80.md"),
        ("https://gitee.com/o/r", "https://gitee.com/o/r/blob/a%23b/d%20x/%E4%B8%80.md"),
        ("https://codeberg.org/o/r", "https://codeberg.org/o/r/src/branch/a%23b/d%20x/%E4%B8%80.md"),
        ("https://example.org/o/r", ""),
    ],
)
def test_the_page_of_a_file_at_the_hosts_that_are_known(url, page):
    assert Remote.parse(url).page("a#b", "d x/一.md".encode(), "") == page


def test_the_form_with_a_colon_stays_as_it_is_since_its_path_is_relative():
    remote = Remote.parse("me@Git.example.org:docs/r.git")
    assert (remote.address, remote.scheme) == ("me@Git.example.org:docs/r.git", "ssh")
    assert (remote.host, remote.port, remote.known_as) == ("git.example.org", 22, "git.example.org")


def test_what_else_is_no_address_says_so():
    with pytest.raises(FetchError) as caught:
        Remote.parse("https://example.org/" + "x" * 3_000)
    assert caught.value.code == "bad_url"


def test_secrets_are_declared_as_such():
    assert {field.name for field in GitBranch.fields if field.is_secret} == {"password", "key"}


def test_a_full_name_is_the_one_that_git_is_given_the_address_of():
    remote = Remote.parse("https://git.example.org.:8443/o/r.git")
    assert (remote.host, remote.address) == ("git.example.org", "https://git.example.org:8443/o/r.git")
