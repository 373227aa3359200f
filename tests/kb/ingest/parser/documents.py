"""Small real documents, made by the libraries that people's programs resemble."""

import base64
import io
import zipfile

import docx
import openpyxl
import PIL.Image
import PIL.ImageDraw
import pptx
from reportlab.lib import colors
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfgen import canvas
from reportlab.platypus import SimpleDocTemplate, Table

pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))

TOP = 800
LEFT = 72


def make_pdf(*pages, title="", password="", step=18, size=12, bookmarks=()):
    """Each page is a list of lines; a line is a string or (x, string), and an empty one leaves a gap.

    Bookmarks are (page from 1, level from 0, title); a page of None is a scan.
    """
    stream = io.BytesIO()
    encrypt = StandardEncryption(password) if password else None
    sheet = canvas.Canvas(stream, encrypt=encrypt)
    if title:
        sheet.setTitle(title)
    for page, lines in enumerate(pages, start=1):
        for number, (_, level, name) in enumerate(entry for entry in bookmarks if entry[0] == page):
            sheet.bookmarkPage(key := f"{page}.{number}")
            sheet.addOutlineEntry(name, key, level)
        if lines is None:
            draw_scan(sheet)
            continue
        sheet.setFont("STSong-Light", size)
        for number, line in enumerate(lines):
            x, text = line if isinstance(line, tuple) else (LEFT, line)
            sheet.drawString(x, TOP - step * number, text)
        sheet.showPage()
    sheet.save()
    return stream.getvalue()


def make_table_pdf(rows):
    """A table with rules, as a report has it."""
    stream = io.BytesIO()
    style = [("GRID", (0, 0), (-1, -1), 1, colors.black), ("FONT", (0, 0), (-1, -1), "STSong-Light", 12)]
    SimpleDocTemplate(stream).build([Table(rows, colWidths=[120] * len(rows[0]), style=style)])
    return stream.getvalue()


def make_scan(pages):
    return make_pdf(*[None] * pages)


def make_picture_pdf(picture):
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream)
    sheet.drawInlineImage(picture, 0, 0, *sheet._pagesize)
    sheet.showPage()
    sheet.save()
    return stream.getvalue()


def draw_scan(sheet):
    """A page that is one picture, as a scanner makes it."""
    sheet.drawInlineImage(PIL.Image.new("L", (100, 140), 200), 0, 0, *sheet._pagesize)
    sheet.showPage()


def make_docx(*paragraphs):
    document = docx.Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    return save(document)


def replace_part(package, name, content):
    """The same zip with one part's bytes replaced, or added."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(package)) as source, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.namelist():
            if entry != name:
                target.writestr(entry, source.read(entry))
        target.writestr(name, content)
    return stream.getvalue()


def read_part(package, name):
    with zipfile.ZipFile(io.BytesIO(package)) as source:
        return source.read(name)


def make_zip(**files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as target:
        for name, content in files.items():
            target.writestr(name, content)
    return stream.getvalue()


def save(document):
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def make_xlsx(*rows, **sheets):
    """Rows of the first sheet, then further sheets by name."""
    workbook = openpyxl.Workbook()
    for row in rows:
        workbook.active.append(row)
    for name, content in sheets.items():
        sheet = workbook.create_sheet(name)
        for row in content:
            sheet.append(row)
    return save(workbook)


def make_pptx(*slides):
    """Each slide is (title, text) or (title, text, notes)."""
    presentation = pptx.Presentation()
    for title, text, *notes in slides:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
        if notes:
            slide.notes_slide.notes_text_frame.text = notes[0]
    return save(presentation)


EPUB_CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
<rootfiles><rootfile full-path="OEBPS/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""


def make_epub(chapters, *, title="书名", contents=None, version=3, **parts):
    """Chapters are {heading: markup of the body}; contents {chapter number: entry} stand in the navigation."""
    numbers = range(1, len(chapters) + 1)
    pages = {
        f"OEBPS/chapter {number}.xhtml": f"""<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "http://www.w3.org/TR/xhtml11/DTD/xhtml11.dtd">
<html xmlns="http://www.w3.org/1999/xhtml"><head><title>x</title></head><body>{f"<h1>{heading}</h1>" if heading else ""}
<p>{body}</p></body></html>"""
        for number, (heading, body) in zip(numbers, chapters.items(), strict=True)
    }
    items = "".join(
        f'<item id="c{number}" href="chapter%20{number}.xhtml" media-type="application/xhtml+xml"/>'
        for number in numbers
    )
    spine = "".join(f'<itemref idref="c{number}"/>' for number in numbers)
    if version == 3:
        items += '<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
        links = "".join(
            f'<li><a href="chapter%20{n}.xhtml#top">{text}</a></li>' for n, text in (contents or {}).items()
        )
        pages["OEBPS/nav.xhtml"] = (
            '<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops"><body>'
            f'<nav epub:type="toc"><ol>{links}</ol></nav></body></html>'
        )
        spine += '<itemref idref="nav"/>'
    else:
        items += '<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>'
        points = "".join(
            f'<navPoint><navLabel><text>{text}</text></navLabel><content src="chapter%20{n}.xhtml"/></navPoint>'
            for n, text in (contents or {}).items()
        )
        pages["OEBPS/toc.ncx"] = (
            '<!DOCTYPE ncx PUBLIC "-//NISO//DTD ncx 2005-1//EN" "http://www.daisy.org/z3986/2005/ncx-2005-1.dtd">'
            f'<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>{points}</navMap></ncx>'
        )
    package = f"""<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="{version}.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>
<manifest>{items}</manifest><spine>{spine}</spine></package>"""
    return make_zip(
        **{"mimetype": "application/epub+zip", "META-INF/container.xml": EPUB_CONTAINER, "OEBPS/content.opf": package},
        **pages,
        **parts,
    )


def make_picture(number=0, *, size=(90, 60), mode="RGB", kind="PNG", **options):
    """The bytes of a drawing, another one for each number; too small for its letters to be read."""
    image = PIL.Image.new("RGB", size, "white")
    draw = PIL.ImageDraw.Draw(image)
    width, height = size
    draw.rectangle((width * 0.1, height * 0.1, width * 0.5, height * 0.6), outline="black", width=3)
    draw.ellipse((width * 0.4, height * 0.3, width * 0.9, height * 0.9), fill=(number * 40 % 200, 30, 160))
    stream = io.BytesIO()
    image.convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def data_address(picture, mime="image/png"):
    return f"data:{mime};base64,{base64.b64encode(picture).decode()}"
