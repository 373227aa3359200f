import numpy as np
import pytest

from kb.index import fulltext
from kb.index.fulltext import PgTextStore
from kb.models import Chunk, ChunkPostings
from kb.providers.embedding_models import tokenizer
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


def add(kb, *texts):
    document = make_document(kb, *texts)
    return list(Chunk.objects.filter(document=document).order_by("position").values_list("pk", flat=True))


def search_terms(kb, query, k=10, **options):
    terms = query if isinstance(query, list) else tokenizer()(query)
    found, scores = PgTextStore().search_terms(kb.pk, kb.tokenizer_id, terms, k, **options)
    return found.tolist(), scores.tolist()


def search_ngrams(kb, text, k=10, **options):
    found, shares = PgTextStore().search_ngrams(kb.pk, kb.tokenizer_id, text, k, **options)
    return found.tolist(), shares.tolist()


class TestTerms:
    def test_chunks_that_hold_any_term_are_found(self, kb):
        warranty, power, _ = add(kb, "保修期是两年", "安装前请先关闭电源", "购买后可以退货")

        assert set(search_terms(kb, "保修 电源")[0]) == {warranty, power}

    def test_a_rare_term_counts_for_more_than_a_common_one(self, kb):
        *_, rare = add(kb, *["电源 说明"] * 5, "保修 说明")

        assert search_terms(kb, "电源 保修")[0][0] == rare

    def test_a_term_that_stands_more_often_counts_for_more(self, kb):
        once, often = add(kb, "保修 电源 安装 退货", "保修 保修 安装 退货")

        found, scores = search_terms(kb, "保修")

        assert found == [often, once]
        assert scores[0] > scores[1] > 0

    def test_a_shorter_chunk_counts_for_more(self, kb):
        long, short = add(kb, "保修 电源 安装 退货 说明", "保修 电源")

        assert search_terms(kb, "保修")[0] == [short, long]

    def test_equal_ones_stand_in_the_order_of_their_ids(self, kb):
        chunk_ids = add(kb, *["保修"] * 5)

        assert search_terms(kb, "保修", 3)[0] == chunk_ids[:3]

    def test_other_bases_and_tokenizers_are_apart(self, kb):
        [mine] = add(kb, "保修")
        add(make_kb(), "保修")
        [other] = add(kb, "保修")
        ChunkPostings.objects.filter(chunk=other).update(tokenizer_id="another")

        assert search_terms(kb, "保修")[0] == [mine]

    def test_disabled_chunks_are_not_found(self, kb):
        off, on = add(kb, "保修", "保修 说明")
        Chunk.objects.filter(pk=off).update(enabled=False)

        assert search_terms(kb, "保修")[0] == [on]

    def test_only_the_chunks_asked_for_are_found(self, kb):
        _, second, third = add(kb, "保修", "保修", "保修")

        assert search_terms(kb, "保修", only=np.array([second, third]))[0] == [second, third]
        assert search_terms(kb, "保修", only=np.array([], dtype=np.int64)) == ([], [])

    @pytest.mark.parametrize("term", ["'", "\\", "a'b", "a\\", "!", "a:*", "a & b", "(", "''", "%s", '"'])
    def test_whatever_a_term_is_made_of_it_is_one_term(self, kb, term):
        quoted, _ = add(kb, "甲", "乙 b a")
        ChunkPostings.objects.filter(chunk=quoted).update(lexemes=[term])

        assert search_terms(kb, [term])[0] == [quoted]

    @pytest.mark.parametrize("terms", [[], [""], ["没有"], ["\0"], ["x" * 3_000], ["~保修"]])
    def test_terms_that_no_chunk_can_hold_find_nothing(self, kb, terms):
        add(kb, "保修")

        assert search_terms(kb, terms) == ([], [])

    def test_of_many_terms_the_first_ones_are_looked_for(self, kb):
        [chunk_id] = add(kb, "保修")
        others = [f"t{number}" for number in range(fulltext.MAX_TERMS)]

        assert search_terms(kb, ["保修", *others])[0] == [chunk_id]
        assert search_terms(kb, [*others, "保修"])[0] == []


class TestNgrams:
    def test_a_misspelt_word_is_found(self, kb):
        [chunk_id, _] = add(kb, "thermostat warranty", "return policy")

        found, shares = search_ngrams(kb, "thermostst")

        assert found == [chunk_id]
        assert shares == [pytest.approx(6 / 8)]

    def test_part_of_a_chinese_word_is_found(self, kb):
        [chunk_id, _] = add(kb, "智能温控器的保修期", "请先关闭电源")

        assert search_ngrams(kb, "温控")[0] == [chunk_id]

    def test_the_larger_share_comes_first(self, kb):
        half, whole = add(kb, "保修两年", "保修期限两年")

        assert search_ngrams(kb, "保修期限") == ([whole, half], [1.0, pytest.approx(1 / 3)])

    def test_a_chunk_with_a_small_share_is_noise(self, kb):
        add(kb, "保修两年", "安装电源")

        assert search_ngrams(kb, "请问保修卡丢了该怎么办理") == ([], [])

    def test_disabled_chunks_are_not_found(self, kb):
        off, on = add(kb, "保修", "保修")
        Chunk.objects.filter(pk=off).update(enabled=False)

        assert search_ngrams(kb, "保修")[0] == [on]

    def test_only_the_chunks_asked_for_are_found(self, kb):
        _, second = add(kb, "保修", "保修")

        assert search_ngrams(kb, "保修", only=np.array([second])) == ([second], [1.0])

    def test_terms_are_no_ngrams(self, kb):
        add(kb, "保修")

        assert search_terms(kb, ["修期"])[0] == []
        assert search_ngrams(kb, "修") == ([], [])

    def test_as_many_as_wanted_come_back_in_the_order_of_their_ids(self, kb):
        chunk_ids = add(kb, *["保修"] * 5)

        assert search_ngrams(kb, "保修", 2)[0] == chunk_ids[:2]

    @pytest.mark.parametrize("text", ["", "？！", "税"])
    def test_a_query_without_ngrams_finds_nothing(self, kb, text):
        add(kb, "税")

        assert search_ngrams(kb, text) == ([], [])


def test_chunks_of_before_full_text_are_not_found_until_they_are_tokenised_again(kb):
    [chunk_id] = add(kb, "保修")
    ChunkPostings.objects.update(lexemes=[])
    assert search_terms(kb, "保修")[0] == []

    from kb.index.services.reindex import reindex_postings

    reindex_postings(kb)

    assert search_terms(kb, "保修")[0] == search_ngrams(kb, "保修")[0] == [chunk_id]
