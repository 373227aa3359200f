"""What the pages of the documentation hold: title, description, headings, links and pictures."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LANGUAGES = {"en": ("", "English"), "zh-CN": (".zh-CN", "中文")}
"""By language: what a page's name ends in, and what the language calls itself."""
CODE = re.compile(r"^```.*?^```$|(`+)[^\n]*?\1", re.MULTILINE | re.DOTALL)
_IN_HTML = re.compile(r"""\b(?:href|src)=["']([^"']*)""")
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|[。！？]|$)")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Page:
    """A Markdown file, by its path."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def language(self) -> str:
        return "zh-CN" if self.path.name.endswith(".zh-CN.md") else "en"

    @property
    def name(self) -> str:
        """Without the language: `start` of both docs/start.md and docs/start.zh-CN.md."""
        return self.path.name.removesuffix(".md").removesuffix(".zh-CN")

    def in_language(self, language: str) -> Path:
        """Where this page is, or would be, in a language."""
        return self.path.with_name(f"{self.name}{LANGUAGES[language][0]}.md")

    @cached_property
    def other(self) -> Path | None:
        """The same page in the other language, where there is one."""
        other = self.in_language("en" if self.language == "zh-CN" else "zh-CN")
        return other if other.exists() else None

    @cached_property
    def _tokens(self) -> list[Token]:
        return _MARKDOWN.parse(self.text)

    @cached_property
    def title(self) -> str:
        return next(iter(self.headings), "")

    @cached_property
    def description(self) -> str:
        """The first sentence below the title; empty where a list, a table or a heading comes first."""
        kinds = [token.type for token in self._tokens]
        lead = self._tokens[
            3 if self.other is None else 6 :
        ]  # after the heading, and the paragraph with the other language
        if len(kinds) < 3 or kinds[0] != "heading_open" or not lead or lead[0].type != "paragraph_open":
            return ""
        found = _SENTENCE.match(" ".join(_plain(lead[1]).split()))
        return found[0] if found else ""

    @cached_property
    def headings(self) -> list[str]:
        after = zip(self._tokens, self._tokens[1:], strict=False)
        return [_plain(inline) for opening, inline in after if opening.type == "heading_open"]

    @cached_property
    def anchors(self) -> set[str]:
        """The headings as addresses have them, by the rules of GitHub."""
        slugs = [re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in self.headings]
        seen: Counter[str] = Counter()
        anchors = set()
        for slug in slugs:
            anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        return anchors

    @cached_property
    def links(self) -> list[tuple[int, str]]:
        """Line and target of every link and picture."""
        return [
            (_line(token), target)
            for token in self._tokens
            for child in (token, *(token.children or ()))
            for target in _targets(child)
        ]

    @cached_property
    def unnamed_pictures(self) -> list[int]:
        """The lines of pictures that say nothing to who does not see them."""
        found = [(token, child) for token in self._tokens for child in token.children or () if child.type == "image"]
        return [_line(token) for token, child in found if not child.content.strip()]


def pages() -> list[Page]:
    """Those of docs/, and the files beside it."""
    return [Page(path) for path in sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])]


def _plain(inline: Token) -> str:
    return "".join(" " if each.type == "softbreak" else each.content for each in inline.children or ())


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 0


def _targets(token: Token) -> list[str]:
    if token.type in {"html_block", "html_inline"}:
        return _IN_HTML.findall(token.content)
    return [unquote(str(token.attrs[name])) for name in ("href", "src") if name in token.attrs]
