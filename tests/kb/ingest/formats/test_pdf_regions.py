"""Where the words of a PDF stand: each box holds the letters of its block, and of no other."""

import io
from dataclasses import replace

import pypdfium2
import pytest
from reportlab.pdfgen import canvas

from kb.ingest.chunkers.strategies import ChunkSettings, split
from kb.ingest.formats.pdf import ocr
from kb.ingest.parser.parse import parse
from tests.kb.ingest.parser.documents import make_picture_pdf
from tests.quality.parsing.cases import cases
from tests.quality.parsing.conftest import printed  # noqa: F401 - a fixture

WORDS = ("The", "thermostat", "measures", "the", "temperature", "of", "the", "room")
WIDTH, HEIGHT = 595, 842
# Words that the parser repeats, leaves out or joins: tables over page breaks, hyphens, edges.
LEAST_SAME = 0.97


def words_of(page, textpage, box):
    """The letters whose middle lies in a box of shares of the page as it is seen."""
    left, bottom, right, top = page.get_cropbox()
    width, height = page.get_size()
    turn = {
        0: lambda x, y: (x - left, y - bottom),
        90: lambda x, y: (y - bottom, right - x),
        180: lambda x, y: (right - x, top - y),
        270: lambda x, y: (top - y, x - left),
    }[page.get_rotation()]
    found = []
    for index in range(textpage.count_chars()):
        x1, y1, x2, y2 = textpage.get_charbox(index)
        x, y = turn((x1 + x2) / 2, (y1 + y2) / 2)
        letter = textpage.get_text_range(index, 1)
        if letter.strip() and box[0] <= x / width <= box[2] and box[1] <= 1 - y / height <= box[3]:
            found.append(letter)
    return "".join(found)


def plain(text):
    return sorted(each for each in text if each.isalnum())


def share(one, other):
    """How much of the letters of two texts is the same, whatever their order."""
    left = list(plain(one))
    same = 0
    for each in plain(other):
        if each in left:
            left.remove(each)
            same += 1
    return 2 * same / max(1, len(plain(one)) + len(plain(other)))


def blocks_of(data):
    """The text and the region of each block."""
    for section in parse(data, "a.pdf").sections:
        starts = [each.start for each in section.regions]
        for region, end in zip(section.regions, [*starts[1:], len(section.text)], strict=True):
            yield section.text[region.start : end].strip(), region


def check(data, *, least=1.0):
    found = list(blocks_of(data))
    assert found
    with pypdfium2.PdfDocument(data) as document:
        for text, region in found:
            page = document[region.page - 1]
            assert share(text, words_of(page, page.get_textpage(), region.box)) >= least, text
    return found


def drawn(draw, *, rotation=0):
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream, pagesize=(WIDTH, HEIGHT))
    sheet.setFont("Helvetica", 10)
    draw(sheet)
    sheet.setPageRotation(rotation)
    sheet.showPage()
    sheet.save()
    return stream.getvalue()


def paragraph(sheet, x, y, lines, width=3):
    for number in range(lines):
        sheet.drawString(x, y - 14 * number, " ".join(WORDS[:width]))


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_box_is_on_the_page_as_it_is_seen(rotation):
    def draw(sheet):
        # Upright on the page as it is turned; below the turn it is as high as it is wide.
        sheet.translate(*{0: (0, 0), 90: (HEIGHT, 0), 180: (WIDTH, HEIGHT), 270: (0, WIDTH)}[rotation])
        sheet.rotate(rotation)
        sheet.setFont("Helvetica", 10)
        paragraph(sheet, 60, 500, 3)
        paragraph(sheet, 60, 300, 2)

    (_, first), (_, second) = check(drawn(draw, rotation=rotation))
    assert first.box[0] == pytest.approx(60 / WIDTH, abs=0.005)
    assert second.box[0] == pytest.approx(60 / WIDTH, abs=0.005)
    assert first.box[1] == pytest.approx(1 - 508 / HEIGHT, abs=0.01)
    assert second.box[3] == pytest.approx(1 - 284 / HEIGHT, abs=0.01)


