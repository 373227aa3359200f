import pytest
from hypothesis import given, strategies as st

from retrieval.packing import ELLIPSIS, Fragment, format_for_context, format_for_tool_output, pack, shorten
from retrieval.types import Hit, Passage


def passage(chunk_id, text, *, document_id=1, position=0, page=None, source="手册.md"):
    return Passage(chunk_id, document_id, 1, "手册", source, page, text, position=position)


def fragment(chunk_id, text, *, document_id=1, page=None, before=(), after=()):
    return Fragment(text, "手册", "手册.md", page, chunk_id, document_id, 1, tuple(before), tuple(after))


def packed(fragments, *, max_tokens=10_000, max_chunk_chars=800, max_sources=3, count_tokens=len, language="en"):
    return pack(
        fragments,
        max_tokens=max_tokens,
        max_chunk_chars=max_chunk_chars,
        max_sources=max_sources,
        count_tokens=count_tokens,
        language=language,
    )


def count_words(text):
    return len(text.split())


def test_fragments_are_numbered_and_cited():
    context = packed([fragment(11, "甲", page=3), fragment(12, "乙")])
    assert context.text == "[1] 手册.md page 3\n甲\n\n[2] 手册.md\n乙"
    first = context.citations[0]
    assert (first.number, first.label, first.chunk_id, first.document_id, first.kb_id, first.page, first.text) == (
        1, "手册.md page 3", 11, 1, 1, 3, "甲",
    )  # fmt: skip


def test_nothing_packs_to_nothing():
    context = packed([], count_tokens=lambda text: len(text) + 2)
    assert (context.text, context.citations) == ("", ())


@pytest.mark.parametrize(
    ("fields", "language", "label"),
    [
        ({"source": "ProductFAQ.md", "page": 3}, "en", "ProductFAQ.md page 3"),
        ({"source": "ProductFAQ.md", "page": 3}, "zh", "ProductFAQ.md 第 3 页"),
        ({"source": "ProductFAQ.md", "page": 3}, "fr", "ProductFAQ.md page 3"),
        ({"source": "", "page": None}, "en", "Product FAQ"),
        ({"source": "two\n[9] lines.md", "page": None}, "en", "two [9] lines.md"),
    ],
)
def test_a_label_is_source_or_title_and_page_on_one_line(fields, language, label):
    assert Fragment("text", "Product FAQ", **fields).label(language) == label


def test_fragments_of_documents_beyond_the_most_are_left_out():
    fragments = [fragment(1, "a", document_id=1), fragment(2, "b", document_id=2), fragment(3, "c", document_id=3)]
    context = packed([*fragments, fragment(4, "d", document_id=1)], max_sources=2)
    assert [(each.number, each.chunk_id) for each in context.citations] == [(1, 1), (2, 2), (3, 4)]


def test_a_fragment_takes_no_more_than_its_characters():
    context = packed([fragment(1, "甲" * 50), fragment(2, "乙" * 20)], max_chunk_chars=20)
    assert [each.text for each in context.citations] == ["甲" * 19 + "…", "乙" * 20]


def test_the_last_fragment_is_cut_to_fit_the_budget():
    words = " ".join(["word"] * 40) + "."
    context = packed([fragment(1, words), fragment(2, words)], max_tokens=60, count_tokens=count_words)
    assert [len(each.text.split()) for each in context.citations] == [40, 16]
    assert context.citations[1].text.endswith("word…")
    assert count_words(context.text) == 60


def test_a_fragment_is_left_out_rather_than_cut_to_a_scrap():
    context = packed([fragment(1, "甲" * 30), fragment(2, "乙" * 30)], max_tokens=60)
    assert [each.chunk_id for each in context.citations] == [1]


def test_smaller_fragments_do_not_overtake_the_one_that_did_not_fit():
    context = packed([fragment(1, "甲" * 30), fragment(2, "乙" * 30), fragment(3, "丙")], max_tokens=65)
    assert [each.chunk_id for each in context.citations] == [1]


