"""Runs the git program on a repository of ours and a remote of somebody else's, within bounds."""

import os
import re
import selectors
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from kb.base.cancellation import interruptible
from kb.base.net.addresses import FetchError
from kb.base.net.client import MIB, too_large
from kb.ingest.parser.processes import kill, size_of
from kb.sources.connectors.git.remote import Remote
from kb.sources.connectors.protocol import MOST_FILES

MOST_OUTPUT: Final = 64 * MIB  # lists of files, of which nothing is larger
MOST_MEMORY: Final = 2_048 * MIB  # address space of each process
OLDEST: Final = (2, 37)  # that knows http.curloptResolve
_END_SECONDS: Final = 5.0
_TICK: Final = 0.05  # seconds between two looks at the size
_ERRORS: Final = 8_192  # of the end of what it says
# Each of its processes inherits the bounds: bytes of one file in blocks of 512, address space in KiB.
_BOUNDED: Final = 'ulimit -f "$1"; ulimit -v "$2" 2>/dev/null || :; shift 2; exec "$@"'
_PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH")
_CONFIGURATION: Final = {
    # Nothing but what was asked for, and nobody but whom it was asked of.
    "protocol.allow": "never",
    "http.followRedirects": "false",
    "http.proxy": "",
    "http.sslVerify": "true",
    "transfer.bundleURI": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    # Nothing of this machine, and nothing that goes on after it.
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.askPass": "",
    "credential.helper": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    # Bounds. What comes stays one pack, so that its file ends at the limit.
    "fetch.unpackLimit": "1",
    "pack.threads": "1",
    "core.bigFileThreshold": "16m",
    "core.deltaBaseCacheLimit": "64m",
    "core.packedGitWindowSize": "16m",
    "core.packedGitLimit": "256m",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
}
# A helper gets no file and no argument to see: both values are in the environment of git's own processes.
_HELPER: Final = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$ZHIKU_GIT_USER" "$ZHIKU_GIT_PASSWORD"; }; f'
)
# What git and ssh write, in the order in which it is looked for; the messages are those of LC_ALL=C.
_FAILURES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), code)
    for pattern, code in (
        (r"returned error: 30[12378]|redirect", "redirected"),
        (r"host key verification failed|host key is known|REMOTE HOST IDENTIFICATION", "host_key"),
        (
            r"permission denied \(|could not read (username|password)|authentication failed|error: 401|load key",
            "bad_credentials",
        ),
        (r"returned error: (429|503)", "too_many_requests"),
        (r"certificate|gnutls|\bSSL\b|SSL_", "tls_failed"),
        (r"connect to .* timed out|cannot assign requested address", "unreachable"),
        (r"timed out|operation too slow|timeout", "timeout"),
        (
            r"connection refused|failed to connect|couldn't connect|no route|unreachable|could not resolve",
            "unreachable",
        ),
        (r"not found|does not appear to be a git|does not exist|returned error: (40[34]|410)", "no_repository"),
    )
)


def program(name: str, package: str) -> str:
    """The path of a program; raises FetchError where it is missing."""
    found = shutil.which(name)
    if found is None:
        raise FetchError("git_missing", program=name, package=package)
    return found


@lru_cache(maxsize=4)
def _git_program(path: str) -> str:
    """Raises FetchError for a version that would not connect to the addresses that it is given, and says nothing of it."""
    told = subprocess.run([path, "version"], capture_output=True, timeout=30, check=False)  # noqa: S603 - of the PATH
    found = re.search(rb"git version (\d+)\.(\d+)", told.stdout)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise FetchError("git_missing", program=f"git {'.'.join(map(str, OLDEST))}", package="git")
    return path


@dataclass(frozen=True, slots=True)
class Secrets:
    """What lets git in: a user name and a password or token over https, an SSH key with the host's keys over ssh."""

    user: str = ""
    password: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    known_hosts: str = ""


