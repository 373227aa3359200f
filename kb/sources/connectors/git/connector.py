"""The files of a branch of a Git repository, over https or ssh."""

import base64
import re
import textwrap
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, TypeVar

from django.conf import settings
from django.utils.translation import gettext as _, gettext_lazy

from kb.base.errors import Rejected
from kb.base.net.addresses import PORTS, AllowList, FetchError, Guard, Owner, nobody, open_to
from kb.sources.connectors.git.listings import Listing, Listings
from kb.sources.connectors.git.program import Git, Secrets
from kb.sources.connectors.git.remote import PAGES, SSH_PORT, Remote
from kb.sources.connectors.git.repository import Repository, head_of
from kb.sources.connectors.git.workspace import workspace
from kb.sources.connectors.protocol import MOST_FILES, Connector, Item, Portion
from kb.sources.connectors.selection import SELECTION_FIELDS, Selection
from kb.sources.fields import Field

# Contents of one request: where nothing says which will be asked for, and at most.
FIRST_ROUND: Final = 16
MOST_AT_ONCE: Final = 20_000
GROWTH: Final = 4
_POINTER: Final = b"version https://git-lfs.github.com/spec/v1"

_BRANCH: Final = r"(?!/|.*(?:\.\.|//|@\{|/\.|\.lock(?:/|$)))[^\x00-\x20\x7f~^:?*\[\\]{0,250}(?<![/.])"
_Answer = TypeVar("_Answer")


