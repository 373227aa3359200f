import io
import struct
import zlib

import docx
import PIL.Image
import pptx
import pytest
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen import canvas

from kb.base.findings import RemarkCode
from kb.ingest.formats import pictures
from kb.ingest.formats.pdf import ocr
from kb.ingest.parser.parse import parse
from kb.ingest.parser.sandbox import Limits, parse_file
from tests.kb.ingest.parser.documents import data_address, make_epub, make_picture, save

installed = pytest.mark.skipif(not ocr.is_installed(), reason="the extra for text recognition is not installed")


def markdown(*blocks):
    """Blocks of a Markdown file; bytes are a picture."""
    shown = (f"![]({data_address(each)})" if isinstance(each, bytes) else each for each in blocks)
    return parse("\n\n".join(shown).encode(), "a.md")


def shown_text(document, number):
    """The parts of the text that stand for a picture."""
    parts = []
    for section in document.sections:
        ends = [*(region.start for region in section.regions[1:]), len(section.text)]
        for region, end in zip(section.regions, ends, strict=True):
            if region.picture == number:
                parts.append(section.text[region.start : end].strip())
    return [part for part in parts if part]


def codes(document):
    return [(remark.code, remark.params["count"]) for remark in document.remarks]


def test_a_picture_in_markdown_stands_for_its_caption_and_its_alternative_text():
    document = parse(
        f"# 泵站\n\n见下图。\n\n![水泵和水箱]({data_address(make_picture())})\n\n图 1-2 泵站布置\n\n其余文字。".encode(),
        "a.md",
    )
    [section] = document.sections
    assert section.text == "泵站\n\n见下图。\n\n图 1-2 泵站布置\n\n> 水泵和水箱\n\n其余文字。"
    assert shown_text(document, 0) == ["图 1-2 泵站布置\n\n> 水泵和水箱"]
    [picture] = document.pictures
    assert (picture.caption, picture.alternative, picture.mime) == ("图 1-2 泵站布置", "水泵和水箱", "image/png")
    assert (picture.width, picture.height) == (90, 60)


def test_a_picture_without_words_belongs_to_the_block_before_it():
    document = markdown("第一段。", "第二段。", make_picture(), "第三段。")
    assert document.sections[0].text == "第一段。\n\n第二段。\n\n第三段。"
    assert shown_text(document, 0) == ["第二段。"]


def test_a_picture_before_all_text_belongs_to_the_first_block():
    assert shown_text(markdown(make_picture(), "第一段。", "第二段。"), 0) == ["第一段。"]


def test_pictures_side_by_side_are_all_shown():
    document = markdown("第一段。", make_picture(1), make_picture(2), "后文。")
    assert len(document.pictures) == 2
    assert {region.picture for region in document.sections[0].regions} == {0, 1, None}
    assert document.sections[0].regions[-1].picture is None


def test_a_sentence_that_speaks_of_a_figure_is_no_caption():
    document = markdown("前文。", make_picture(), "图1显示了泵站的布置和所有的管道，下面逐一说明。")
    assert document.pictures[0].caption == ""
    assert shown_text(document, 0) == ["前文。"]


def test_html_takes_captions_of_figures_and_data_addresses_only():
    page = (
        "<h1>Guide</h1><p>Before.</p>"
        f"<figure><img alt='A pump' src='{data_address(make_picture())}'><figcaption>The pump</figcaption></figure>"
        "<p><img alt='elsewhere' src='https://example.org/a.png'><img src='file:///etc/passwd'></p>"
        f"<p>{'After it the text goes on. ' * 30}</p>"
    )
    document = parse(page.encode(), "a.html")
    [picture] = document.pictures
    assert (picture.caption, picture.alternative) == ("The pump", "A pump")
    assert shown_text(document, 0) == ["The pump\n\n> A pump"]


def test_pictures_of_a_hidden_part_of_a_page_are_left_out():
    page = f"<p>Shown.</p><div hidden><img src='{data_address(make_picture())}'></div>"
    assert parse(page.encode(), "a.html").pictures == ()


def test_word_tells_alternative_text_and_style_of_the_caption():
    document = docx.Document()
    document.add_paragraph("Before.")
    document.add_picture(io.BytesIO(make_picture()))
    document.inline_shapes[0]._inline.docPr.set("descr", "A pump and a tank")
    document.add_paragraph("The pump of the plant", style="Caption")
    document.add_table(1, 2).cell(0, 0).paragraphs[0].add_run().add_picture(io.BytesIO(make_picture(1)))
    read = parse(save(document), "a.docx")
    assert [each.caption for each in read.pictures] == ["The pump of the plant", ""]
    assert shown_text(read, 0) == ["The pump of the plant\n\n> A pump and a tank"]