@given(
    st.lists(st.text(alphabet="ab。. \n甲", min_size=1, max_size=80), max_size=6),
    st.integers(0, 120),
    st.sampled_from([len, count_words, lambda text: len(text.encode()) // 3 + 2]),
)
def test_the_budget_is_never_exceeded(texts, budget, count_tokens):
    fragments = [fragment(chunk_id, text) for chunk_id, text in enumerate(texts)]
    context = packed(fragments, max_tokens=budget, max_chunk_chars=50, count_tokens=count_tokens)
    assert not context.text or count_tokens(context.text) <= budget
    assert [each.chunk_id for each in context.citations] == list(range(len(context.citations)))
    assert all(len(each.text) <= 50 for each in context.citations)


def test_neighbours_extend_a_fragment_in_reading_order():
    around = Hit(
        passage(5, "中间。", position=5), 0.9, "overlap", {}, {},
        neighbours=(passage(4, "之前。", position=4), passage(6, "之后。", position=6)),
    )  # fmt: skip
    assert packed([Fragment.of_hit(around)]).citations[0].text == "之前。\n中间。\n之后。"


def test_neighbours_that_do_not_fit_whole_stay_out():
    extended = fragment(5, "中间", before=[passage(4, "前" * 10)], after=[passage(6, "后" * 30), passage(7, "远")])
    assert packed([extended], max_chunk_chars=20).citations[0].text == "前" * 10 + "\n中间"


def test_the_nearest_neighbours_come_first():
    extended = fragment(5, "中间", before=[passage(3, "远前"), passage(4, "近前")])
    assert packed([extended], max_chunk_chars=5).citations[0].text == "近前\n中间"


def test_a_chunk_stands_in_a_context_once():
    second, third = passage(2, "乙"), passage(3, "丙")
    context = packed([fragment(1, "甲", after=[second, third]), fragment(4, "丁", before=[second, third])])
    assert [each.text for each in context.citations] == ["甲\n乙\n丙", "丁"]
    context = packed([fragment(1, "甲", after=[second, third]), fragment(2, "乙", after=[third])])
    assert [each.text for each in context.citations] == ["甲", "乙\n丙"]


def test_what_chunks_share_is_not_repeated():
    extended = fragment(5, "保修期是两年，从购买之日算起。", after=[passage(6, "从购买之日算起。请保留发票。")])
    assert packed([extended]).citations[0].text == "保修期是两年，从购买之日算起。请保留发票。"


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("short", 5, "short"),
        ("第一句话。第二句话没有完", 10, "第一句话。…"),
        ("他说：“好的。”然后就走了，再也没有", 10, "他说：“好的。”…"),
        ("It is two years. Not more, not less.", 24, "It is two years.…"),
        ("Version 1.5 is the newest of them all", 13, "Version 1.5…"),
        ("The price is 15000 euros", 16, "The price is…"),
        ("First line\nsecond line goes on", 15, "First line…"),
        ("好。" + "没有标点的很长的一句话", 10, "好。没有标点的很长…"),
        ("甲乙丙", 2, "甲…"),
        ("甲乙丙", 1, ""),
        ("甲乙丙", 0, ""),
    ],
)
def test_a_text_is_cut_after_a_sentence_else_before_a_word(text, limit, expected):
    assert shorten(text, limit) == expected


def test_a_cut_reads_no_further_back_than_a_word_is_long():
    assert shorten("a" * 1_000_000 + "。" + "a" * 50, 1_000_002) == "a" * 1_000_000 + "。" + ELLIPSIS
    assert shorten("a" * 1_000_000 + "中a", 1_000_001) == "a" * 1_000_000 + ELLIPSIS
    assert shorten("中" * 1_000 + "a" * 1_000, 1_900) == "中" * 1_000 + "a" * 899 + ELLIPSIS


@given(st.text(alphabet="ab。.” \n甲", max_size=60), st.integers(0, 70))
def test_a_cut_text_is_a_beginning_of_the_whole(text, limit):
    cut = shorten(text, limit)
    assert len(cut) <= limit
    assert cut == text if len(text) <= limit else text.startswith(cut.removesuffix("…"))


def chunk(text, *, source="手册.md", page=None, **ids):
    return {
        "text": text,
        "source": source,
        "title": "手册",
        "page": page,
        "score": 0.5,
        "score_scale": "overlap",
        **ids,
    }


def test_a_chunk_of_the_api_keeps_its_ids():
    made = Fragment.of_chunk(chunk("甲", chunk_id=7, document_id=2, knowledge_base_id=3))
    assert made == Fragment("甲", "手册", "手册.md", None, chunk_id=7, document_id=2, kb_id=3)


def test_a_context_names_every_source_of_the_chunks_given():
    chunks = [chunk(str(number), source=f"{number}.md") for number in range(5)]
    context = format_for_context(chunks, 1_000, max_chunk_chars=800)
    assert context.startswith("[1] 0.md\n0\n\n[2] 1.md\n1")
    assert context.endswith("[5] 4.md\n4")


@pytest.mark.parametrize("max_chars", range(0, 60, 5))
def test_a_context_never_exceeds_its_characters(max_chars):
    chunks = [chunk("甲" * 20), chunk("乙" * 20)]
    assert len(format_for_context(chunks, max_chars, max_chunk_chars=800)) <= max_chars