class GitBranch(Connector):
    """See `Connector`. `values` are of `fields`, secrets among them; None takes the operator's guard and limits."""

    fields: ClassVar[tuple[Field, ...]] = (
        Field(
            "url",
            gettext_lazy("address of the repository"),
            gettext_lazy(
                "Such as https://github.com/NAME/REPOSITORY.git, or git@github.com:NAME/REPOSITORY.git with an SSH key."
            ),
            is_required=True,
        ),
        Field(
            "branch",
            gettext_lazy("branch"),
            gettext_lazy("Empty: the one that the repository starts with."),
            pattern=_BRANCH,
            is_filter=True,
        ),
        Field("path", gettext_lazy("folder"), gettext_lazy("Within the repository. Empty: all of it."), is_filter=True),
        *SELECTION_FIELDS,
        Field("user", gettext_lazy("user name"), gettext_lazy("With a token most hosts take any, such as git.")),
        Field(
            "password",
            gettext_lazy("token or password"),
            gettext_lazy("One that may read this repository and nothing else. For https:// only."),
            is_secret=True,
        ),
        Field(
            "key",
            gettext_lazy("SSH key"),
            gettext_lazy("The private key of a deploy key that may only read, without a passphrase."),
            is_long=True,
            is_secret=True,
        ),
        Field(
            "known_hosts",
            gettext_lazy("host keys"),
            gettext_lazy("For SSH: the lines that `ssh-keyscan HOST` writes, compared with what the host publishes."),
            is_long=True,
        ),
        Field(
            "pages",
            gettext_lazy("pages of the files"),
            gettext_lazy(
                "Which software serves the repository, for links to its files. Empty: recognised for well-known hosts."
            ),
            choices=("", *PAGES),
            is_filter=True,
        ),
    )

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        owner: Owner = nobody,
        guard: Guard | None = None,
        most: int | None = None,
        seconds: float | None = None,
    ) -> None:
        guard = guard or Guard(AllowList.parse(open_to(owner, settings.WEB_ALLOWED_HOSTS)))
        text = {field.name: str(values.get(field.name) or "").strip() for field in self.fields}
        remote = Remote.parse(text["url"])
        if remote.scheme == "http" and not guard.allowed.names(remote.host, remote.port):
            raise FetchError("plain_password", host=remote.host)
        if text["branch"] and not re.fullmatch(_BRANCH, text["branch"]):
            raise Rejected("branch_invalid", _("“%(branch)s” is no name of a branch."), branch=text["branch"][:100])
        parts = [each for each in text["path"].split("/") if each]
        if ".." in parts or "." in parts or "\0" in text["path"]:
            raise Rejected("path_invalid", _("Name a folder within the repository, such as docs/manual."))
        key = ""
        if remote.scheme == "ssh":
            if not text["key"]:
                raise Rejected("key_invalid", _("An address of SSH needs the private key that may read it."))
            key = _as_key(text["key"])
            if not re.search(r"^[^#\s]\S*\s+(?:\S+\s+)?[A-Za-z0-9+/=]{40,}", text["known_hosts"], re.MULTILINE):
                raise Rejected(
                    "known_hosts_invalid",
                    _(
                        "Over SSH the keys of the host are needed, so that nobody can pass for it: give the lines of "
                        "`ssh-keyscan %(host)s`, after comparing them with what the host publishes."
                    ),
                    host=remote.host if remote.port == SSH_PORT else f"-p {remote.port} {remote.host}",
                )
        if any("\n" in text[name] or "\r" in text[name] for name in ("user", "password")):
            raise Rejected("password_invalid", _("User name and password are one line each."))
        self._remote, self._named_branch, self._pages = remote, text["branch"], text["pages"]
        self._path = "/".join(parts).encode()
        self._selection = Selection.parse(text["include"], text["exclude"], hidden=values.get("hidden", False))
        self._secrets = Secrets(text["user"] or "git", text["password"], key, text["known_hosts"].replace("\r", ""))
        self._guard = replace(guard, ports=(*PORTS, SSH_PORT)) if remote.scheme == "ssh" else guard
        self._most, self._seconds = most or settings.GIT_MAX_BYTES, seconds or settings.GIT_SECONDS
        self._listings = Listings(settings.DATA_DIR / "git", remote.address, text["branch"])
        self._stack = ExitStack()
        self._git: Git | None = None
        self._branch = ""
        self._listing: Listing | None = None
        self._before: Listing | None = None
        self._repository: Repository | None = None
        self._at_once = 0  # contents of the next request; 0: as many as it takes

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def portions(self, position: Any) -> Iterator[Portion]:  # noqa: ARG002 - all of it comes at once
        """In the order of the paths as bytes; sizes are not known before the contents are fetched."""
        listing = self._current()
        wanted = self._wanted(listing)
        if self._path and not any(_is_below(path, self._path) for path in listing.blobs):
            raise FetchError("no_folder", path=self._path.decode(), host=self._remote.host)
        yield Portion([self._item(path, wanted[path]) for path in sorted(wanted)], None)

    def fetch(self, item: Item, into: BinaryIO, most: int) -> Item:
        self._current()  # what is fetched is compared with the listing before
        repository = self._fetched()
        blobs = self._current().blobs
        path = item.key.encode()
        if path not in blobs:  # one that is no UTF-8 has another key
            path = next((each for each in blobs if _key(each) == item.key), b"")
        if not path:
            raise FetchError("gone", status=404)
        blob = blobs[path]
        if not repository.has(blob):
            self._bring(repository, path, most)
        content = repository.read(blob, most)
        if content.startswith(_POINTER) and len(content) < 1_024:
            raise FetchError("lfs_pointer")
        into.write(content)
        return replace(self._item(path, blob), size=len(content))

    def _current(self) -> Listing:
        """Of the newest commit: the one on the disk where that has not changed."""
        if self._listing is None:
            self._branch, commit = self._ask(lambda git: head_of(git, self._named_branch))
            self._before = self._listings.read()
            if self._before is not None and self._before.commit == commit:
                self._listing = self._before
            else:
                self._fetched()
        assert self._listing is not None  # noqa: S101 - `_fetched` sets it
        return self._listing

    def _fetched(self) -> Repository:
        if self._repository is None:
            self._repository = repository = self._ask(lambda git: Repository(git, self._named_branch))
            self._stack.callback(repository.close)
            if self._listing is None or self._listing.commit != repository.commit:
                tree = repository.tree()
                self._listing = Listing.of(repository.commit, tree)
                if len(self._listing.blobs) > MOST_FILES:
                    raise FetchError("too_many_items", most=MOST_FILES)
                self._listings.write(repository.commit, tree)
        return self._repository

    def _ask(self, question: Callable[[Git], _Answer]) -> _Answer:
        """By the connection that has worked before; at first by each address of the host until one answers."""
        if self._git is not None:
            return question(self._git)
        remote = self._remote
        addresses = self._guard.addresses(remote.host, remote.port)
        if remote.scheme != "ssh":  # git takes them all at once
            addresses = [",".join(f"[{each}]" if ":" in each else each for each in addresses)]
        folder = self._stack.enter_context(workspace(Path(settings.FILE_UPLOAD_TEMP_DIR)))
        failure = FetchError("unreachable", host=remote.host)
        for spelling in remote.spellings():
            for address in addresses:
                git = Git(folder, spelling, self._secrets, address, most=self._most, seconds=self._seconds)
                try:
                    answer = question(git)
                except FetchError as error:
                    if error.code not in {"unreachable", "redirected"}:
                        raise
                    failure = error
                else:
                    self._git = git
                    return answer
            if failure.code != "redirected":
                break
        raise failure

    def _wanted(self, listing: Listing) -> dict[bytes, str]:
        return {
            path: blob
            for path, blob in listing.blobs.items()
            if (not self._path or _is_below(path, self._path)) and self._selection.takes(_key(path))
        }

    def _bring(self, repository: Repository, path: bytes, most: int) -> None:
        """Fetches this file's content with those that are likely to be asked for next, for a round trip a file is slow.

        All that is not as it was at the listing before comes at once, else ever more of what follows. Where that is more than
        the disk may hold, what has been read makes room, and fewer come at a time.
        """
        listing = self._current()
        blob, wanted = listing.blobs[path], self._wanted(listing)
        known = self._before.blobs if self._before is not None else {}
        is_new = known.get(path) != blob
        names = sorted(name for name in wanted if name >= path and (known.get(name) != wanted[name]) is is_new)
        count = self._at_once or (MOST_AT_ONCE if is_new else FIRST_ROUND)
        while count > 1:
            try:
                repository.bring({blob, *(wanted[name] for name in names[:count])})
            except FetchError as error:
                if error.code != "repository_too_large":
                    raise
                repository.free()
                count //= GROWTH**2
            else:
                self._at_once = min(count * GROWTH, MOST_AT_ONCE)
                return
        self._at_once = GROWTH
        try:
            repository.bring({blob}, most)
        except FetchError:
            repository.free()
            raise

    def _item(self, path: bytes, blob: str) -> Item:
        key = _key(path)
        remote, branch = self._remote, self._branch or "HEAD"
        url = remote.page(branch, path, self._pages)
        return Item(key=key, version=blob, name=key.rpartition("/")[2], url=url)


