#!/usr/bin/env python3
r"""Keeps a source of a Zhiku knowledge base in step with a folder.

    pip install httpx
    export ZHIKU_API_KEY=...   # a key with the scope write
    python zhiku_sync.py FOLDER --url https://kb.example.org --kb 2 --delete

Only what has changed travels; renamed files keep the edits and judgments of their documents. What was cut off goes on where
it was when it is run again. It needs Python 3.9 or later and httpx, and nothing else of Zhiku.

Left out are links, .git, names that begin with a dot (unless --hidden), what --exclude says, and what files named
.zhikuignore say, in the folder or in one within it, by the rules of gitignore: one pattern a line; "#" comments; "!" takes back,
but not what is in a folder that is left out; a slash at the end means folders only; a slash before it, the path from the file's
folder on; "*", "?" and "[a-z]" stand for parts of a name, "**" for any folders; a backslash takes the next character as it is.

Exit status: 0 in step, or a dry run; 1 some files could not be taken; 2 wrong usage; 3 so much would be deleted that you
are to say --yes, and nothing was; 4 the server refuses the key, or has no such knowledge base; 5 the server is out of reach.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import sys
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import httpx

IGNORE_FILE = ".zhikuignore"
MOST_FILES = 10_000
ATTEMPTS = 8
LONGEST_WAIT_S = 60.0
IN_STEP, INCOMPLETE, USAGE, ASKS, REFUSED, UNREACHABLE = range(6)


class Ended(Exception):
    """Ends the program with a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        self.status = status
        super().__init__(sentence)


# -- What the folder has -------------------------------------------------------------------------------------------------
@dataclass
class Rule:
    """A line of an ignore file."""

    matches: re.Pattern[str]
    takes_back: bool
    folders_only: bool


def rule_of(line: str) -> Rule | None:
    """The rule of a line; None for comments and blank lines."""
    line = line.rstrip("\r\n")
    line = re.sub(r"(?<!\\)((?:\\\\)*) +$", r"\1", line)
    takes_back = line.startswith("!")
    pattern = line[1:] if takes_back else line
    if not pattern or line.startswith("#"):
        return None
    folders_only = pattern.endswith("/")
    pattern = pattern.rstrip("/") if folders_only else pattern
    anchored = "/" in pattern
    pattern = pattern.lstrip("/") if pattern.startswith("/") else pattern
    if not pattern:
        return None
    try:
        compiled = re.compile(("" if anchored else "(?:.*/)?") + regex_of(pattern) + r"\Z", re.DOTALL)
    except re.error:
        return None  # such as [z-a], which matches nothing
    return Rule(compiled, takes_back, folders_only)


def regex_of(pattern: str) -> str:
    """A pattern of gitignore as a regular expression."""
    found, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        starts_part = at == 0 or pattern[at - 1] == "/"
        if starts_part and pattern.startswith("**/", at):
            found, at = found + "(?:.*/)?", at + 3
        elif starts_part and pattern[at:] == "**":
            found, at = found + ".+", len(pattern)
        elif char == "*":
            found += "[^/]*"
            while at < len(pattern) and pattern[at] == "*":
                at += 1
        elif char == "?":
            found, at = found + "[^/]", at + 1
        elif char == "[" and (end := end_of_class(pattern, at)):
            inside = pattern[at + 1 : end]
            negated = inside[:1] in ("!", "^")
            inside = re.sub(r"\[:(\w+):\]", lambda each: POSIX.get(each[1], ""), inside[1:] if negated else inside)
            inside = re.sub(r"([\[\]&~|])", r"\\\1", re.sub(r"\\([\[\]&~|])", r"\1", inside))
            found, at = found + f"(?!/)[{'^' if negated else ''}{inside}]", end + 1
        elif char == "\\" and at + 1 < len(pattern):
            found, at = found + re.escape(pattern[at + 1]), at + 2
        else:
            found, at = found + re.escape(char), at + 1
    return found


POSIX = {"alnum": "a-zA-Z0-9", "alpha": "a-zA-Z", "digit": "0-9", "lower": "a-z", "upper": "A-Z", "space": r"\s"}


