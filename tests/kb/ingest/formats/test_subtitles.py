import pytest
from hypothesis import given, strategies as st

from kb.ingest.parser.parse import is_recording_head, parse
from kb.ingest.parser.parsed import Section


def read(text, name="a.srt"):
    return parse(text.encode(), name)


def times(section):
    """What is said from each time to the next."""
    ends = [region.start for region in section.regions[1:]] + [len(section.text)]
    pairs = zip(section.regions, ends, strict=True)
    return [(region.seconds, section.text[region.start : end].strip()) for region, end in pairs]


def srt(*cues):
    """Cues of (start, end, text), in seconds."""
    return "\n\n".join(f"{n}\n{clock(a)} --> {clock(b)}\n{text}" for n, (a, b, text) in enumerate(cues, start=1))


def clock(seconds):
    whole = int(seconds)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02},{round(1000 * (seconds - whole)):03}"


def test_cues_are_joined_into_sentences_and_a_pause_ends_a_paragraph():
    document = read(srt((1, 3, "大家好，今天讲"), (3, 6, "退货规则。"), (754, 758, "退货须在七天之内提出。")), "课.srt")
    [section] = document.sections
    assert section.text == "大家好，今天讲退货规则。\n\n退货须在七天之内提出。"
    assert times(section) == [(1, "大家好，今天讲退货规则。"), (754, "退货须在七天之内提出。")]
    assert (document.title, document.mime) == ("课", "application/x-subrip")


def test_english_cues_meet_with_a_space():
    assert read(srt((1, 3, "Goods may be"), (3, 6, "returned."))).sections[0].text == "Goods may be returned."


def test_a_long_paragraph_remembers_the_times_of_its_parts():
    cues = [(4 * n, 4 * n + 3, f"第{n}句话说到这里，") for n in range(20)]
    [section] = read(srt(*cues, (80, 81, "完。"), (81, 82, "好。"), (82, 83, "。"))).sections
    assert "\n\n" not in section.text
    assert [seconds for seconds, _ in times(section)] == [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80]
    assert times(section)[1] == (8, "第2句话说到这里，第3句话说到这里，")


def test_a_paragraph_ends_with_a_sentence_when_it_is_long_enough():
    cues = [(n, n + 1, f"第{n}句话就说到这里为止。") for n in range(60)]
    paragraphs = read(srt(*cues)).sections[0].text.split("\n\n")
    assert len(paragraphs) == 3
    assert all(paragraph.endswith("为止。") for paragraph in paragraphs)


def test_without_punctuation_each_cue_is_a_line():
    assert read(srt((1, 2, "大家好"), (2, 3, "今天讲退货"))).sections[0].text == "大家好\n今天讲退货"


def test_tags_styling_and_positions_are_left_out():
    text = '1\n00:00:01,000 --> 00:00:02,000 X1:40 X2:60\n{\\an8}<i>Tom</i> &amp; <font color="red">Ann</font>.\n'
    assert read(text).sections[0].text == "Tom & Ann."


def test_webvtt_keeps_speakers_and_drops_notes_styles_and_identifiers():
    text = (
        "WEBVTT - 培训\n\nNOTE written by hand\nfor nobody\n\nSTYLE\n::cue { color: red }\n\nintro\n"
        "00:01.000 --> 00:02.000 align:start\n<v Fred>Hi <c.loud>there</c>.\n<v.first 张三>你好。\n\n"
        "NOTE between\n\n1:00:02.000 --> 1:00:03.000\n<v 张三>再<00:02.500>见。</v>\n"
    )
    document = read(text, "a.vtt")
    assert document.title == "培训"
    assert times(document.sections[0]) == [(1, "Fred: Hi there."), (1, "张三：你好。"), (3602, "张三：再见。")]


def test_lines_that_roll_up_are_said_once():
    text = (
        "WEBVTT\nKind: captions\n\n00:00.000 --> 00:02.000\n \nhello<00:00.500><c> world</c>\n\n"
        "00:02.000 --> 00:02.010\nhello world\n \n\n00:02.010 --> 00:04.000\nhello world\nthis<00:03.000><c> is</c>\n"
    )
    assert read(text, "a.vtt").sections[0].text == "hello world\nthis is"


def test_times_that_run_backwards_begin_a_paragraph():
    [section] = read(srt((100, 101, "后面的话。"), (5, 6, "前面的话。"))).sections
    assert times(section) == [(100, "后面的话。"), (5, "前面的话。")]


@pytest.mark.parametrize("name", ["a.srt", "a.vtt"])
def test_without_times_it_is_plain_text(name):
    assert read("只有文字。", name).sections == (Section("只有文字。"),)


def test_subtitles_in_gbk_with_windows_line_ends():
    data = srt((1, 2, "退货须在七天之内提出。")).replace("\n", "\r\n").encode("gbk")
    assert parse(data, "a.srt").sections[0].text == "退货须在七天之内提出。"


WORDS = st.text(alphabet="甲乙丙 ab。.<>&{}\\-12", min_size=1, max_size=12)


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 30), WORDS), min_size=1, max_size=30))
def test_times_ascend_in_the_text_and_each_is_that_of_a_cue(cues):
    source = srt(*((start, start + length, text) for start, length, text in cues), (0, 1, "完"))
    for section in read(source).sections:
        starts = [region.start for region in section.regions]
        assert starts == sorted(set(starts))
        assert all(0 <= start < len(section.text) for start in starts)
        assert {region.seconds for region in section.regions} <= {start for start, _, _ in cues} | {0}


@pytest.mark.parametrize(
    "text",
    [
        "[00:00:03] 张三：你好。\n[00:12:34] 李四：退货七天。\n[01:02:03] 张三：好。",
        "会议记录\n\n00:00:03 张三：你好。\n00:12:34 李四：退货七天。\n01:02:03 张三：好。",
        "张三(00:00:03): 你好。\n李四(00:12:34): 退货七天。\n张三(01:02:03): 好。",
        "张三 00:00:03\n你好。\n\n李四 00:12:34\n退货\n七天。\n\n张三 01:02:03\n好。",
        "[00:03.5] 张三：你好。\n[12:34] 李四：退货七天。\n[62:03] 张三：好。",
    ],
    ids=["brackets", "bare", "after the name", "a line of its own", "minutes"],
)
def test_a_transcript_with_times_is_read_as_what_is_said(text):
    *head, section = read(text, "a.txt").sections
    assert [each.text for each in head] == (["会议记录"] if text.startswith("会议") else [])
    assert times(section) == [(3, "张三：你好。"), (754, "李四：退货七天。"), (3723, "张三：好。")]
    assert is_recording_head(text.encode("gbk"), ".txt")


@pytest.mark.parametrize(
    "text",
    [
        "09:00 签到\n09:30 开会\n12:00 午饭",
        "12:00:01 启动\n12:00:02 连接\n12:00:03 完成",
        "2024-01-01 00:00:01 INFO 启动\n2024-01-01 00:00:02 INFO 连接\n2024-01-01 00:00:03 INFO 完成",
        "列车 00:10:00 到达，停 00:02:00，00:12:00 开。\n没有别的时间。\n第三行。",
        "[1] 甲\n[2] 乙\n[3] 丙",
        "[00:00:09] 甲\n[00:00:05] 乙\n[00:00:07] 丙",
    ],
    ids=["agenda", "times of day", "log", "sentences", "references", "not ascending"],
)
def test_an_ordinary_text_is_no_transcript(text):
    assert read(text, "a.txt").sections == (Section(text),)
    assert not is_recording_head(text.encode(), ".txt")