def test_a_name_that_a_program_gave_is_no_alternative_text():
    document = docx.Document()
    document.add_picture(io.BytesIO(make_picture()))
    document.inline_shapes[0]._inline.docPr.set("descr", "图片 1")
    document.add_paragraph("Text.")
    assert parse(save(document), "a.docx").pictures[0].alternative == ""


def test_a_slide_gives_its_number_to_a_picture():
    presentation = pptx.Presentation()
    for number in range(2):
        slide = presentation.slides.add_slide(presentation.slide_layouts[5])
        slide.shapes.title.text = f"Slide {number}"
        slide.shapes.add_picture(io.BytesIO(make_picture(number)), 0, 0)
    assert [each.page for each in parse(save(presentation), "a.pptx").pictures] == [1, 2]


def test_a_book_holds_the_pictures_that_its_chapters_name():
    chapter = {"一": "见图。<img alt='水泵' src='img/pump.png'/><img src='http://example.org/img/pump.png'/>"}
    book = make_epub(chapter, **{"OEBPS/img/pump.png": make_picture()})
    [picture] = parse(book, "a.epub").pictures
    assert picture.alternative == "水泵"


def pdf(*pages):
    """Each page is a list of (y, text) and (y, bytes of a picture), from below, in points."""
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream, pagesize=(600, 800))
    for page in pages:
        for y, what in page:
            if isinstance(what, bytes):
                sheet.drawImage(ImageReader(io.BytesIO(what)), 60, y, 180, 120)
            else:
                sheet.drawString(60, y, what)
        sheet.showPage()
    sheet.save()
    return stream.getvalue()


def test_a_picture_on_a_page_stands_below_the_text_above_it():
    data = pdf(
        [
            (740, "This text stands above the picture, and is long enough to be one."),
            (560, make_picture(size=(360, 240))),
            (540, "Figure 2: The plant"),
            (480, "This text stands below the picture, and goes on for a while too."),
        ]
    )
    document = parse(data, "a.pdf")
    [picture] = document.pictures
    assert (picture.page, picture.caption) == (1, "Figure 2: The plant")
    assert picture.box == pytest.approx((0.1, 0.15, 0.4, 0.3), abs=0.001)
    assert shown_text(document, 0)[0] == "Figure 2: The plant"
    with PIL.Image.open(io.BytesIO(picture.data)) as image:
        assert image.size == pytest.approx((360, 240), abs=1)


def test_what_repeats_on_many_pages_is_left_out_and_what_does_not_is_kept_once():
    logo, drawing = make_picture(1, size=(120, 80)), make_picture(2, size=(120, 80))
    pages = [
        [(740, f"Page {number} has a text of its own, which nobody mistakes for an edge."), (600, logo)]
        for number in range(4)
    ]
    pages[1].append((400, drawing))
    pages[2].append((400, drawing))
    [picture] = parse(pdf(*pages), "a.pdf").pictures
    assert (picture.page, picture.box[1]) == (2, pytest.approx(0.35, abs=0.001))


