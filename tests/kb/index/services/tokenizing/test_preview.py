import pytest

from kb.base.errors import Rejected
from kb.index.services import tokenizing as token_preview
from kb.index.services.tokenizing import (
    TOKENIZING,
    Example,
    compare_tokens,
    dry_run,
    read_settings,
    tokenizer_change,
)
from kb.models import Chunk, ChunkPostings
from retrieval.dictionary import DictionaryWord
from retrieval.tokenize import JiebaTokenizer, TokenizerOptions
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(
        kb,
        "云计算平台采用分布式架构。",
        "新员工购买T恤须经审批。",
        "The products were studied.",
        "违约金过高的，可以请求减少。",
        title="Notes",
    )
    return kb


def settings(**changes):
    return read_settings(**{"engine": "jieba", "dictionary": "", "stop_words": "", "simplify": False, **changes})


def chunk_at(kb, position):
    return Chunk.objects.get(knowledge_base=kb, position=position)


def move_to(kb, **changes):
    tokenizer_change(kb, settings(**changes))
    TOKENIZING.advance(kb)
    kb.refresh_from_db()


def test_a_dictionary_word_affects_the_chunks_that_hold_it(kb):
    run = dry_run(kb, settings(dictionary="云计算平台 100000\nT恤"))

    assert (run.total, run.looked_at, run.affected, run.is_partial) == (4, 4, 2, False)
    cloud, shirt = run.examples
    assert cloud == Example(chunk_at(kb, 0).pk, "Notes", 0, lost=("云",), gained=("云计算平台",))
    assert (shirt.chunk_id, shirt.gained) == (chunk_at(kb, 1).pk, ("t恤",))


def test_a_stop_word_affects_the_chunks_that_hold_its_stem(kb):
    run = dry_run(kb, settings(stop_words="studies\n违约金"))

    assert [(example.position, example.lost, example.gained) for example in run.examples] == [
        (2, ("studi",), ()),
        (3, ("违约金",), ()),
    ]


def test_a_word_that_no_chunk_holds_affects_none_and_has_none_tokenised(kb, monkeypatch):
    monkeypatch.setattr(token_preview, "MAX_CHUNKS_TOKENIZED", 0)  # one would end the run

    run = dry_run(kb, settings(dictionary="量子纠缠", stop_words="banana"))

    assert (run.looked_at, run.affected, run.examples) == (4, 0, ())


def test_a_word_that_stays_whole_anyway_affects_none(kb):
    assert dry_run(kb, settings(dictionary="违约金")).affected == 0


def test_the_settings_in_use_affect_none(kb):
    run = dry_run(kb, settings())

    assert (run.total, run.looked_at, run.affected) == (4, 4, 0)


def test_taking_a_word_out_affects_what_it_had_changed(kb):
    move_to(kb, dictionary="云计算平台 100000")

    run = dry_run(kb, settings())

    assert [(example.position, example.lost) for example in run.examples] == [(0, ("云计算平台",))]


def test_simplification_is_compared_chunk_by_chunk(kb):
    make_document(kb, "違約金過高的，可以請求減少。")

    run = dry_run(kb, settings(simplify=True))

    assert (run.looked_at, run.affected) == (5, 1)
    assert "违约金" in run.examples[0].gained


def test_traditional_words_of_the_dictionary_are_found_in_simplified_texts(kb):
    move_to(kb, simplify=True)

    run = dry_run(kb, settings(simplify=True, dictionary="雲計算平台 100000"))

    assert [example.gained for example in run.examples] == [("云计算平台",)]


def test_a_frequency_that_shifts_all_others_makes_every_chunk_a_candidate(kb, monkeypatch):
    monkeypatch.setattr(token_preview, "MAX_CHUNKS_TOKENIZED", 1)

    run = dry_run(kb, settings(dictionary="量子纠缠 900000000"))

    assert run.looked_at == 1


def test_chunks_tokenised_are_bounded_and_the_run_says_so(kb, monkeypatch):
    monkeypatch.setattr(token_preview, "MAX_CHUNKS_TOKENIZED", 2)

    run = dry_run(kb, settings(simplify=True))

    assert (run.total, run.looked_at, run.is_partial) == (4, 2, True)


def test_chunks_read_are_bounded_and_the_run_says_so(kb, monkeypatch):
    monkeypatch.setattr(token_preview, "MAX_CHUNKS_READ", 2)
    monkeypatch.setattr(token_preview, "READ_BATCH", 1)

    run = dry_run(kb, settings(dictionary="云计算平台 100000"))

    assert (run.total, run.looked_at, run.affected) == (4, 2, 1)


def test_every_piece_of_a_large_knowledge_base_is_read(kb, monkeypatch):
    monkeypatch.setattr(token_preview, "READ_BATCH", 2)

    assert dry_run(kb, settings(stop_words="违约金")).affected == 1


def test_examples_are_few_and_all_are_counted(kb, monkeypatch):
    monkeypatch.setattr(token_preview, "MAX_EXAMPLES", 1)

    run = dry_run(kb, settings(stop_words="平台\n违约金"))

    assert (run.affected, len(run.examples)) == (2, 1)


def test_a_chunk_without_postings_is_affected(kb):
    ChunkPostings.objects.filter(chunk=chunk_at(kb, 0)).delete()

    assert dry_run(kb, settings(dictionary="云计算")).affected == 1


def test_postings_of_another_version_s_rules_make_every_chunk_a_candidate(kb, monkeypatch):
    kb.tokenizer_id = "jieba-search-en-snowball:0:0000000000000000"
    monkeypatch.setattr(token_preview, "MAX_CHUNKS_TOKENIZED", 1)

    assert dry_run(kb, settings()).looked_at == 1


def test_a_dry_run_writes_nothing(kb, django_assert_num_queries):
    with django_assert_num_queries(2):
        dry_run(kb, settings(dictionary="云计算平台 100000"))


def test_without_the_packages_there_is_no_dry_run(kb, monkeypatch):
    monkeypatch.setattr(token_preview, "tokenizer", lambda _id: None)

    with pytest.raises(Rejected) as refused:
        dry_run(kb, settings())
    assert refused.value.code == "bm25_dependencies_missing"


def test_tokens_that_only_one_tokenizer_makes_are_marked():
    own = JiebaTokenizer(TokenizerOptions(dictionary=(DictionaryWord("T恤"),), stop_words=frozenset({"购买"})))
    text = "购买T恤"

    before, after = compare_tokens(JiebaTokenizer().explain(text), own.explain(text))

    assert [(token.term, token.is_dropped, is_changed) for token, is_changed in before] == [
        ("购买", False, True),
        ("t", False, False),
        ("恤", False, False),
    ]
    assert [(token.term, token.is_dropped, is_changed) for token, is_changed in after] == [
        ("购买", True, True),
        ("t恤", False, True),
        ("t", False, False),
        ("恤", False, False),
    ]
