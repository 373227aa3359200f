import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, strategies as st

from retrieval.dictionary import parse_dictionary, parse_stop_words
from retrieval.tokenize import Engine, JiebaTokenizer, Token, TokenizerOptions, TokenKind

MIXED = ["T恤", "维生素C", "K8s集群", "Spring Boot", "C++标准", ".NET", "iPhone 15", "かな", "𠮷野家"]


def tokenizer(dictionary="", stop_words="", *, engine=Engine.JIEBA, simplify=False):
    words, stops = parse_dictionary(dictionary), parse_stop_words(stop_words)
    return JiebaTokenizer(TokenizerOptions(engine, words, stops, simplify))


@pytest.fixture(scope="module")
def default():
    return JiebaTokenizer()


@pytest.fixture(scope="module")
def mixed():
    return tokenizer("\n".join(f"{word} 1" for word in MIXED))


@pytest.fixture(scope="module")
def every_option():
    return tokenizer("云原生\nT恤\na-1", "产品\na\n1", simplify=True)


@pytest.mark.parametrize("engine", Engine)
def test_a_dictionary_word_of_chinese_characters_is_a_term(engine):
    assert "云原生" not in tokenizer(engine=engine)("什么是云原生？")
    assert "云原生" in tokenizer("云原生", engine=engine)("什么是云原生？")


@pytest.mark.parametrize("word", MIXED)
def test_a_word_of_several_scripts_is_found_whole_and_by_part(mixed, default, word):
    text = f"关于{word}，见下文"
    whole = word.casefold()

    assert whole in mixed(text)
    assert whole in mixed(word)
    assert sorted(term for term in mixed(text) if term not in {word.casefold() for word in MIXED}) == sorted(
        term for term in default(text) if term not in {word.casefold() for word in MIXED}
    )


@given(before=st.text("ab 恤集，-", max_size=8), after=st.text("ab 恤集，-", max_size=8), word=st.sampled_from(MIXED))
def test_a_text_that_holds_a_dictionary_word_has_the_word_as_a_term(mixed, before, after, word):
    assert word.casefold() in mixed(f"{before} {word.upper()} {after}")


def test_a_dictionary_word_that_the_rules_find_by_themselves_is_counted_once(default):
    cut = tokenizer("TH-01\nTH\n404\nnginx 1 eng")

    assert cut("TH-01 nginx 404") == default("TH-01 nginx 404")
    assert cut("TH-01-X") == ["th-01", *default("TH-01-X")]


def test_a_latin_dictionary_word_is_found_unstemmed_beside_its_stem(default):
    assert tokenizer("Kubernetes\nIT")("it runs Kubernetes") == ["it", "run", "kubernetes", "kubernet"]


def test_dictionary_words_are_normalised_as_texts_are():
    cut = tokenizer("Ｋ８ｓ集\u200b群\n云\u00ad原生")

    assert {"k8s集群", "云原生"} <= set(cut("用k8s集群的云原生应用"))


@pytest.mark.parametrize("engine", Engine)
def test_stop_words_are_dropped(engine):
    cut = tokenizer(stop_words="的\n产品\nproducts\nTH-01", engine=engine)

    assert cut("产品的品质 product TH-01") == ["品质", "th", "01"]


def test_a_stop_word_is_dropped_in_capitals_and_beside_chinese_too():
    assert tokenizer(stop_words="it")("IT行业") == ["行业"]


def test_a_stop_word_may_be_a_dictionary_word():
    assert tokenizer("Spring Boot", "spring  boot")("Spring Boot") == ["spring", "boot"]


@pytest.mark.parametrize("engine", Engine)
def test_traditional_chinese_equals_simplified_where_it_is_simplified(engine, default):
    cut = tokenizer("雲原生", "資訊", engine=engine, simplify=True)
    text = "漢字檢索與雲原生"

    assert cut(text) == cut("汉字检索与云原生")
    assert {"汉字", "检索", "云原生"} <= set(cut(text))
    assert cut("资讯 資訊") == []
    assert "漢字" in default(text)


