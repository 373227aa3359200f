import pytest
from django.utils import translation

from kb.index.admin import TokenizerForm

FIELDS = ["dictionary", "stop_words"]


def form(**values):
    return TokenizerForm({"engine": "jieba", **values}, may_edit=True)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        ("en", "The words have more than 500,000 characters in all: leave out words that seldom occur."),
        ("zh-hans", "所有词合计超过 500,000 个字符：请去掉很少出现的词。"),
    ],
)
def test_words_of_too_many_characters_in_all_are_refused_with_the_remedy(field, language, sentence):
    words = "\r\n".join(f"{number:050d}" for number in range(10_001))

    with translation.override(language):
        assert form(**{field: words}).errors == {field: [sentence]}


@pytest.mark.parametrize("field", FIELDS)
def test_a_text_that_is_too_long_is_refused_unread(field):
    (message,) = form(**{field: "。" * 1_000_001}).errors[field]

    assert "1000000" in message


@pytest.mark.parametrize("field", FIELDS)
def test_a_browser_is_given_no_length_at_which_to_cut_a_pasted_text(field):
    assert "maxlength" not in str(form()[field])
