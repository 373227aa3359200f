"""What LibreOffice converts, as it is read; and what it is kept from where a file is made to harm."""

import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kb.base.files import remove_left
from kb.ingest.parser import office, processes
from kb.ingest.parser.office import OfficeLimits, converted
from kb.ingest.parser.parsed import OFFICE_FORMATS, ParseError
from kb.ingest.parser.sandbox import Limits, TooSlow, WarmParser, parse_file
from tests.kb.ingest.parser.documents import make_docx, make_pptx, make_xlsx
from tests.kb.ingest.parser.office_files import make_open_document, make_text, needs_libreoffice, saved_as

ROOT = Path(office.__file__).parents[3]
MIB = 1024**2
ORIGINALS = {
    ".docx": make_docx("退货须在七天之内提出"),
    ".xlsx": make_xlsx(["事项", "规定"], ["退货", "退货须在七天之内提出"]),
    ".pptx": make_pptx(("退货", "退货须在七天之内提出")),
}
MANY_ROWS = make_open_document(
    "spreadsheet",
    '<office:body><office:spreadsheet><table:table table:name="a">'
    '<table:table-row table:number-rows-repeated="1048576">'
    '<table:table-cell table:number-columns-repeated="16" office:value-type="string"><text:p>x</text:p></table:table-cell>'
    "</table:table-row></table:table></office:spreadsheet></office:body>",
)
# It never ends, so that the conversion does not either where it is run.
MACRO = {
    "Basic/script-lc.xml": '<?xml version="1.0"?><library:libraries xmlns:library="http://openoffice.org/2000/library" '
    'xmlns:xlink="http://www.w3.org/1999/xlink"><library:library library:name="Standard" library:link="false"/>'
    "</library:libraries>",
    "Basic/Standard/script-lb.xml": '<?xml version="1.0"?><library:library '
    'xmlns:library="http://openoffice.org/2000/library" library:name="Standard" library:readonly="false" '
    'library:passwordprotected="false"><library:element library:name="M"/></library:library>',
    "Basic/Standard/M.xml": '<?xml version="1.0"?><script:module xmlns:script="http://openoffice.org/2000/script" '
    'script:name="M" script:language="StarBasic">Sub Main\nDo\nLoop\nEnd Sub</script:module>',
}
AT_OPEN = (
    '<office:scripts><office:event-listeners><script:event-listener script:language="ooo:script" '
    'script:event-name="dom:load" xlink:type="simple" '
    'xlink:href="vnd.sun.star.script:Standard.M.Main?language=Basic&amp;location=document"/>'
    "</office:event-listeners></office:scripts>"
)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where conversions have their folders, and each must leave none, and no process."""
    (folder := tmp_path / "scratch 夹").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
    assert programs(folder) == []


def programs(folder):
    """The processes that work in a folder, known by their command lines."""
    place = folder.as_uri()
    return [each for each in psutil.process_iter(["cmdline"]) if place in " ".join(each.info["cmdline"] or ())]


@pytest.fixture
def stored(tmp_path):
    def store(data, name):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return store


def text_of(document):
    return "\n".join(section.text for section in document.sections)


def failure(path, **limits):
    with pytest.raises(ParseError) as caught:
        parse_file(path, path.name, limits=Limits(**limits))
    return caught.value


@needs_libreoffice
@pytest.mark.parametrize("kind", OFFICE_FORMATS)
def test_a_file_that_libreoffice_has_saved_is_read(kind, stored, scratch, tmp_path, monkeypatch):
    original = OFFICE_FORMATS[kind].target
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(tempfile, "tempdir", str(tmp_path))
        file = stored(saved_as(kind, original, ORIGINALS[original]), f"a{kind}")
    document = parse_file(file, file.name)
    assert "退货须在七天之内提出" in text_of(document)
    assert document.mime == OFFICE_FORMATS[kind].mime


@needs_libreoffice
@pytest.mark.usefixtures("scratch")
def test_a_file_that_takes_too_long_ends_with_the_limits_sentence(stored):
    error = failure(stored(MANY_ROWS, "a.ods"), seconds=6)
    assert error.code == "timeout"
    assert "6 seconds" in str(error)


@needs_libreoffice
@pytest.mark.usefixtures("scratch")
def test_a_file_that_takes_too_much_memory_ends_with_the_limits_sentence(stored):
    path = stored(MANY_ROWS, "a.ods")
    with pytest.raises(ParseError) as caught, converted(path, ".ods", OfficeLimits(memory_bytes=300 * MIB, seconds=60)):
        pass
    assert caught.value.code == "out_of_memory"


@needs_libreoffice
@pytest.mark.usefixtures("scratch")
def test_a_file_that_writes_too_much_is_stopped(stored):
    path = stored(rb"{\rtf1 words}", "a.rtf")
    with pytest.raises(ParseError) as caught, converted(path, ".rtf", OfficeLimits(seconds=60, folder_bytes=2_000)):
        pass
    assert caught.value.code == "zip_bomb"


@needs_libreoffice
@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize(
    "data",
    [
        b"{\\rtf1 " + b"{\\b a" * 100_000 + b"}" * 100_001,
        b"{\\rtf1 " + b"{\\trowd\\cellx100\\intbl\\itap1 a{\\nestrow\\nestcell}" * 20_000 + b"}" * 20_001,
    ],
    ids=["groups", "tables"],
)
def test_deeply_nested_rtf_is_read_or_refused_within_its_limits(data, stored):
    path = stored(data, "a.rtf")
    try:
        outcome = text_of(parse_file(path, path.name, limits=Limits(seconds=40))).count("a")
    except ParseError as error:
        outcome = error.code
    assert outcome in {100_000, "office_failed", "out_of_memory", "timeout"}


class _Recorder(http.server.SimpleHTTPRequestHandler):
    """Notes what it is asked for, whatever the method."""

    def handle_one_request(self):
        line = self.rfile.readline(4096)
        self.close_connection = True
        if line:
            self.server.asked.append(line.split()[1].decode())
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Recorder) as listening:
        listening.asked = []
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


@needs_libreoffice
@pytest.mark.usefixtures("scratch")
def test_what_lies_elsewhere_is_not_asked_for(server, stored, tmp_path):
    place = f"http://127.0.0.1:{server.server_port}"
    (tmp_path / "secret.txt").write_text("top secret")
    linked = "".join(
        f'<text:section text:name="s{number}"><text:section-source xlink:href="{target}"/></text:section>'
        for number, target in enumerate(
            (f"{place}/section.odt", (tmp_path / "secret.txt").as_uri(), "file:///etc/passwd")
        )
    )
    image = f'<draw:frame svg:width="1cm" svg:height="1cm"><draw:image xlink:href="{place}/image.png"/></draw:frame>'
    path = stored(make_text(f"<text:p>看得见{image}</text:p>{linked}"), "a.odt")
    text = text_of(parse_file(path, path.name, limits=Limits(seconds=60)))
    assert "看得见" in text
    assert "secret" not in text
    assert "root:" not in text
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{place}/own")
    assert server.asked == ["/own"]


@needs_libreoffice
@pytest.mark.usefixtures("scratch")
def test_a_macro_is_refused_and_libreoffice_would_not_run_it(stored):
    body = f"{AT_OPEN}<office:body><office:text><text:p>正文</text:p></office:text></office:body>"
    path = stored(make_open_document("text", body, **MACRO), "a.odt")
    assert failure(path).code == "macros"
    with converted(path, ".odt", OfficeLimits(seconds=40)) as made:
        assert "正文" in text_of(parse_file(made, made.name))


@needs_libreoffice
@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("kind", [".doc", ".xls", ".ppt", ".odt"])
def test_a_file_that_is_cut_off_is_damaged(kind, stored, monkeypatch, tmp_path):
    original = OFFICE_FORMATS[kind].target
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(tempfile, "tempdir", str(tmp_path))
        data = saved_as(kind, original, ORIGINALS[original])
    assert failure(stored(data[: len(data) // 2], f"a{kind}")).code == "damaged_file"


# What a program that has been taken over would try, once it may use its own folder and threads only.
_ATTACKS = """
import json, os, socket, subprocess, sys, threading
sys.path[:] = json.loads(sys.argv[1])
from pathlib import Path
from kb.ingest.parser.confinement import confine_program
order = json.loads(sys.argv[2])
own = Path(order["own"])
def connect():
    socket.create_connection(("127.0.0.1", order["port"]), 5)
