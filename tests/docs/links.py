"""Dead links of the documentation: `python -m tests.docs.links`. Links to the outside are checked for their form alone."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.docs.pages import DOCS, LANGUAGES, ROOT, Page, pages

OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def main() -> int:
    started, found = time.perf_counter(), pages()
    faults = [fault for page in found for fault in faults_of(page)]
    for fault in faults:
        print(fault, file=sys.stderr)
    links = sum(len(page.links) for page in found)
    print(f"{links} links on {len(found)} pages, {len(faults)} dead ({time.perf_counter() - started:.1f} s)")
    return 1 if faults else 0


def faults_of(page: Page) -> Iterator[str]:
    """Where a page's links lead nowhere, or to another language than its own; each with its place."""
    place = page.path.relative_to(ROOT) if page.path.is_relative_to(ROOT) else page.path
    for line, target in page.links:
        if fault := _fault(page, target):
            yield f"{place}:{line}: {target}: {fault}"
    for line in page.unnamed_pictures:
        yield f"{place}:{line}: a picture without a text: ![what it shows](…)"
    if page.path.parent.name == DOCS.name or page.other:
        yield from (f"{place}:3: {fault}" for fault in _without_other(page))


def _fault(page: Page, target: str) -> str:
    if OUTSIDE.match(target):
        return "" if _is_address(target) else "not an address that starts with https://, http:// or mailto:"
    path, _, anchor = target.partition("#")
    linked = (page.path.parent / path).resolve() if path else page.path
    if not linked.is_file() or target.startswith("/"):
        return "there is no such file"
    if linked.suffix != ".md":
        return ""
    to = Page(linked) if linked != page.path else page
    if anchor and anchor not in _anchors(to):
        return "there is no such heading"
    if to.other and to.language != page.language and to.other != page.path and page.other:
        return f"in another language; link to {to.other.name}"
    return ""


def _without_other(page: Page) -> list[str]:
    language = "en" if page.language == "zh-CN" else "zh-CN"
    other, link = page.in_language(language).name, LANGUAGES[language][1]
    wanted = f"[{link}]({other})"
    if page.other is None:
        return [f"there is no {other}, and every page is there in both languages"]
    lines = page.text.splitlines()
    return [] if len(lines) > 2 and lines[2].startswith(wanted) else [f"line 3 begins with {wanted}"]


_ANCHORS: dict[Path, set[str]] = {}


def _anchors(page: Page) -> set[str]:
    """Of each page once, however many link to it."""
    if page.path not in _ANCHORS:
        _ANCHORS[page.path] = page.anchors
    return _ANCHORS[page.path]


def _is_address(target: str) -> bool:
    parts = urlsplit(target)
    if parts.scheme == "mailto":
        return re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s]+", parts.path) is not None
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not re.search(r"\s", target)


if __name__ == "__main__":
    sys.exit(main())