def _is_below(path: bytes, folder: bytes) -> bool:
    return path.startswith(folder + b"/")


def _key(path: bytes) -> str:
    """The path as text that a database can hold; bytes that are no UTF-8 are escaped."""
    return re.sub(r"[\x00-\x1f]", lambda sign: f"\\x{ord(sign[0]):02x}", path.decode("utf-8", "backslashreplace"))


def _as_key(text: str) -> str:
    """A private key as ssh reads it, also where an input has made one line of it; raises Rejected for what is none."""
    found = re.search(r"-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY)-----(.*?)-----END \1-----", text, re.DOTALL)
    body = "".join(found[2].split()) if found else ""
    try:
        content = base64.b64decode(body, validate=True)
    except Base64Error:
        content = b""
    if found is None or not content:
        raise Rejected(
            "key_invalid", _("This is no private SSH key: give the whole file, from -----BEGIN to the last line.")
        )
    is_openssh = content.startswith(b"openssh-key-v1\0")
    if "ENCRYPTED" in found[0] or (is_openssh and content[15:23] != b"\0\0\0\x04none"):
        raise Rejected(
            "key_invalid", _("The SSH key has a passphrase. Make a key of its own for this source, without one.")
        )
    return "\n".join([f"-----BEGIN {found[1]}-----", *textwrap.wrap(body, 64), f"-----END {found[1]}-----", ""])
