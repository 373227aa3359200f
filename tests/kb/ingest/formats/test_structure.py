"""What a file is shown as: headings, paragraphs, lists and tables, and nothing that could do something."""

import json
from io import BytesIO

import pytest

from kb.ingest.formats.structure import structure_job
from kb.ingest.parser.parsed import DEFAULT_READING, ParseError
from tests.kb.ingest.parser.documents import make_docx, make_pptx, make_xlsx
from tests.kb.ingest.parser.hostile import deep


def shown(data, name):
    data = data.encode() if isinstance(data, str) else data
    return structure_job(BytesIO(data), name, {"word_parts": list(DEFAULT_READING.word_parts)})["blocks"]


def kinds(blocks):
    return [
        (block["kind"], block["level"], "|".join("".join(run["text"] for run in cell) for cell in block["cells"]))
        for block in blocks
    ]


def test_markdown_keeps_headings_lists_tables_and_code():
    text = "---\ntitle: x\n---\n# One\n\nText.\n\n- a\n  - b\n\n| h | k |\n|---|---|\n| 1 | 2 |\n\n```\nx  y\n```\n\n> said\n"
    assert kinds(shown(text, "a.md")) == [
        ("heading", 1, "One"),
        ("text", 0, "Text."),
        ("item", 1, "a "),
        ("item", 2, "b"),
        ("row", 0, "h|k"),
        ("row", 0, "1|2"),
        ("code", 0, "x  y\n"),
        ("quote", 0, "said"),
    ]


def test_a_page_keeps_what_it_shows_and_its_looks():
    page = "<nav>Home</nav><h2>A</h2><p>one <b>two</b> <i>three</i><br>four</p><table><tr><th>n<tr><td>1</table>"
    blocks = shown(f"<html><body>{page}</body></html>", "a.html")
    assert kinds(blocks)[0] == ("text", 0, "Home")
    (paragraph,) = [block for block in blocks if "two" in json.dumps(block)]
    assert [(run["text"], run["marks"]) for run in paragraph["cells"][0]] == [
        ("one ", ""),
        ("two", "b"),
        (" ", ""),
        ("three", "i"),
        ("\n", ""),
        ("four", ""),
    ]
    assert [block["is_header"] for block in blocks if block["kind"] == "row"] == [True, False]


@pytest.mark.parametrize("name", ["a.html", "a.md"])
def test_nothing_of_a_page_can_do_anything(name):
    page = """<html><body><p>Seen</p>

<script>alert(1)</script><style>p {background: url(http://evil.example)}</style>

<svg onload="alert(1)"><text>drawn</text></svg><iframe src="http://evil.example"></iframe><object data="x">o</object>

<p onclick="alert(1)"><a href="javascript:alert(1)">one</a> <a href=" JaVaScRiPt:alert(1)">two</a>
<a href="data:text/html,x">three</a> <a href="/here">four</a> <a href="https://example.com/a">five</a></p>

<img src="http://evil.example/x.gif" onerror="alert(1)" alt="Seen too"><form action="http://evil.example"><input value="x"></form>

<p style="display:none">hidden</p><template>kept</template></body></html>"""
    blocks = shown(page, name)
    said = json.dumps(blocks)
    assert [run["link"] for block in blocks for cell in block["cells"] for run in cell if run["link"]] == [
        "https://example.com/a"
    ]
    assert "Seen too" in said
    for never in ("evil", "alert", "drawn", "javascript", "onerror", "hidden", "kept", "data:"):
        assert never not in said.lower(), never


def test_records_of_a_sheet_are_rows_below_their_names():
    blocks = shown(make_xlsx(["Model", "Price"], ["A-1", 10], ["A-2", 20]), "a.xlsx")
    assert kinds(blocks) == [
        ("heading", 1, "Sheet"),
        ("row", 0, "Model|Price"),
        ("row", 0, "A-1|10"),
        ("row", 0, "A-2|20"),
    ]
    assert [block["text"] for block in blocks] == ["", "", "Model: A-1\nPrice: 10", "Model: A-2\nPrice: 20"]
    assert [block["is_added"] for block in blocks] == [True, True, False, False]


def test_slides_have_their_numbers_and_what_is_said_its_time():
    assert [block["page"] for block in shown(make_pptx(("One", "a"), ("Two", "b")), "a.pptx")] == [1, 1, 2, 2]
    spoken = "1\n00:00:05,000 --> 00:00:07,000\nHello there.\n\n2\n00:01:01,000 --> 00:01:02,000\nBye.\n"
    assert [block["seconds"] for block in shown(spoken, "a.srt")] == [5, 61]


def test_words_text_and_mail_are_paragraphs():
    assert kinds(shown(make_docx("One", "Two"), "a.docx")) == [("text", 0, "One"), ("text", 0, "Two")]
    assert kinds(shown("One\nline\n\nTwo", "a.txt")) == [("text", 0, "One\nline"), ("text", 0, "Two")]
    mail = shown("Subject: Offer\nFrom: a@x.example\n\nThe price is 5.", "a.eml")
    assert "The price is 5." in json.dumps(mail)


def test_a_long_paragraph_is_several_and_a_long_file_is_cut():
    blocks = shown("x" * 10_000, "a.txt")
    assert [len(block["cells"][0][0]["text"]) for block in blocks] == [4_000, 4_000, 2_000]
    data = structure_job(BytesIO(b"words and more\n\n" * 250_000), "a.txt", {"word_parts": []})
    assert data["is_cut"]
    assert len(data["blocks"]) < 250_000


@pytest.mark.parametrize("name", ["a.html", "a.md"])
def test_what_nests_too_deeply_is_refused(name):
    with pytest.raises(ParseError) as caught:
        shown(deep("div", 100_000), name)
    assert caught.value.code == "nested_too_deeply"
