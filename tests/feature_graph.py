"""The graph of the features, read from the imports: `python -m tests.feature_graph` writes it into docs/architecture*.md."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / name for name in ("architecture.md", "architecture.zh-CN.md")]
BLOCK = re.compile(r"(```mermaid\n).*?(\n```)", re.DOTALL)


def edges():
    """Pairs of features of which the first imports the second, less those that follow from others."""
    features = {folder.name for folder in (ROOT / "kb").iterdir() if (folder / "__init__.py").exists()}
    features -= {"management", "migrations", "formats"}
    found = {feature: set() for feature in features}
    for feature in features:
        for path in (ROOT / "kb" / feature).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                parts = node.module.split(".") if isinstance(node, ast.ImportFrom) and node.module else []
                if parts[:1] == ["kb"] and len(parts) > 1 and parts[1] in features - {feature}:
                    found[feature].add(parts[1])
    reached = {}

    def below(feature):
        if feature not in reached:
            reached[feature] = found[feature].union(*map(below, found[feature]))
        return reached[feature]

    return sorted(
        (feature, other)
        for feature, others in found.items()
        for other in others
        if not any(other in below(each) for each in others - {other})
    )


def graph():
    return "\n".join(["graph TD", *(f"    {feature} --> {other}" for feature, other in edges())])


def with_graph(text):
    return BLOCK.sub(lambda block: block[1] + graph() + block[2], text, count=1)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_graph(page.read_text(encoding="utf-8")), encoding="utf-8")
