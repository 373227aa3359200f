"""The tables of relevance in docs/benchmarks*.md, made from quality.json."""

import re
from collections import defaultdict
from pathlib import Path

from tests.benchmarks.sets import SETS
from tests.reference import table

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"en": DOCS / "benchmarks.md", "zh-hans": DOCS / "benchmarks.zh-CN.md"}
BLOCK = re.compile(r"(<!-- made by python -m tests\.benchmarks\.quality -->\n).*?(<!-- end -->)", re.DOTALL)
DEPENDS_ON = {
    "bm25": (),
    "vector": ("embedding",),
    "fused": ("embedding", "profile"),
    "reranked": ("embedding", "profile", "reranker"),
}
METRICS = ("recall@5", "recall@20", "hit_rate@1", "mrr@10", "ndcg@10")
WORDS = {
    "en": {
        "counts": " {passages:,} passages, {queries:,} queries with an answer, {unanswerable:,} without.",
        "stages": ("stage", "with", *METRICS),
        "gate": "The relevance threshold",
        "gate_columns": ("set", "with", "scale", "threshold", "AUROC", "answerable kept", "unanswerable passed"),
        "newcomer": "A newcomer's first questions",
        "newcomer_columns": (
            "with",
            "right chunk first",
            "among the results",
            "and its `relevance` high",
            "no answer: results",
            "no answer: `relevance` high",
        ),
        "runs": "Runs",
        "runs_columns": ("date", "commit", "sets", "versions"),
        "published": "published",
        "of": "{count} of {all}",
    },
    "zh-hans": {
        "counts": "{passages:,} 个段落，有答案的问题 {queries:,} 个，没有答案的 {unanswerable:,} 个。",
        "stages": ("阶段", "使用", *METRICS),
        "gate": "相关度阈值",
        "gate_columns": ("评测集", "使用", "尺度", "阈值", "AUROC", "有答案而保留", "无答案而通过"),
        "newcomer": "新用户的头一批问题",
        "newcomer_columns": (
            "使用",
            "正确的文本块排第一",
            "在结果中",
            "且 `relevance` 为 high",
            "无答案：有结果",
            "无答案：`relevance` 为 high",
        ),
        "runs": "运行记录",
        "runs_columns": ("日期", "提交", "评测集", "版本"),
        "published": "已发表",
        "of": "{count} / {all}",
    },
}


def write(results):
    for language, page in PAGES.items():
        page.write_text(with_tables(page.read_text(encoding="utf-8"), results, language), encoding="utf-8")


def with_tables(text, results, language):
    """A page with the tables of these results, each a `quality.Measured`."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{tables(results, language)}\n\n{block[2]}", text)


def tables(results, language):
    words = WORDS[language]
    parts = []
    for public in SETS:
        if measured := [each for each in results if each.set == public.name]:
            counts = words["counts"].format(**vars(measured[0]))
            parts += [f"### {public.name}", f"{public.about[language]}{counts}", stages(public, measured, words)]
    if gated := [each for each in results if each.gate]:
        parts += [f"### {words['gate']}", table(words["gate_columns"], map(gate_row, gated))]
    if asked := [each for each in results if each.answers]:
        rows = [newcomer_row(each, words["of"]) for each in asked]
        parts += [f"### {words['newcomer']}", table(words["newcomer_columns"], rows)]
    return "\n\n".join([*parts, f"### {words['runs']}", table(words["runs_columns"], run_rows(results))])


def stages(public, measured, words):
    """A row for all that a stage depends on, then what others have published."""
    rows = {}
    for stage in DEPENDS_ON:
        for each in measured:
            rows.setdefault((stage, used(each, stage)), [f"{each.stages[stage][name]:.3f}" for name in METRICS])
    published = [
        (words["published"], f"[{each.name}]({each.source})", *[""] * (len(METRICS) - 1), f"{each.ndcg_at_10:.3f}")
        for each in public.published
    ]
    return table(words["stages"], [*((*key, *figures) for key, figures in rows.items()), *published])


def used(measured, stage="reranked"):
    return ", ".join(getattr(measured, name) for name in DEPENDS_ON[stage])


def gate_row(measured):
    gate = measured.gate
    shares = (f"{gate[name]:.1%}" for name in ("answerable_kept", "unanswerable_passed"))
    return measured.set, used(measured), gate["scale"], f"{gate['cut']:g}", f"{gate['auroc']:.3f}", *shares


def newcomer_row(measured, of):
    of_all = [measured.queries] * 3 + [measured.unanswerable] * 2
    pairs = zip(measured.answers.values(), of_all, strict=True)
    return used(measured), *(of.format(count=count, all=total) for count, total in pairs)


def run_rows(results):
    """One for each run; most are of many sets."""
    sets = defaultdict(dict)
    for each in results:
        run = each.run
        sets[run["date"], run["commit"], f"{run['versions']}, {run['tokenizer']}"][f"{each.set} ({each.embedding})"] = (
            None
        )
    return [(date, commit, ", ".join(names), versions) for (date, commit, versions), names in sorted(sets.items())]