def send():
    socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
tried = {
    "connect": connect,
    "IPv6": send,
    "fork": lambda: os._exit(0) if os.fork() == 0 else None,
    "start": lambda: subprocess.run(["/bin/true"]),
    "write": lambda: Path(order["other"]).write_text("x"),
    "read": lambda: Path(order["secret"]).read_text(),
    "kill": lambda: os.kill(os.getppid(), 0),
    "socket of another": lambda: socket.socket(socket.AF_UNIX).connect(order["socket"]),
    "own file": lambda: (own / "a").write_text("x"),
}
told = {}
if order["confined"]:
    confine_program(Path("/usr/lib"), own)
for name, attempt in tried.items():
    try:
        attempt()
        told[name] = "done"
    except OSError as error:
        told[name] = "refused"
threading.Thread(target=lambda: told.update(thread="done")).start()
[each.join() for each in threading.enumerate() if each is not threading.current_thread()]
print(json.dumps(told))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are Linux's")
def test_a_program_that_is_taken_over_changes_its_own_folder_only(server, tmp_path):
    (own := tmp_path / "own").mkdir()
    (secret := tmp_path / "secret").write_text("top secret")
    order = {"own": str(own), "other": str(tmp_path / "other"), "secret": str(secret), "port": server.server_port}
    order |= {"socket": str(tmp_path / "none")}
    told = {}
    for confined in (False, True):
        with processes.start(_ATTACKS, order | {"confined": confined}, stdout=subprocess.PIPE) as process:
            told[confined] = json.loads(process.stdout.read())
    assert told[False] == dict.fromkeys(told[False], "done") | {"socket of another": "refused"}
    assert {name for name, outcome in told[True].items() if outcome == "done"} == {"own file", "thread"}
    assert (own / "a").read_text() == "x"


