import re
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from retrieval.characters import MOST_MARKS
from retrieval.errors import DependencyMissing, import_dependency
from retrieval.tokenize import ENGLISH_STOP_WORDS, JiebaTokenizer, normalize

CHINESE = "北京大学的研究生在图书馆研究自然语言处理，他们来自中华人民共和国各地；小明硕士毕业于中国科学院计算所。"


@pytest.fixture(scope="module")
def tokenizer():
    return JiebaTokenizer()


@pytest.fixture(scope="module")
def jieba_search():
    """Search-mode jieba itself, reading no cache file."""
    segmenter = import_dependency("jieba").Tokenizer()
    segmenter.FREQ, segmenter.total = segmenter.gen_pfdict(segmenter.get_dict_file())
    segmenter.initialized = True
    return segmenter.lcut_for_search


def test_chinese_is_cut_as_jieba_does_in_search_mode_without_punctuation(tokenizer, jieba_search):
    expected = [word for word in jieba_search(CHINESE) if word not in "，；。"]

    assert tokenizer(CHINESE) == expected
    assert {"清华", "大学", "清华大学"} <= set(tokenizer("我来到清华大学"))


def test_unknown_chinese_words_are_found_by_the_hidden_markov_model(tokenizer):
    assert "杭研" in tokenizer("他来到了网易杭研大厦")


def test_chinese_and_latin_in_one_sentence_are_cut_apart(tokenizer):
    terms = ["2008", "年", "用", "python", "处理", "3.5", "3", "5", "的", "数据"]

    assert tokenizer("2008年，用Python处理3.5%的数据") == terms


@pytest.mark.parametrize(
    ("code", "terms"),
    [
        ("TH-01", ["th-01", "th", "01"]),
        ("ERR_404", ["err_404", "err", "404"]),
        ("v2.3.1", ["v2.3.1", "v2", "v", "2", "3", "1"]),
        ("3.14", ["3.14", "3", "14"]),
        ("500kg", ["500kg", "500", "kg"]),
        ("iPhone15", ["iphone15", "iphon", "15"]),
        ("h2o", ["h2o"]),
        ("c++", ["c++", "c"]),
        ("C#", ["c#", "c"]),
        ("x+y", ["x", "y"]),
        ("li.lei@example.com", ["li.lei@example.com", "li", "lei", "exampl", "com"]),
        ("_private--flag-", ["privat", "flag"]),
    ],
)
def test_codes_are_found_whole_and_by_part(tokenizer, code, terms):
    assert tokenizer(code) == terms


def test_words_of_a_code_match_the_same_words_in_running_text(tokenizer):
    assert set(tokenizer("errors 404")) <= set(tokenizer("ERROR_404"))


def test_full_width_forms_equal_half_width_ones(tokenizer):
    plain = "th-01+abc"
    full_width = plain.upper().translate({code: code + 0xFEE0 for code in map(ord, plain.upper())})

    assert full_width.startswith("\uff34\uff28\uff0d")
    assert tokenizer(full_width) == tokenizer(plain)


def test_case_does_not_matter(tokenizer):
    assert tokenizer("Straße RUNNING") == tokenizer("STRASSE running")


def test_invisible_characters_do_not_split_words(tokenizer):
    assert tokenizer("soft\u00adware 知\u200b识\ufeff库") == tokenizer("software 知识库")


def test_typographic_apostrophes_and_hyphens_equal_plain_ones(tokenizer):
    assert tokenizer("don\u2019t TH\u201001") == tokenizer("don't TH-01")


def test_english_is_stemmed(tokenizer):
    assert tokenizer("connected connections connecting John's") == ["connect", "connect", "connect", "john"]


def test_english_stop_words_are_dropped(tokenizer):
    assert tokenizer("it is the state of such things, it's") == ["state", "thing"]


def test_a_query_of_stop_words_alone_has_no_terms(tokenizer):
    assert tokenizer("is it to be") == []


@pytest.mark.parametrize(
    ("text", "term"), [("IT 部门", "it"), ("it行业", "it"), ("买A股", "a"), ("a股", "a"), ("部门it", "it")]
)
def test_a_stop_word_in_capitals_or_beside_chinese_is_a_name(tokenizer, text, term):
    assert term in tokenizer(text)


def test_a_capital_at_the_start_of_an_english_sentence_is_no_name(tokenizer):
    assert tokenizer("A state") == tokenizer("a state") == ["state"]


def test_stop_words_are_the_33_of_lucene():
    assert len(ENGLISH_STOP_WORDS) == 33


@pytest.mark.parametrize("text", ["café", "Москва", "かな", "カタカナ", "한국어", "हिन्दी", "สวัสดี", "العربية", "𠮷野"])
def test_every_script_gives_terms(tokenizer, text):
    assert tokenizer(text)


def test_accented_words_stay_whole(tokenizer):
    assert tokenizer("Ångström") == tokenizer("A\u030angstro\u0308m") == ["ångström"]


