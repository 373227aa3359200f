"""The documentation as a site in both languages: `python -m tests.docs.site` writes it to build/site, `--to` elsewhere.

Zensical builds one project a language of copies of docs/, so that each has its navigation and its search. The copies differ
from the files, which stay as a code host shows them: links lead within the site, the line with the other language is the
switch in the head, a page's first sentence is its description.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from pathlib import Path

from tests.docs.pages import CODE, DOCS, LANGUAGES, ROOT, Page

SITE = DOCS / "site"
NAVIGATION = SITE / "navigation.toml"
ICON = ROOT / "kb" / "static" / "kb" / "favicon.svg"
SHIM = "iframe-worker.js"  # what Zensical would load from another host
DESTINATION = ROOT / "build" / "site"
FOLDERS = {"en": "en", "zh-CN": "zh"}
IN_ENGLISH = "en"
NAMES = {"README": "index", "CONTRIBUTING": "contributing", "CHANGELOG": "changelog", "SECURITY": "reporting"}
"""Of the files beside docs/, within the site; all but the first are in English alone."""
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
GRAPH = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)
TEXTS = {
    "en": {
        "site": "Zhiku",
        "home": "Home",
        "licence": "Licence",
        "light": "Switch to light",
        "dark": "Switch to dark",
        "folder": ("feature", "imports"),
        "files": {"CONTRIBUTING": "Contributing", "CHANGELOG": "Changelog", "SECURITY": "Report a vulnerability"},
    },
    "zh-CN": {
        "site": "知库",
        "home": "首页",
        "licence": "许可证",
        "light": "切换到浅色",
        "dark": "切换到深色",
        "folder": ("功能", "导入"),
        "files": {"CONTRIBUTING": "参与开发（英文）", "CHANGELOG": "更新日志（英文）", "SECURITY": "报告安全漏洞"},
    },
}
SEARCH_TEXTS = {
    '"No results"': '"没有找到"',
    '"Search results"': '"搜索结果"',
    '"Close search"': '"关闭搜索"',
    '"Filters"': '"筛选"',
    'placeholder:"Search"': 'placeholder:"搜索"',
    '"aria-label":"Search"': '"aria-label":"搜索"',
    '${i===1?"result":"results"}': "条结果",
    '"Search is unavailable. Reload the page to try again."': '"搜索暂不可用，请重新加载页面。"',
    '"Loading search\\u2026"': '"正在加载搜索…"',
}
"""What Zensical's search says in English alone; a version of it that says something else fails the build."""
MARKDOWN = {
    "pymdownx.highlight": {"use_pygments": True},
    "pymdownx.superfences": {},
    "tables": {},
    "toc": {"permalink": True, "slugify": {"object": "pymdownx.slugs.slugify", "kwds": {"case": "lower"}}},
}


class NotBuilt(Exception):
    """Says what is wrong and where."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--to", type=Path, default=DESTINATION, help="the folder, which is emptied first")
    started, to = time.perf_counter(), parser.parse_args().to.resolve()
    try:
        build(to)
    except NotBuilt as error:
        print(error, file=sys.stderr)
        return 1
    files = [path for path in to.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{len(files)} files, {size:.1f} MB, in {time.perf_counter() - started:.1f} s. Open {to / 'index.html'}")
    return 0


def build(to: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="zhiku-docs-") as folder:
        for language, name in FOLDERS.items():
            project = Path(folder) / name
            _write_project(project, language)
            _run_zensical(project)
            _finish(project / "site", language)
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        for name in FOLDERS.values():
            shutil.copytree(Path(folder) / name / "site", to / name)
        shutil.copy(SITE / "index.html", to)


def _write_project(project: Path, language: str) -> None:
    sections = tomllib.loads(NAVIGATION.read_text(encoding="utf-8"))["sections"]
    _refuse_what_is_not_navigated({name for section in sections for name in section["pages"]})
    pages = project / "docs"
    pages.mkdir(parents=True)
    (project / "mkdocs.yml").write_text(json.dumps(_settings(language, sections), ensure_ascii=False), encoding="utf-8")
    shutil.copytree(SITE / "theme", project / "theme")
    for file in (SITE / "site.css", SITE / "site.js", SITE / SHIM, ICON):
        shutil.copy(file, pages)
    written = [Page(ROOT / f"README{LANGUAGES[language][0]}.md")]
    written += [Page(DOCS / f"{name}{LANGUAGES[language][0]}.md") for section in sections for name in section["pages"]]
    if language == IN_ENGLISH:
        written += [Page(ROOT / f"{name}.md") for section in sections for name in section.get("files", ())]
    for page in written:
        (pages / f"{_name(page.path)}.md").write_text(_staged(page, language, pages), encoding="utf-8")


def _refuse_what_is_not_navigated(navigated: set[str]) -> None:
    there = {Page(path).name for path in DOCS.glob("*.md")}
    if there != navigated:
        raise NotBuilt(f"{NAVIGATION.relative_to(ROOT)} and docs/ differ in {', '.join(sorted(there ^ navigated))}.")


def _settings(language: str, sections: list[dict]) -> dict:
    """Of Zensical, which reads them from a file of MkDocs' form."""
    texts = TEXTS[language]

    def links(section: dict) -> list[str | dict[str, str]]:
        own = [f"{name}.md" for name in section["pages"]]
        if language == IN_ENGLISH:
            return own + [{texts["files"][name]: f"{NAMES[name]}.md"} for name in section.get("files", ())]
        english = f"../{FOLDERS[IN_ENGLISH]}"
        return own + [{texts["files"][name]: f"{english}/{NAMES[name]}.html"} for name in section.get("files", ())]

    def palette(scheme: str, to: str, icon: str) -> dict:
        media = f"(prefers-color-scheme: {'dark' if scheme == 'slate' else 'light'})"
        return {"media": media, "scheme": scheme, "toggle": {"icon": icon, "name": texts[to]}}

    return {
        "site_name": texts["site"],
        "docs_dir": "docs",
        "site_dir": "site",
        "use_directory_urls": False,
        "copyright": f'{texts["site"]} · {texts["licence"]} <a href="LICENSE.txt">Apache-2.0</a>',
        "nav": [{texts["home"]: "index.md"}, *({section[language]: links(section)} for section in sections)],
        "theme": {
            "name": "material",
            "language": language.partition("-")[0],
            "custom_dir": "theme",
            "font": False,
            "favicon": ICON.name,
            "logo": ICON.name,
            "features": [
                "content.code.copy", "navigation.footer", "navigation.sections", "navigation.top", "search.highlight", "toc.follow",
            ],
            "palette": [
                palette("default", "dark", "lucide/sun"),
                palette("slate", "light", "lucide/moon"),
            ],
        },
        "extra_css": ["site.css"],
        "extra_javascript": ["site.js"],
        "plugins": ["search", "offline"],
        "markdown_extensions": [{name: options} if options else name for name, options in MARKDOWN.items()],
        "extra": {"scope": "..", "generator": False, "alternate": True, "others": _others(language), "polyfills": [SHIM]},
    }  # fmt: skip