def test_simplification_takes_any_characters():
    assert tokenizer(simplify=True)("漢\0字 \ud800 th-01") == ["汉", "字", "th-01", "th", "01"]


@pytest.mark.parametrize("engine", Engine)
def test_threads_that_start_together_share_a_tokenizer_with_options(engine):
    cold, used = (tokenizer("雲原生\nT恤", "的", engine=engine, simplify=True) for _ in range(2))
    text = "漢字轉換與雲原生的T恤，乾隆皇帝喝乾淨的水。" * 20

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(cold, [text] * 32))

    assert results == [used(text)] * 32


def test_the_engines_are_two_tokenizers_with_two_ids(default):
    other = tokenizer(engine=Engine.RJIEBA)

    assert other.id.startswith("rjieba-search-en-snowball:1:")
    assert other.id.rpartition(":")[2] != default.id.rpartition(":")[2]
    assert other("2008年，用Python处理3.5%的数据") == default("2008年，用Python处理3.5%的数据")


def test_options_that_change_no_token_keep_the_id(default):
    assert tokenizer("# nothing", "！\n# nothing").id == default.id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("云原生 5\n大数据\nT恤",), ("t恤 9 n\n大数据 n\n云原生 5 n",)),
        (("云原生 5\n云原生 6",), ("云原生 6",)),
        (("", "Products\n的"), ("", "的\nproducts\nPRODUCT")),
    ],
)
def test_options_that_mean_the_same_have_one_id(one, other):
    assert tokenizer(*one).id == tokenizer(*other).id


def test_options_that_differ_have_ids_that_differ():
    ids = [
        tokenizer(*options, engine=engine, simplify=simplify).id
        for engine in Engine
        for simplify in (False, True)
        for options in [("",), ("云原生",), ("云原生 5",), ("T恤",), ("", "云原生"), ("", "T恤")]
    ]

    assert len(set(ids)) == len(ids)


def test_the_longest_id_fits_a_cache_key(mixed):
    assert all("|" not in id_ and len(id_) <= 120 for id_ in (mixed.id, tokenizer(engine=Engine.RJIEBA).id))


def test_every_process_has_the_same_id_for_the_same_options():
    script = (
        "from retrieval.dictionary import DictionaryWord\n"
        "from retrieval.tokenize import JiebaTokenizer, TokenizerOptions\n"
        "words = tuple(map(DictionaryWord, ['云原生', 'T恤']))\n"
        "print(JiebaTokenizer(TokenizerOptions(dictionary=words, stop_words=frozenset('的了是在'))).id)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert outputs == {tokenizer("T恤\n云原生", "的\n了\n是\n在").id}


def test_the_id_reads_no_dictionary_of_the_engine():
    script = (
        "import sys, jieba\n"
        "from retrieval.tokenize import JiebaTokenizer\n"
        "jieba.Tokenizer.get_dict_file = lambda self: sys.exit('parsed')\n"
        "JiebaTokenizer().id\n"
    )

    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=False).returncode == 0


def test_tokens_are_explained_with_their_surface_and_rule():
    cut = tokenizer("云原生\nT恤", "的")

    assert cut.explain("The 云原生的T恤 ERR_404, Running") == [
        Token("the", "The", TokenKind.STEM, is_dropped=True),
        Token("原生", "原生", TokenKind.WORD),
        Token("云原生", "云原生", TokenKind.DICTIONARY),
        Token("的", "的", TokenKind.WORD, is_dropped=True),
        Token("t恤", "T恤", TokenKind.DICTIONARY),
        Token("t", "T", TokenKind.STEM),
        Token("恤", "恤", TokenKind.WORD),
        Token("err_404", "ERR_404", TokenKind.CODE),
        Token("err", "ERR", TokenKind.PART),
        Token("404", "404", TokenKind.PART),
        Token("run", "Running", TokenKind.STEM),
    ]


@given(text=st.text() | st.text("aA1. -_的产品云原生T恤", max_size=30))
def test_the_terms_are_the_explained_tokens_that_are_not_dropped(every_option, text):
    assert every_option(text) == [token.term for token in every_option.explain(text) if not token.is_dropped]