def test_a_paragraph_that_runs_on_in_the_next_column_has_a_region_in_each():
    def draw(sheet):
        paragraph(sheet, 60, 200, 8, 6)
        paragraph(sheet, 320, 700, 8, 6)

    (above, first), (below, second) = check(drawn(draw))
    assert above.startswith("The thermostat")
    assert below.startswith("The thermostat")
    assert (first.box[0], second.box[0]) == (
        pytest.approx(60 / WIDTH, abs=0.005),
        pytest.approx(320 / WIDTH, abs=0.005),
    )
    assert first.box[2] < second.box[0]


def test_a_box_is_counted_from_the_corner_of_what_is_shown():
    data = drawn(lambda sheet: paragraph(sheet, 160, 500, 2))
    with pypdfium2.PdfDocument(data) as document:
        document[0].set_cropbox(100, 300, 500, 700)
        stream = io.BytesIO()
        document.save(stream)
    [(_, region)] = check(stream.getvalue())
    assert region.box[:2] == (pytest.approx(60 / 400, abs=0.005), pytest.approx((700 - 508) / 400, abs=0.01))


def test_ink_is_within_the_boxes_and_nowhere_else():
    data = drawn(lambda sheet: (paragraph(sheet, 60, 700, 3), paragraph(sheet, 60, 400, 2)))
    with pypdfium2.PdfDocument(data) as document:
        ink = document[0].render(scale=4).to_numpy()[:, :, 0] < 128
    height, width = ink.shape
    total = ink.sum()
    inside = 0
    for _, region in blocks_of(data):
        left, top, right, bottom = region.box
        part = ink[
            round(top * height) - 1 : round(bottom * height) + 2, round(left * width) - 1 : round(right * width) + 2
        ]
        assert part.any(axis=0)[:8].any()  # the box is not larger than its words
        assert part.any(axis=0)[-8:].any()
        inside += part.sum()
    assert inside == total


TAGS = {"article", "two columns", "three columns", "ruled", "unruled", "merged", "notes", "aside", "lists", "landscape"}
PRINTED = [case for case in cases() if case.program == "chromium" and not case.scan and case.tags & TAGS]


@pytest.fixture(scope="module")
def files(printed):  # noqa: F811
    return {case.name: file.read_bytes() for case, file in printed(PRINTED)}


# A merged cell is one on the page, and several in the text.
@pytest.mark.parametrize("name", [case.name for case in PRINTED if "merged" not in case.tags])
def test_boxes_hold_the_words_of_their_blocks_in_printed_documents(files, name):
    check(files[name], least=LEAST_SAME)


@pytest.mark.parametrize("name", [case.name for case in PRINTED if case.tags & {"ruled", "merged", "article"}])
def test_every_word_of_a_chunk_is_in_its_boxes(files, name):
    document = parse(files[name], "a.pdf")
    with pypdfium2.PdfDocument(files[name]) as pages:
        for draft in split(document, ChunkSettings(size=300, overlap=0)):
            there = "".join(
                words_of(pages[each.page - 1], pages[each.page - 1].get_textpage(), each.box)
                for each in dict.fromkeys(replace(region, start=0) for region in draft.regions)
            )
            missing = [each for each in set(plain(draft.text)) if each not in set(plain(there))]
            assert not missing


@pytest.mark.skipif(not ocr.is_installed(), reason="the extra for text recognition is not installed")
def test_words_that_were_recognised_have_their_places():
    def draw(sheet):
        sheet.setFont("Helvetica", 18)
        sheet.drawString(100, 600, "The thermostat is on the wall.")
        sheet.drawString(100, 300, "The warranty is two years.")

    with pypdfium2.PdfDocument(drawn(draw)) as document:
        picture = document[0].render(scale=2).to_pil()
    [(text, region)] = blocks_of(make_picture_pdf(picture))
    assert "".join(text.split()) == "Thethermostatisonthewall.Thewarrantyistwoyears."
    width, height = picture.size
    left, top, right, bottom = picture.convert("L").point(lambda value: 255 * (value < 128)).getbbox()
    assert region.box == pytest.approx((left / width, top / height, right / width, bottom / height), abs=0.012)