@needs_libreoffice
def test_a_conversion_ends_with_its_worker_whose_folder_is_removed_later(tmp_path, stored, monkeypatch):
    (scratch := tmp_path / "scratch").mkdir()
    path = stored(MANY_ROWS, "a.ods")
    code = "import sys; from pathlib import Path; from kb.ingest.parser.sandbox import parse_file; "
    code += "parse_file(Path(sys.argv[1]), 'a.ods')"
    command = [sys.executable, "-c", code, str(path)]
    environment = os.environ | {"TMPDIR": str(scratch), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, cwd=ROOT) as worker:
        while not (running := programs(scratch)):
            assert worker.poll() is None
        worker.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(running, timeout=30)
    assert len(gone) == 1
    assert alive == []
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    [left] = office.folders()
    remove_left(office.folders())
    assert left.exists()
    os.utime(left, (0, 0))
    remove_left(office.folders())
    assert list(scratch.iterdir()) == []


@needs_libreoffice
@pytest.mark.usefixtures("scratch")
def test_a_file_for_libreoffice_is_not_read_while_other_small_ones_wait(stored):
    path = stored(rb"{\rtf1 words}", "a.txt")
    with closing(WarmParser()) as parser, pytest.raises(TooSlow):
        parser.parse(path, path.name)
    assert text_of(parse_file(path, path.name)) == "words"


def test_without_libreoffice_a_file_is_refused_with_the_command(stored, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    error = failure(stored(rb"{\rtf1 words}", "a.rtf"))
    assert error.code == "office_missing"
    assert "apt-get install --no-install-recommends libreoffice-writer-nogui" in str(error)


@pytest.mark.parametrize("make", [converted, office.drawn_slides])
def test_a_script_without_the_program_that_it_starts_converts_nothing(make, stored, monkeypatch, tmp_path):
    (script := tmp_path / "soffice").write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert office.program() is None
    with pytest.raises(ParseError) as caught, make(stored(b"a", "a.ppt"), ".ppt", OfficeLimits()):
        pass
    assert caught.value.code == "office_missing"


@pytest.mark.parametrize(("free", "most"), [(256 * MIB, 128 * MIB), (2**40, 400 * MIB)], ids=["small tmpfs", "disk"])
def test_a_conversion_takes_half_of_the_room_at_most(tmp_path, monkeypatch, free, most):
    bounds = []
    monkeypatch.setattr(office.shutil, "disk_usage", lambda _folder: SimpleNamespace(free=free))
    monkeypatch.setattr(office, "_execute", lambda _folder, _arguments, _kind, limits: bounds.append(limits) or b"")
    file = tmp_path / "a.doc"
    file.write_bytes(b"a")
    with pytest.raises(ParseError), office._made(file, ".doc", ".docx", "docx", OfficeLimits()):
        pass
    assert [each.folder_bytes for each in bounds] == [most]
