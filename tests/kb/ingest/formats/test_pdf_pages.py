"""Pages of a PDF as pictures, drawn in the sandbox."""

import base64
import io
import zlib

import PIL.Image
import pytest

from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits, run_job
from tests.kb.ingest.parser.documents import make_pdf, make_scan
from tests.kb.ingest.parser.hostile import HOSTILE

LIMITS = Limits(seconds=20, output_bytes=16 * 1024**2)


def written(tmp_path, data):
    path = tmp_path / "a.pdf"
    path.write_bytes(data)
    return path


def draw(path, *, page=1, width=640, limits=LIMITS):
    found = run_job("page_image", path, limits=limits, page=page, width=width)
    return PIL.Image.open(io.BytesIO(base64.b64decode(found["data"])))


def of_one_page(content, *, box="0 0 600 800"):
    """A PDF by hand, whose only page draws what it is given."""
    packed = zlib.compress(content)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [%s] /Contents 4 0 R >>" % box.encode(),
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed),
    ]
    made, places = bytearray(b"%PDF-1.7\n"), []
    for number, each in enumerate(objects, start=1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = len(made)
    made += b"xref\n0 5\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(made + b"trailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % table)


def test_the_sizes_of_pages_are_known_without_drawing_any(tmp_path):
    found = run_job("page_sizes", written(tmp_path, make_pdf(*[["x"]] * 300)), limits=LIMITS)
    assert found["count"] == 300
    assert {tuple(map(round, size)) for size in found["sizes"]} == {(595, 842)}


def test_a_page_is_drawn_in_the_width_that_is_asked_for(tmp_path):
    path = written(tmp_path, make_pdf(["正文"], ["又一页"]))
    first, second = draw(path), draw(path, page=2, width=1280)
    assert (first.format, first.size) == ("WEBP", (640, 906))
    assert second.width == 1280
    darkest, lightest = first.convert("L").getextrema()
    assert darkest < 100
    assert lightest > 200


def test_a_scan_is_drawn_too(tmp_path):
    assert draw(written(tmp_path, make_scan(1))).width == 640


@pytest.mark.parametrize("box", ["0 0 14400 2", "0 0 2 14400", "0 0 14400 14400"])
def test_a_page_of_any_shape_has_a_bounded_picture(tmp_path, box):
    made = draw(written(tmp_path, of_one_page(b"", box=box)), width=1920)
    assert made.width * made.height <= 8_100_000
    assert max(made.size) <= 10_001


def test_there_is_no_other_page(tmp_path):
    with pytest.raises(ParseError) as caught:
        draw(written(tmp_path, make_pdf(["x"])), page=2)
    assert (caught.value.code, caught.value.params) == ("no_such_page", {"page": 2, "pages": 1})


HOSTILE_PDFS = {name: make for name, (file, make, _codes) in HOSTILE.items() if file == "a.pdf"}


@pytest.mark.sandbox
@pytest.mark.parametrize("name", HOSTILE_PDFS)
def test_hostile_files_end_with_a_sentence_or_a_picture(tmp_path, name):
    path = written(tmp_path, HOSTILE_PDFS[name]())
    for job, arguments in (("page_sizes", {}), ("page_image", {"page": 1, "width": 640})):
        try:
            run_job(job, path, limits=LIMITS, **arguments)
        except ParseError as error:
            assert error.code in {"damaged_file", "protected", "no_such_page", "parser_crashed"}  # noqa: PT017 - or none


@pytest.mark.sandbox
def test_a_page_that_takes_without_end_is_given_up(tmp_path):
    path = written(tmp_path, of_one_page(b"0 0 600 800 re 10 10 580 780 re f* " * 3_000_000))
    with pytest.raises(ParseError) as caught:
        draw(path, limits=Limits(seconds=1))
    assert caught.value.code == "timeout"


@pytest.mark.sandbox
def test_a_page_gets_no_more_memory_than_it_may_have(tmp_path):
    path = written(tmp_path, of_one_page(b"0 0 1 1 re f " * 8_000_000))
    with pytest.raises(ParseError) as caught:
        draw(path, limits=Limits(memory_bytes=160 * 1024**2, seconds=60))
    assert caught.value.code in {"out_of_memory", "parser_crashed"}