@installed
def test_words_on_a_picture_are_read_in_the_child_and_stand_in_the_text(tmp_path):
    image = PIL.Image.new("RGB", (420, 160), "white")
    draw = PIL.ImageDraw.Draw(image)
    draw.text((40, 50), "Pump P-101", fill="black", font_size=40)
    draw.rectangle((10, 10, 410, 150), outline="black", width=3)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    path = tmp_path / "file"
    path.write_text(f"The plant.\n\n![]({data_address(stream.getvalue())})\n\nIt runs.")
    document = parse_file(path, "a.md")
    assert document.pictures[0].recognised == "Pump P-101"
    assert document.sections[0].text == "The plant.\n\n> Pump P-101\n\nIt runs."


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def bomb(side):
    """A PNG of a plain colour that unpacks to side * side pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    rows = zlib.compressobj(9)
    packed = b"".join(rows.compress(b"\0" * (side // 8 + 1)) for _ in range(side)) + rows.flush()
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def rotated():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    return make_picture(kind="JPEG", exif=exif)


def sixteen_bits():
    image = PIL.Image.radial_gradient("L").convert("I").point(lambda value: value * 256).convert("I;16")
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def moving(frames):
    stream = io.BytesIO()
    first, *rest = (PIL.Image.open(io.BytesIO(make_picture(number))) for number in range(frames))
    first.save(stream, "GIF", save_all=True, append_images=rest)
    return stream.getvalue()


def see_through():
    image = PIL.Image.open(io.BytesIO(make_picture())).convert("P")
    stream = io.BytesIO()
    image.save(stream, "PNG", transparency=0)
    return stream.getvalue()


KEPT = {
    "moving": (moving(5), (90, 60)),
    "CMYK": (make_picture(mode="CMYK", kind="JPEG"), (90, 60)),
    "16 bits": (sixteen_bits(), (256, 256)),
    "palette with transparency": (see_through(), (90, 60)),
    "rotated by EXIF": (rotated(), (60, 90)),
    "grey with alpha": (make_picture(mode="LA"), (90, 60)),
    "one bit": (make_picture(mode="1"), (90, 60)),
    "large": (make_picture(size=(4000, 3000)), (1600, 1200)),
    "TIFF": (make_picture(kind="TIFF"), (90, 60)),
    "WebP": (make_picture(kind="WEBP"), (90, 60)),
}


@pytest.mark.parametrize("name", KEPT)
def test_pictures_of_all_kinds_are_written_again_as_png_or_jpeg(name, monkeypatch):
    monkeypatch.setattr(ocr.importlib.util, "find_spec", lambda _name: None)
    data, size = KEPT[name]
    document = markdown("Text.", data)
    [picture] = document.pictures
    with PIL.Image.open(io.BytesIO(picture.data)) as image:
        image.load()
        assert image.size == size == (picture.width, picture.height)
        assert image.mode in ("L", "RGB")
        assert not image.getexif()
        assert PIL.Image.MIME[image.format] == picture.mime
        low, high = image.convert("L").getextrema()
        assert high - low > 100


LEFT_OUT = {
    "a bomb": (bomb(12_000), RemarkCode.PICTURES_DAMAGED),
    "cut off": (make_picture(size=(400, 400), kind="JPEG")[:900], RemarkCode.PICTURES_DAMAGED),
    "no picture": (b"\x89PNG\r\n\x1a\nnothing", RemarkCode.PICTURES_DAMAGED),
    "a script": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", RemarkCode.PICTURES_DRAWN),
    "a metafile": (b"\x01\0\0\0" + bytes(36) + b" EMF" + bytes(60), RemarkCode.PICTURES_DRAWN),
    "one pixel": (make_picture(size=(1, 1)), None),
    "a line": (make_picture(size=(1500, 50)), None),
    "a plain colour": (bomb(64), None),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_cannot_be_shown_or_shows_nothing_is_left_out_and_the_text_is_read(name):
    data, code = LEFT_OUT[name]
    document = markdown("Before.", data, "After.")
    assert document.pictures == ()
    assert document.sections[0].text == "Before.\n\nAfter."
    assert codes(document) == ([(code, 1)] if code else [])


def test_a_shade_is_decoration():
    stream = io.BytesIO()
    PIL.Image.linear_gradient("L").save(stream, "PNG")
    assert markdown("Text.", stream.getvalue()).pictures == ()


def test_the_number_and_the_size_of_a_documents_pictures_are_bounded(monkeypatch):
    monkeypatch.setattr(pictures, "MOST", 3)
    document = markdown("Text.", *(make_picture(number) for number in range(5)))
    assert len(document.pictures) == 3
    assert codes(document) == [(RemarkCode.PICTURES_BEYOND, 2)]
    monkeypatch.setattr(pictures, "MOST_BYTES", len(document.pictures[0].data) + 10)
    assert len(markdown("Text.", *(make_picture(number) for number in range(3))).pictures) == 1


def test_a_document_cannot_write_marks_itself():
    document = markdown("Text \ue000abcd1234:0\ue001 and more.", make_picture())
    assert "abcd1234:0" in document.sections[0].text
    assert len(document.pictures) == 1


@pytest.mark.sandbox
def test_thousands_of_pictures_stay_within_the_limits_of_the_sandbox(tmp_path):
    path = tmp_path / "file"
    blocks = [
        f"Block {number}.\n\n![]({data_address(make_picture(number % 7, size=(120 + number, 90)))})"
        for number in range(2_000)
    ]
    path.write_text("\n\n".join(blocks))
    document = parse_file(path, "a.md", limits=Limits(memory_bytes=1024 * 1024**2, seconds=60))
    assert 0 < len(document.pictures) <= pictures.MOST
    assert document.sections[0].text.endswith("Block 1999.")
    assert RemarkCode.PICTURES_BEYOND in [remark.code for remark in document.remarks]
