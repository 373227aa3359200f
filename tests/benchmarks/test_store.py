import pytest

from retrieval.tokenize import JiebaTokenizer
from tests.benchmarks import store
from tests.benchmarks.corpora import Corpus


@pytest.mark.django_db(transaction=True)
def test_every_tier_is_measured_on_the_real_services():
    tokenizer = JiebaTokenizer()
    passages = ["保修期是两年", "安装前请先关闭电源", "购买后三十天内可以退货"]
    corpus = Corpus("small", list(map(tokenizer, passages)), [tokenizer("保修期")], passages)

    rows = store.measure(corpus)

    measured = [row.measure.partition(",")[0] for row in rows]
    assert measured == [
        "rebuild from PostgreSQL",
        "load from Redis",
        "load from PostgreSQL",
        "search after 50 chunks were added",
    ]
    assert all(float(row.ratio.replace(",", "")) > 0 for row in rows)
