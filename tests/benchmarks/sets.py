"""The public sets that relevance is measured on, and the figures that others have published for them."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from retrieval.eval.judged_sets import JudgedSet, Layout, read_judged_set, write_judged_set
from retrieval.eval.qrels import iter_corpus, write_json_lines

TESTS_DATA = Path(__file__).resolve().parents[1] / "data"


@dataclass(frozen=True)
class Published:
    """A figure of the same set from elsewhere."""

    name: str
    ndcg_at_10: float
    source: str


@dataclass(frozen=True)
class PublicSet:
    """A set in BEIR layout.

    Attributes:
        at: its folder; a relative one is below ZHIKU_EVAL_DATA.
        about: by the language of the page, with its source.
        halved: half of the passages are taken out, see `without_half`.
    """

    name: str
    language: str
    at: Path
    about: dict[str, str]
    halved: bool = False
    published: tuple[Published, ...] = ()

    def directory(self, data: Path, made: Path) -> Path:
        """Where the set is; a halved one is written into a folder below `made`."""
        return without_half(data / self.at, made / self.name) if self.halved else data / self.at


def without_half(directory: Path, made: Path) -> Path:
    """Writes the set without half of its passages; the questions that only these answer have no answer then.

    The hash of a passage's id says whether it stays, so that parallel sets lose the same ones. Returns `made`.
    """
    judged = read_judged_set(directory, Layout.BEIR)
    passages = [each for each in iter_corpus(directory) if hashlib.sha256(each.id.encode()).digest()[0] % 2]
    kept = {each.id for each in passages}
    judgments = tuple(each for each in judged.judgments if each.source in kept)
    answered = {each.query_id for each in judgments if each.grade}
    queries = tuple(replace(each, answerable=each.id in answered) for each in judged.queries)
    write_judged_set(made, JudgedSet(made.name, queries, judgments), Layout.BEIR, documents=kept)
    write_json_lines(
        made / "corpus.jsonl", ({"_id": each.id, "title": each.title, "text": each.text} for each in passages)
    )
    return made


CMRC = "[CMRC 2018](https://github.com/ymcui/cmrc2018)"
XQUAD = "[XQuAD](https://github.com/google-deepmind/xquad)"
PYSERINI = "https://castorini.github.io/pyserini/2cr/beir.html"
FUSION = "https://github.com/castorini/pyserini/blob/master/docs/experiments-beir-fusion.md"

SETS = (
    PublicSet(
        "demo-zh",
        "zh",
        TESTS_DATA / "demo_eval" / "zh",
        {
            "en": "Chinese: questions about the demo documents, written for this project; too few for small differences.",
            "zh-hans": "中文：针对演示文档的问题，为本项目而写；数量太少，看不出细小的差别。",
        },
    ),
    PublicSet(
        "demo-en",
        "en",
        TESTS_DATA / "demo_eval" / "en",
        {"en": "The same in English.", "zh-hans": "同一套题的英文版。"},
    ),
    PublicSet(
        "cmrc2018",
        "zh",
        Path("cmrc2018"),
        {
            "en": f"Chinese: question to Wikipedia paragraph, from the dev and trial files of {CMRC}.",
            "zh-hans": f"中文：由问题找维基百科段落，取自 {CMRC} 的 dev 与 trial 两个文件。",
        },
    ),
    PublicSet(
        "cmrc2018-reject",
        "zh",
        Path("cmrc2018-reject"),
        {
            "en": "cmrc2018 without the paragraphs of half of its questions, which then have no answer.",
            "zh-hans": "cmrc2018 去掉一半问题所对应的段落，这些问题因此没有答案。",
        },
    ),
    PublicSet(
        "xquad-zh",
        "zh",
        Path("xquad-zh"),
        {
            "en": f"Chinese: question to paragraph, from `xquad.zh.json` of {XQUAD}.",
            "zh-hans": f"中文：由问题找段落，取自 {XQUAD} 的 `xquad.zh.json`。",
        },
    ),
    PublicSet(
        "xquad-zh-half",
        "zh",
        Path("xquad-zh"),
        {
            "en": "xquad-zh without half of its paragraphs, chosen by the hash of their ids.",
            "zh-hans": "xquad-zh 去掉一半段落，按段落编号的哈希值选取。",
        },
        halved=True,
    ),
    PublicSet(
        "xquad-en",
        "en",
        Path("xquad-en"),
        {
            "en": f"English: the same questions and paragraphs, from `xquad.en.json` of {XQUAD}.",
            "zh-hans": f"英文：同样的问题与段落，取自 {XQUAD} 的 `xquad.en.json`。",
        },
    ),
    PublicSet(
        "xquad-en-half",
        "en",
        Path("xquad-en"),
        {
            "en": "xquad-en without the same half of its paragraphs.",
            "zh-hans": "xquad-en 去掉同样的一半段落。",
        },
        halved=True,
    ),
    PublicSet(
        "scifact",
        "en",
        Path("scifact"),
        {
            "en": "English: scientific claim to abstract, judged by experts: the test set of "
            "[SciFact](https://github.com/allenai/scifact) in [BEIR](https://github.com/beir-cellar/beir).",
            "zh-hans": "英文：由科学论断找论文摘要，专家标注："
            "[BEIR](https://github.com/beir-cellar/beir) 中 [SciFact](https://github.com/allenai/scifact) 的测试集。",
        },
        published=(
            Published("Pyserini, BM25, flat", 0.6789, PYSERINI),
            Published("Pyserini, BM25, multifield", 0.6647, PYSERINI),
            Published("Pyserini, SPLADE++", 0.7041, PYSERINI),
            Published("Pyserini, bge-base-en-v1.5", 0.7408, FUSION),
            Published("Pyserini, BM25 + bge-base-en-v1.5, min-max", 0.7472, FUSION),
        ),
    ),
    PublicSet(
        "stard-law",
        "zh",
        Path("stard-law"),
        {
            "en": "Chinese: layperson's question to statute articles, judged by experts: the questions of "
            "[STARD](https://github.com/oneal2000/STARD) over its articles and those of "
            "[LawRefBook](https://github.com/LawRefBook/Laws). The corpus is not STARD's own, so its figures are no match.",
            "zh-hans": "中文：由普通人的提问找法条，专家标注：[STARD](https://github.com/oneal2000/STARD) 的问题，"
            "语料为其法条加上 [LawRefBook](https://github.com/LawRefBook/Laws) 的法条。语料与 STARD 自己的不同，数字不可相比。",
        },
    ),
)
