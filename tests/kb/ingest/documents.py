"""Small real documents, made by the libraries that people's programs resemble."""

import io
import zipfile

import docx
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfgen import canvas

pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))

TOP = 800
LEFT = 72


def make_pdf(*pages, title="", password="", step=18, size=12):
    """Each page is a list of lines; a line is a string or (x, string), and an empty one leaves a gap."""
    stream = io.BytesIO()
    encrypt = StandardEncryption(password) if password else None
    sheet = canvas.Canvas(stream, encrypt=encrypt)
    if title:
        sheet.setTitle(title)
    for lines in pages:
        sheet.setFont("STSong-Light", size)
        for number, line in enumerate(lines):
            x, text = line if isinstance(line, tuple) else (LEFT, line)
            sheet.drawString(x, TOP - step * number, text)
        sheet.showPage()
    sheet.save()
    return stream.getvalue()


def make_scan(pages):
    stream = io.BytesIO()
    sheet = canvas.Canvas(stream)
    for _ in range(pages):
        sheet.rect(100, 100, 300, 300, fill=1)
        sheet.showPage()
    sheet.save()
    return stream.getvalue()


def save_docx(document):
    stream = io.BytesIO()
    document.save(stream)
    return stream.getvalue()


def make_docx(*paragraphs):
    document = docx.Document()
    for paragraph in paragraphs:
        document.add_paragraph(paragraph)
    return save_docx(document)


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