class Git:
    """One remote and a folder with a repository of ours.

    Args:
        folder: private to this run, and emptied by who has made it: the SSH key lies in it meanwhile.
        address: where to connect to, checked by the guard; over https several, with commas between.
        most: bytes of the whole folder.
        seconds: for each call.
    """

    def __init__(
        self, folder: Path, remote: Remote, secrets: Secrets, address: str, *, most: int, seconds: float
    ) -> None:
        self.folder, self.remote = folder, remote
        self.most, self.seconds = most, seconds
        self._git = _git_program(program("git", "git"))
        self._secrets = secrets
        self._local = self._environment({}, "")
        self._far = self._environment(*self._way(address))

    def run(
        self,
        *arguments: str,
        is_remote: bool = False,
        given: bytes = b"",
        seconds: float | None = None,
        most: int | None = None,
    ) -> bytes:
        """What git writes; raises FetchError where it fails or takes too long.

        `most` are the bytes that the folder may grow by, and "too_large" is raised beyond; without it "repository_too_large" as
        soon as the folder is larger than it may be at all.
        """
        limit = seconds or self.seconds
        full = self.most if most is None else min(self.most, size_of(self.folder) + most)
        deadline, look_at = time.monotonic() + limit, 0.0
        output, errors = bytearray(), b""
        with TemporaryFile() as stdin:
            stdin.write(given)
            stdin.seek(0)
            with self._process(arguments, is_remote=is_remote, stdin=stdin.fileno(), most=full) as process:
                for is_error, data in _pieces(process):
                    if is_error:
                        errors = (errors + data)[-_ERRORS:]
                    else:
                        output += data
                    if len(output) > MOST_OUTPUT:
                        raise FetchError("too_many_items", most=MOST_FILES)
                    if (now := time.monotonic()) > deadline:
                        raise self._timeout(limit)
                    if now >= look_at:
                        look_at = now + _TICK
                        if size_of(self.folder) > full:
                            raise self._too_large(most if full < self.most else None)
                try:
                    status = process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired as error:
                    raise self._timeout(limit) from error
        if status != 0 and size_of(self.folder) >= full:
            raise self._too_large(most if full < self.most else None)
        if status != 0:
            raise self._failure(errors.decode("utf-8", "replace"), limit)
        return bytes(output)

    @contextmanager
    def blobs(self) -> Iterator["Blobs"]:
        """Reads contents one after another from one process, which asks nobody."""
        with self._process(("cat-file", "--batch"), is_remote=False, stdin=subprocess.PIPE, most=self.most) as process:
            yield Blobs(process, self)

    @contextmanager
    def _process(
        self, arguments: tuple[str, ...], *, is_remote: bool, stdin: int, most: int
    ) -> Iterator[subprocess.Popen[bytes]]:
        command = [
            *("/bin/sh", "-c", _BOUNDED, "sh", str(most // 512 + 1), str(MOST_MEMORY // 1024)),
            *(self._git, *arguments),
        ]
        with subprocess.Popen(  # noqa: S603 - what others name is no option: addresses begin with a scheme, branches with refs/
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._far if is_remote else self._local,
            cwd=self.folder,
            start_new_session=True,
        ) as process:
            try:
                with interruptible(partial(kill, process)):
                    yield process
            finally:
                if process.returncode is None:
                    kill(process)
                    _await_end(process)

    def _environment(self, configuration: Mapping[str, str], address: str) -> dict[str, str]:
        """Of git's processes: nothing of ours but where programs lie; `address` is what ssh connects to."""
        values = [*_CONFIGURATION.items(), *configuration.items()]
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {
            "LC_ALL": "C",
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder),
            "GIT_DIR": str(self.folder / "repository"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "SSH_ASKPASS_REQUIRE": "never",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_ALLOW_PROTOCOL": self.remote.scheme if configuration else "",
            "GIT_CONFIG_COUNT": str(len(values)),
        }
        for number, (name, value) in enumerate(values):
            environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        if configuration and self.remote.scheme == "ssh":
            environment |= {"GIT_SSH_COMMAND": self._ssh(address), "GIT_SSH_VARIANT": "ssh"}
        elif configuration and self._secrets.password:
            environment |= {"ZHIKU_GIT_USER": self._secrets.user, "ZHIKU_GIT_PASSWORD": self._secrets.password}
        if authorities := os.environ.get("SSL_CERT_FILE"):  # of an intranet, as for web pages
            environment["GIT_SSL_CAINFO"] = authorities
        return environment

    def _way(self, address: str) -> tuple[dict[str, str], str]:
        remote = self.remote
        configuration = {"remote.origin.url": remote.address}
        if remote.scheme == "ssh":
            return configuration, address
        if not _is_address(remote.host):  # else there is nothing to resolve
            configuration["http.curloptResolve"] = f"{remote.host}:{remote.port}:{address}"
        if self._secrets.password:
            at = f"[{remote.host}]" if ":" in remote.host else remote.host
            configuration[f"credential.{remote.scheme}://{at}:{remote.port}.helper"] = _HELPER
            configuration[f"credential.{remote.scheme}://{at}.helper"] = _HELPER
        return configuration, ""

    def _ssh(self, address: str) -> str:
        key, hosts = self.folder / "key", self.folder / "known_hosts"
        hosts.write_text(self._secrets.known_hosts.strip() + "\n", encoding="utf-8")
        key.touch(mode=0o600)
        key.write_text(self._secrets.key, encoding="ascii")
        options = {
            "HostName": address,
            "HostKeyAlias": self.remote.known_as,
            "UserKnownHostsFile": str(hosts),
            "GlobalKnownHostsFile": os.devnull,
            "StrictHostKeyChecking": "yes",
            "CheckHostIP": "no",
            "UpdateHostKeys": "no",
            "IdentityFile": str(key),
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "PreferredAuthentications": "publickey",
            "BatchMode": "yes",
            "ConnectTimeout": str(max(1, round(min(self.seconds, 30)))),
            "ServerAliveInterval": "15",
            "ControlMaster": "no",
            "ControlPath": "none",
            "ProxyCommand": "none",
            "PermitLocalCommand": "no",
            "ForwardAgent": "no",
            "ClearAllForwardings": "yes",
            "RequestTTY": "no",
        }
        written = [each for name, value in options.items() for each in ("-o", f"{name}={value}")]
        return shlex.join([program("ssh", "openssh-client"), "-F", os.devnull, *written])

    def _timeout(self, seconds: float) -> FetchError:
        return FetchError("timeout", host=self.remote.host, seconds=max(1, round(seconds)))

    def _too_large(self, most: int | None) -> FetchError:
        if most is not None:
            return too_large(most)
        return FetchError("repository_too_large", host=self.remote.host, megabytes=max(1, self.most // MIB))

    def _failure(self, errors: str, seconds: float) -> FetchError:
        host = self.remote.host
        code = next((code for pattern, code in _FAILURES if pattern.search(errors)), "git_failed")
        status = next(iter(re.findall(r"error: (\d{3})\b", errors)), "")
        params: dict[str, dict[str, str | int]] = {
            "timeout": {"host": host, "seconds": max(1, round(seconds))},
            "no_repository": {"url": self.remote.address[:200]},
            "redirected": {"host": host, "status": status or "3xx"},
            "too_many_requests": {"host": host, "status": status, "retry_after": 0},
            "bad_credentials": {"host": host, "reason": _last_line(errors)},
            "git_failed": {"host": host, "reason": _last_line(errors)},
        }
        return FetchError(code, **params.get(code, {"host": host}))


class Blobs:
    """Contents by hash, from a running `cat-file --batch`."""

    def __init__(self, process: subprocess.Popen[bytes], git: Git) -> None:
        self._process, self._git = process, git

    def read(self, blob: str, most: int) -> bytes:
        """Raises FetchError where it is larger than `most`, or not there; no other can be read after that."""
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101
        watch = threading.Timer(self._git.seconds, kill, (self._process,))
        watch.start()
        try:
            self._process.stdin.write(f"{blob}\n".encode())
            self._process.stdin.flush()
            words = self._process.stdout.readline(200).split()
            if len(words) != 3 or words[1] != b"blob":
                raise self._broken()
            size = int(words[2])
            if size > most:
                raise too_large(most)
            content = self._process.stdout.read(size + 1)
        except OSError as error:
            raise self._broken() from error
        finally:
            watch.cancel()
        if len(content) != size + 1:
            raise self._broken()
        return content[:-1]

    def _broken(self) -> FetchError:
        return FetchError("broken_response", host=self._git.remote.host)


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Until none of its processes has the pipes open, so that nothing writes to the folder any more."""
    deadline = time.monotonic() + _END_SECONDS
    for _piece in _pieces(process):
        if time.monotonic() > deadline:
            return


def _pieces(process: subprocess.Popen[bytes]) -> Iterator[tuple[bool, bytes]]:
    """What both pipes bring until their end, with nothing in between where they are silent: is it of stderr, and data."""
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(_TICK)
            if not ready:
                yield False, b""
            for key, _events in ready:
                data = os.read(key.fd, 65_536)
                if not data:
                    selector.unregister(key.fileobj)
                yield key.fileobj is process.stderr, data


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _last_line(errors: str) -> str:
    """What git says in the end, without signs that a page would hide."""
    lines = [" ".join(re.sub(r"[^ -~\u00a0-\ufffd]", " ", line).split()) for line in errors.splitlines()]
    said = [line for line in lines if line and not line.startswith(("hint:", "warning:"))]
    return next(reversed(said), "no message")[:300]