def test_the_first_fragment_is_cut_to_what_there_is_room_for():
    assert format_for_context([chunk("甲" * 100)], 40, max_chunk_chars=800) == "[1] 手册.md\n" + "甲" * 29 + "…"


def test_tool_output_names_pages_scores_and_their_scale():
    output = format_for_tool_output([chunk("甲" * 9, page=2), chunk("乙")], 1, max_chunk_chars=5, language="zh")
    assert output == "[1] 手册.md 第 2 页 (overlap 0.500)\n甲甲甲甲…"


def test_showing_tool_output_loads_nothing():
    link = "[Log in](https://evil.example)"
    output = format_for_tool_output([{**chunk(f"![]{link}"), "source": f"![{link}.pdf"}], 1, max_chunk_chars=800)
    assert output.count("https://evil.example") == 2
    assert "](" not in output


@pytest.mark.parametrize(
    ("language", "sentence"),
    [("en", "No relevant content found in the knowledge base."), ("zh", "知识库中没有找到相关内容。")],
)
def test_tool_output_says_when_there_is_nothing(language, sentence):
    assert format_for_tool_output([], 3, max_chunk_chars=800, language=language) == sentence


def test_of_a_long_passage_the_part_that_was_found_is_kept():
    found = "这里说的是租期最长二十年。"
    text = "前面的话。" * 100 + found + "后面的话。" * 100
    [citation] = packed([Fragment(text, "手册", "手册.md", None, 1, matched=found)], max_chunk_chars=80).citations
    assert found in citation.text
    assert len(citation.text) <= 80
    assert citation.text.startswith(f"{ELLIPSIS}前面的话。")
    assert citation.text.endswith(f"后面的话。{ELLIPSIS}")


def test_of_a_long_table_the_rows_that_were_found_are_kept_without_the_header_that_their_part_repeats():
    header, rows = "| 型号 | 保修 |\n| --- | --- |\n", [f"| TH-{number:02d} | 24 个月 |" for number in range(40)]
    found = "\n".join(rows[20:23])
    text = header + "\n".join(rows)
    [citation] = packed([Fragment(text, "表", "表.md", None, 1, matched=header + found)], max_chunk_chars=120).citations
    assert found in citation.text
    assert len(citation.text) <= 120


@pytest.mark.parametrize("found", ["前面的话。", "不在其中的话。", ""])
def test_a_passage_is_read_from_its_beginning_where_that_shows_what_was_found(found):
    text = "前面的话。" * 100
    [citation] = packed([Fragment(text, "手册", "手册.md", None, 1, matched=found)], max_chunk_chars=80).citations
    assert citation.text == shorten(text, 80)


@given(
    st.text(alphabet="甲。 a", max_size=200), st.text(alphabet="乙b。", min_size=1, max_size=120), st.integers(10, 150)
)
def test_an_excerpt_is_never_longer_than_the_limit_and_holds_what_fits(before, found, limit):
    fragment = Fragment(before + found + before, "手册", "手册.md", None, 1, matched=found)
    [citation] = packed([fragment], max_chunk_chars=limit).citations
    assert len(citation.text) <= limit
    assert found in citation.text or len(found) + 2 * len(ELLIPSIS) > limit


def test_a_tool_reads_the_part_that_was_found():
    chunk = {"text": "前" * 500 + "找到的。", "matched_text": "找到的。", "title": "手册", "source": "", "page": None}
    shown = format_for_tool_output([chunk | {"score": 1.0, "score_scale": "cosine"}], 1, max_chunk_chars=60)
    assert shown.endswith("找到的。")


@pytest.mark.parametrize(("seconds", "time"), [(0, "0:00"), (754, "12:34"), (3723, "1:02:03"), (36_000, "10:00:00")])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_recording_is_cited_by_its_time_in_place_of_a_page(seconds, time, language):
    cited = Fragment("甲", "课程", "课程.srt", 3, 1, 1, 1, seconds=seconds)
    assert packed([cited], language=language).citations[0].label == f"课程.srt {time}"
    assert (
        Fragment.of_hit(Hit(Passage(1, 1, 1, "课程", "课程.srt", 3, "甲", seconds=seconds), 1, "rrf", {}, {})).label(
            language
        )
        == f"课程.srt {time}"
    )
    chunk = {"text": "甲", "title": "课程", "source": "课程.srt", "page": None, "seconds": seconds}
    assert format_for_context([chunk], 100, max_chunk_chars=100) == f"[1] 课程.srt {time}\n甲"