def end_of_class(pattern: str, start: int) -> int:
    """Where the bracket of a class closes; 0: nowhere."""
    at = start + 1
    if pattern[at : at + 1] in ("!", "^"):
        at += 1
    first = at
    while at < len(pattern):
        if pattern[at] == "]" and at > first:
            return at
        if pattern.startswith("[:", at) and (closing := pattern.find(":]", at + 2)) > 0:
            at = closing + 2
        else:
            at += 2 if pattern[at] == "\\" else 1
    return 0


@dataclass
class Ignore:
    """The rules that are in force in a folder: those of the ignore files of it and above it, the last that matches first."""

    rules: list[tuple[str, Rule]] = field(default_factory=list)

    def within(self, folder: str, lines: list[str]) -> Ignore:
        prefix = f"{folder}/" if folder else ""
        return Ignore(self.rules + [(prefix, rule) for rule in map(rule_of, lines) if rule is not None])

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        for prefix, rule in reversed(self.rules):
            if (
                path.startswith(prefix)
                and (is_folder or not rule.folders_only)
                and rule.matches.match(path[len(prefix) :])
            ):
                return not rule.takes_back
        return False


@dataclass
class Local:
    """A file of the folder: its path within it, where it is, and what it held when it was looked at."""

    path: str
    place: str
    size: int = 0
    sha256: str = ""


@dataclass
class Folder:
    root: str
    excludes: list[str]
    hidden: bool = False
    unreadable: list[str] = field(default_factory=list)

    def files(self) -> Iterator[Local]:
        """Its files in their order; what cannot be read is in `unreadable` in the end."""
        yield from self._within("", Ignore().within("", self.excludes))

    def _within(self, folder: str, ignore: Ignore) -> Iterator[Local]:
        place = Path(self.root, folder)
        try:
            ignore_file = place / IGNORE_FILE
            if ignore_file.is_file():
                ignore = ignore.within(folder, ignore_file.read_text("utf-8", "replace").splitlines())
            with os.scandir(place) as entries:
                found = sorted(entries, key=lambda each: each.name)
        except OSError as error:
            self.unreadable.append(f"{folder or '.'}: {error.strerror}")
            return
        for entry in found:
            path = f"{folder}/{entry.name}" if folder else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git" or (entry.name.startswith(".") and not self.hidden):
                continue
            if entry.name == IGNORE_FILE or ignore.leaves_out(path, is_folder=is_folder):
                continue
            if is_folder:
                yield from self._within(path, ignore)
            elif entry.is_file(follow_symlinks=False):
                if not is_text(path):
                    say(f"left out, since its name is no UTF-8: {printable(path)}", error=True)
                    continue
                # Systems write "é" in two ways, and the path names the file wherever it comes from.
                yield Local(unicodedata.normalize("NFC", path.replace(os.sep, "/")), entry.path)

    def hashed(self, progress: Progress) -> list[Local]:
        """Its files with their SHA-256."""
        hashed = []
        for local in self.files():
            progress.show(f"reading {local.path}")
            try:
                digest, size = hashlib.sha256(), 0
                with Path(local.place).open("rb") as file:
                    while piece := file.read(1024 * 1024):
                        digest.update(piece)
                        size += len(piece)
            except FileNotFoundError:
                continue  # deleted since
            except OSError as error:
                self.unreadable.append(f"{local.path}: {error.strerror}")
                continue
            hashed.append(Local(local.path, local.place, size, digest.hexdigest()))
        progress.clear()
        return hashed


def is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