def test_empty_text_has_no_terms(tokenizer):
    assert tokenizer("") == tokenizer(" \n。！…") == []


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_every_term_is_folded_and_holds_a_letter_or_digit(tokenizer, text):
    for term in tokenizer(text):
        assert any(map(str.isalnum, term))
        assert term == term.casefold()


@given(text=st.text(max_size=60))
@example("\u1100\u200b\u1161")
def test_normalised_text_stays_as_it_is_and_has_the_same_terms(tokenizer, text):
    assert normalize(normalize(text)) == normalize(text)
    assert tokenizer(normalize(text)) == tokenizer(text)


@pytest.mark.parametrize("marks", ["\u0301\u0327", "\u0301\u200b\u0327"])
def test_a_character_of_a_long_text_keeps_a_bounded_number_of_marks(tokenizer, marks):
    hostile = "a" + marks * 100_000 + " warranty"

    plain = normalize(hostile)

    assert len(plain) <= len("a warranty") + MOST_MARKS
    assert normalize(plain) == plain
    assert "warranti" in tokenizer(hostile)


def test_marks_of_people_stay():
    written = "a\u0301\u0327" * 2_000
    assert normalize(written) == unicodedata.normalize("NFKC", written)


def test_threads_that_start_together_share_one_tokenizer(tokenizer):
    cold = JiebaTokenizer()
    text = CHINESE + "connected connections " * 5

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(cold, [text] * 32))

    assert results == [tokenizer(text)] * 32


def test_the_id_names_the_rules_and_the_vocabulary(tokenizer):
    name, rules, vocabulary = tokenizer.id.split(":")

    assert (name, rules) == ("jieba-search-en-snowball", "1")
    assert len(vocabulary) == 16
    assert JiebaTokenizer().id == tokenizer.id


def test_the_default_id_hashes_versions_dictionary_and_stop_words_alone(tokenizer):
    jieba, stemmer = import_dependency("jieba"), import_dependency("Stemmer")
    dictionary = sha256(Path(jieba.__file__).with_name("dict.txt").read_bytes()).hexdigest()
    decisive = [jieba.__version__, stemmer.version(), dictionary, *sorted(ENGLISH_STOP_WORDS)]

    assert tokenizer.id.endswith(sha256("\n".join(decisive).encode()).hexdigest()[:16])


# The rules of version 1, written down once more: postings that a knowledge base holds were made by them.
CJK = "\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = rf"[^\W_{CJK}]+"
VERSION_1 = re.compile(rf"([{CJK}]+)|({WORD}(?:[-_.@&']{WORD})*(?:(?:\+{{1,2}}|\#)(?!{WORD}))?)")
TRANSLATED = {0x2019: "'", 0x2010: "-"} | dict.fromkeys([0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF])


def version_1(text, jieba_search):
    stem = import_dependency("Stemmer").Stemmer("english", 0).stemWord
    text = unicodedata.normalize("NFKC", text).translate(TRANSLATED)
    for run in VERSION_1.finditer(text):
        if run[1]:
            yield from (word for word in jieba_search(run[1]) if any(map(str.isalnum, word)))
            continue
        beside_chinese = text[run.start() - 1 : run.start()].isalnum() or text[run.end() : run.end() + 1].isalnum()
        is_name = beside_chinese or (len(run[0]) > 1 and run[0].isupper())
        code = run[0].casefold()
        parts = [part for part in re.split(r"[-_.@&+#]+", code) if part]
        yield from [] if parts == [code] else [code]
        for part in parts:
            halves = re.fullmatch(r"([^\W\d_]+)(\d+)|(\d+)([^\W\d_]+)", part)
            if not part.replace("'", "").isalpha():
                yield from [part, *(stem(half) for half in (halves.groups() if halves else ()) if half)]
            elif is_name or part.removesuffix("'s") not in ENGLISH_STOP_WORDS:
                yield stem(part)


@given(text=st.text() | st.text("aitTHß’'.-_+#@ 019股票的知识库，ﬁÅ\u200b", max_size=40))
def test_the_rules_are_those_of_the_version_in_the_id(tokenizer, jieba_search, text):
    assert tokenizer(text) == list(version_1(text, jieba_search))


def test_importing_and_using_the_tokenizer_warns_of_nothing_and_prints_nothing():
    script = (
        "import sys\n"
        "from retrieval.tokenize import JiebaTokenizer\n"
        "assert 'jieba' not in sys.modules and 'Stemmer' not in sys.modules\n"
        "assert JiebaTokenizer()('知识库 indexes') == ['知识', '知识库', 'index'] or sys.exit('tokens')\n"
    )

    # -B and an empty cache prefix make Python compile jieba again, which is when it warns of invalid escapes.
    result = subprocess.run(
        [sys.executable, "-B", "-X", "pycache_prefix=/nonexistent", "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("module", ["jieba", "opencc", "rank_bm25", "rjieba"])
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(DependencyMissing, match=f"pip install {module.replace('_', '-')}"):
        import_dependency(module)