def _others(language: str) -> list[dict[str, str]]:
    """The other languages: what they are called, and where they are from any page."""
    others = {other: folder for other, folder in FOLDERS.items() if other != language}
    return [{"lang": other, "name": LANGUAGES[other][1], "folder": f"../{folder}/"} for other, folder in others.items()]


def _staged(page: Page, language: str, pages: Path) -> str:
    """A page's text as Zensical is given it; the files that it links to are copied beside it."""
    lines = page.text.splitlines(keepends=True)
    if page.other:
        del lines[2]
    text = GRAPH.sub(lambda graph: _table(graph[0], language), "".join(lines))
    pieces, end = [], 0
    for code in CODE.finditer(text):
        before = LINK.sub(lambda link: _link(page, link[0], pages), text[end : code.start()])
        is_in_table = text[text.rfind("\n", 0, code.start()) + 1] == "|"
        pieces += [before, code[0].replace("\\|", "|") if is_in_table else code[0]]  # as code hosts read it
        end = code.end()
    pieces.append(LINK.sub(lambda link: _link(page, link[0], pages), text[end:]))
    meta = {"description": page.description, "home": _name(page.path) == "index", "alone": page.other is None}
    front = "".join(f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in meta.items())
    return f"---\n{front}---\n{''.join(pieces)}"


def _link(page: Page, target: str, pages: Path) -> str:
    """Where a link leads within the site."""
    path, mark, anchor = target.partition("#")
    if not path or ":" in path:
        return target
    linked = Page((page.path.parent / path).resolve())
    if linked.path.suffix == ".md":
        if linked.language == page.language:
            return f"{_name(linked.path)}.md{mark}{anchor}"
        return f"../{FOLDERS[linked.language]}/{_name(linked.path)}.html{mark}{anchor}"
    within = linked.path.relative_to(DOCS) if linked.path.is_relative_to(DOCS) else Path(linked.path.name)
    copy = pages / (within if within.suffix else within.with_suffix(".txt"))
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(linked.path, copy)
    return copy.relative_to(pages).as_posix()


def _name(path: Path) -> str:
    name = Page(path).name
    return NAMES[name] if path.parent == ROOT else name


def _table(graph: str, language: str) -> str:
    """A graph of Mermaid as a table, since Mermaid would be loaded from another host."""
    below = defaultdict(list)
    for above, imported in re.findall(r"(\w+) --> (\w+)", graph):
        below[above].append(f"`{imported}`")
    rows = [TEXTS[language]["folder"], ("---", "---"), *((f"`{each}`", ", ".join(below[each])) for each in below)]
    return "\n".join(f"| {left} | {right} |" for left, right in rows)


def _run_zensical(project: Path) -> None:
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(project / "mkdocs.yml")]
    done = subprocess.run(
        command, cwd=project, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode or "Warning" in done.stdout + done.stderr:
        raise NotBuilt(
            f"{done.stdout}{done.stderr}\nZensical did not build the pages in {project.name}; the reasons are above."
        )


def _finish(site: Path, language: str) -> None:
    """Takes off what only a site at a known address has, and gives the search its language."""
    for name in ("404.html", "sitemap.xml"):
        (site / name).unlink(missing_ok=True)
    (script,) = site.glob("assets/javascripts/bundle.*.js")
    text = script.read_text(encoding="utf-8")
    for english, chinese in SEARCH_TEXTS.items():
        if english not in text:
            raise NotBuilt(
                f"Zensical's search no longer says {english}: bring SEARCH_TEXTS of {Path(__file__).name} up to date."
            )
        if language == "zh-CN":
            text = text.replace(english, chinese)
    script.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