# -- What is shown -------------------------------------------------------------------------------------------------------
class Progress:
    """One line that changes on a terminal; nothing where the output is a file or a pipe."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()

    def show(self, line: str) -> None:
        if self._is_live:
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            sys.stderr.write(f"\r\x1b[K{printable(line)[:width]}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._is_live:
            sys.stderr.write("\r\x1b[K")


def say(line: str, *, error: bool = False) -> None:
    print(printable(line), file=sys.stderr if error else sys.stdout, flush=True)


# -- The server ----------------------------------------------------------------------------------------------------------
class Server:
    """The API of one knowledge base; asks again where it is busy or the connection breaks."""

    def __init__(self, url: str, knowledge_base: int, key: str, source: str) -> None:
        self._api = f"{url.rstrip('/')}/api/v1/knowledge-bases/{knowledge_base}/sync/"
        self._source = source
        # A manifest with many moves takes a while.
        timeout = httpx.Timeout(30.0, read=300.0, write=300.0)
        headers = {"Authorization": f"Bearer {key}", "Accept-Language": os.environ.get("LANG", "en")[:2]}
        self._client = httpx.Client(headers=headers, timeout=timeout, follow_redirects=False)

    def close(self) -> None:
        self._client.close()

    def sync(self, files: list[Local], *, dry_run: bool, delete: bool, accept: int = 0) -> dict[str, Any]:
        """Sends the manifest, until all is moved and deleted that was to be; returns the answer."""
        listed = [{"path": each.path, "sha256": each.sha256, "size": each.size} for each in files]
        manifest = {"source": self._source, "files": listed, "dry_run": dry_run, "delete": delete, "accept": accept}
        body = json.dumps(manifest, ensure_ascii=False).encode()
        moved, deleted = [], 0
        while True:
            answer = self._asked("POST", self._api, content=body, headers={"Content-Type": "application/json"})
            if answer.status_code != 200:
                raise Ended(REFUSED if answer.status_code in (401, 403, 404) else INCOMPLETE, sentence_of(answer))
            plan: dict[str, Any] = answer.json()
            moved += plan["moved"]
            deleted += plan["deleted"]
            if not plan["more"]:
                return {**plan, "moved": moved, "deleted": deleted}

    def send(self, local: Local) -> str:
        """Sends a file as it is now; returns why it was not taken, or nothing."""
        data = Path(local.place).read_bytes()
        local.sha256, local.size = hashlib.sha256(data).hexdigest(), len(data)
        answer = self._asked(
            "PUT",
            f"{self._api}file/",
            data={"source": self._source, "path": local.path, "sha256": local.sha256},
            files={"file": (local.path.rpartition("/")[2], data)},
        )
        if answer.status_code in (401, 403, 404):
            raise Ended(REFUSED, sentence_of(answer))
        return "" if answer.status_code == 200 else sentence_of(answer)

    def _asked(self, method: str, url: str, **request: Any) -> httpx.Response:
        for attempt in range(1, ATTEMPTS + 1):
            wait = min(LONGEST_WAIT_S, 0.5 * 2 ** (attempt - 1)) * random.uniform(0.75, 1.25)  # noqa: S311
            try:
                answer = self._client.request(method, url, **request)
            except httpx.TransportError as error:
                fault = f"{type(error).__name__}: {error}"
            else:
                busy = answer.status_code in (429, 502, 503, 504) or "Retry-After" in answer.headers
                if not busy:
                    return answer
                fault = sentence_of(answer)
                stated = answer.headers.get("Retry-After", "")
                wait = float(stated) if stated.isdecimal() else wait
            if attempt == ATTEMPTS:
                break
            say(f"again in {wait:.0f} s: {fault}", error=True)
            time.sleep(wait)
        raise Ended(UNREACHABLE, f"The server is out of reach, and what is missing is sent at the next run. {fault}")


def sentence_of(answer: httpx.Response) -> str:
    """What the server says is wrong, and what to do."""
    try:
        problem = answer.json()
        return f"{problem['detail']} {problem['remedy']}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code} from {answer.url}: is this the address of Zhiku?"


# -- What is done --------------------------------------------------------------------------------------------------------
def main(arguments: list[str]) -> int:
    options = parsed(arguments)
    key = os.environ.get("ZHIKU_API_KEY", "").strip()
    if not key:
        raise Ended(USAGE, "Set ZHIKU_API_KEY to a key with the scope write.")
    progress = Progress()
    folder = Folder(options.folder, options.exclude, hidden=options.hidden)
    files = folder.hashed(progress)
    for line in folder.unreadable:
        say(f"cannot be read: {line}", error=True)
    if len(files) > MOST_FILES:
        raise Ended(
            USAGE, f"{len(files)} files are more than {MOST_FILES}: sync folders within it, each as a --source."
        )
    delete = options.delete and not folder.unreadable
    if options.delete and not delete:
        say("Nothing is deleted, since what cannot be read is not known to have gone.", error=True)
    server = Server(options.url, options.kb, key, options.source)
    try:
        return synced(server, files, options, delete=delete, complete=not folder.unreadable, progress=progress)
    finally:
        progress.clear()
        server.close()


def synced(
    server: Server, files: list[Local], options: argparse.Namespace, *, delete: bool, complete: bool, progress: Progress
) -> int:
    plan = server.sync(files, dry_run=options.dry_run, delete=delete)
    if options.dry_run:
        shown(plan, delete=delete)
        return ASKS if plan["asks"] and not options.yes else IN_STEP
    asks = plan["asks"]
    if asks and (options.yes or consented(asks)):
        answer = server.sync(files, dry_run=False, delete=True, accept=asks["count"])
        plan = {**answer, "moved": plan["moved"] + answer["moved"]}
        asks = plan["asks"]
    for each in plan["moved"]:
        say(f"moved {each['from_path']} -> {each['to_path']}")
    failed = refused(plan) + sent(server, files, plan["send"], progress)
    if plan["send"]:
        # Says what has not arrived after all, and ends the sync in the log of the server.
        left = server.sync(files, dry_run=False, delete=False)["send"]
        failed = max(failed, len(left))
    counts = {"sent": len(plan["send"]), "moved": len(plan["moved"]), "deleted": plan["deleted"], "failed": failed}
    say(", ".join([*(f"{count} {name}" for name, count in counts.items()), f"{plan['unchanged']} unchanged"]))
    if asks:
        raise Ended(
            ASKS,
            f"{asks['count']} of {asks['known']} documents would be deleted, which is {asks['max_share']} % or more: none was. "
            "Look whether the folder is as it should be, then run this with --yes.",
        )
    return IN_STEP if complete and not failed else INCOMPLETE


def sent(server: Server, files: list[Local], paths: list[str], progress: Progress) -> int:
    """Sends files; returns how many could not be taken."""
    by_path, failed = {each.path: each for each in files}, 0
    for number, path in enumerate(paths, 1):
        progress.show(f"[{number}/{len(paths)}] {path}")
        try:
            fault = server.send(by_path[path])
        except OSError as error:
            fault = str(error.strerror)
        progress.clear()
        failed += bool(fault)
        say(f"failed {path}: {fault}" if fault else f"sent {path}", error=bool(fault))
    return failed


def refused(plan: dict[str, Any]) -> int:
    """Says what need not be sent, and why; returns how many of it are of a kind that is read otherwise."""
    others = [each for each in plan["refused"] if each["code"] != "unsupported_type"]
    for each in others:
        say(f"refused {each['path']}: {each['detail']}", error=True)
    if kinds := len(plan["refused"]) - len(others):
        say(f"{kinds} files are of kinds that are not read")
    return len(others)


def consented(asks: dict[str, Any]) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    question = f"Delete {asks['count']} of {asks['known']} documents, whose files the folder has no more? [y/N] "
    return input(question).strip().lower() in ("y", "yes")


def shown(plan: dict[str, Any], *, delete: bool) -> None:
    for path in plan["send"]:
        say(f"would send {path}")
    for each in plan["moved"]:
        say(f"would move {each['from_path']} -> {each['to_path']}")
    for path in plan["delete"]:
        say(f"would delete {path}" if delete else f"has gone, and stays without --delete: {path}")
    refused(plan)
    say(f"{plan['unchanged']} unchanged")
    if plan["asks"]:
        say("So much would be deleted only with --yes.", error=True)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Ended(USAGE, f"{message}\n{self.format_usage().strip()}")


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        description="Keeps a source of a Zhiku knowledge base in step with a folder.",
        epilog="The key is read from ZHIKU_API_KEY.",
    )
    parser.add_argument("folder", help="whose files become documents")
    parser.add_argument("--url", required=True, help="of the server, such as https://kb.example.org")
    parser.add_argument("--kb", required=True, type=int, help="the id of the knowledge base")
    parser.add_argument("--source", help="the name of the source there; the folder's name, if left out")
    parser.add_argument("--delete", action="store_true", help="delete documents whose files the folder has no more")
    parser.add_argument("--yes", action="store_true", help="also where that is a large share of them")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="leave out, as a line of .zhikuignore"
    )
    parser.add_argument("--hidden", action="store_true", help="take names that begin with a dot too")
    options = parser.parse_args(arguments)
    if not Path(options.folder).is_dir():
        parser.error(f"{options.folder} is no folder")
    if not options.url.startswith(("https://", "http://")):
        parser.error("--url begins with https:// or http://")
    options.source = (options.source or Path(options.folder).resolve().name or "folder").strip()
    return options


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Ended as ended:
        say(str(ended), error=True)
        sys.exit(ended.status)
    except KeyboardInterrupt:
        say("Interrupted: run it again to go on.", error=True)
        sys.exit(130)
