import pytest

from retrieval.tokenize import JiebaTokenizer
from tests.benchmarks import hybrid
from tests.benchmarks.corpora import Corpus

PASSAGES = ["保修期是两年", "安装前请先关闭电源", "购买后三十天内可以退货"]


@pytest.mark.django_db(transaction=True)
def test_both_search_the_same_passages(monkeypatch):
    monkeypatch.setattr(hybrid, "TOP_K", 1)
    tokenizer = JiebaTokenizer()
    corpus = Corpus("small", list(map(tokenizer, PASSAGES)), [tokenizer("保修期")], PASSAGES)

    rows = hybrid.measure(corpus, ["保修期多久"] * 7)

    assert [row.measure.split(", ")[-2] for row in rows] == ["p50", "p95"]
    assert all(float(row.ratio.replace(",", "")) > 0 for row in rows)
