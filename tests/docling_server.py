"""A server that speaks the protocol of Docling Serve on loopback, with answers as a test scripts them."""

import json
import threading
from collections import defaultdict, deque
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from docling_core.types.doc import (
    BoundingBox,
    ContentLayer,
    CoordOrigin,
    DocItemLabel,
    DoclingDocument,
    ProvenanceItem,
    Size,
    TableCell,
    TableData,
)

WIDTH, HEIGHT = 600, 800


def prov(left=60, top=100, right=300, bottom=120, *, page=1, origin=CoordOrigin.TOPLEFT):
    box = BoundingBox(l=left, t=top, r=right, b=bottom, coord_origin=origin)
    return ProvenanceItem(page_no=page, bbox=box, charspan=(0, 1))


def new_document(pages=1):
    document = DoclingDocument(name="document")
    for page in range(1, pages + 1):
        document.add_page(page_no=page, size=Size(width=WIDTH, height=HEIGHT))
    return document


def cell(text, row, column, *, rows=1, columns=1, header=False):
    return TableCell(
        text=text,
        start_row_offset_idx=row,
        end_row_offset_idx=row + rows,
        start_col_offset_idx=column,
        end_col_offset_idx=column + columns,
        row_span=rows,
        col_span=columns,
        column_header=header,
    )


def table(*cells):
    height = max(each.end_row_offset_idx for each in cells)
    width = max(each.end_col_offset_idx for each in cells)
    return TableData(num_rows=height, num_cols=width, table_cells=list(cells))


def handbook():
    """Furniture, headings and a table on two pages."""
    document = new_document(pages=2)
    document.add_text(
        DocItemLabel.PAGE_HEADER, "内部资料", prov=prov(top=0, bottom=10), content_layer=ContentLayer.FURNITURE
    )
    document.add_heading("保修", level=1, prov=prov())
    document.add_text(DocItemLabel.TEXT, "整机保修两年。", prov=prov(top=200, bottom=240))
    caption = document.add_text(DocItemLabel.CAPTION, "表 1 保修期", prov=prov(page=2))
    rows = [
        cell("型号", 0, 0, header=True),
        cell("质保（月）", 0, 1, header=True),
        cell("TH-02", 1, 0),
        cell("36", 1, 1),
    ]
    document.add_table(table(*rows), caption=caption, prov=prov(top=400, bottom=600, page=2))
    return document


def result(document, *, status="success"):
    content = document if isinstance(document, dict) or document is None else document.export_to_dict()
    return {"document": {"filename": "document.pdf", "json_content": content}, "status": status, "errors": []}


def answer(body, status=200, **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def respond(request):
        request.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    return respond


def task(status, name="task-1"):
    return answer({"task_id": name, "task_type": "convert", "task_status": status, "task_position": 0})


def cut(request):
    """Promises more than it sends."""
    request.send_response(200)
    request.send_header("content-length", "1000")
    request.end_headers()
    request.wfile.write(b'{"docu')
    request.close_connection = True


def endless(request):
    request.send_response(200)
    request.end_headers()
    request.close_connection = True
    try:
        while True:
            request.wfile.write(b" " * 65_536)
    except OSError:
        return


class DoclingServer:
    """Each stage ("health", "submit", "poll", "result") answers by its script, then by its default."""

    def __init__(self):
        self.script = defaultdict(deque)
        self.default = {
            "health": answer({"status": "ok"}),
            "submit": task("pending"),
            "poll": task("success"),
            "result": answer(result(handbook())),
        }
        self.asked = []
        self.bodies = []
        self.keys = []

    def respond(self, request, stage):
        self.asked.append(stage)
        self.keys.append(request.headers.get("x-api-key"))
        if length := int(request.headers.get("content-length") or 0):
            self.bodies.append(request.rfile.read(length))
        elif request.headers.get("transfer-encoding") == "chunked":
            raise AssertionError("a form has a length")
        script = self.script[stage]
        (script.popleft() if script else self.default[stage])(request)


@contextmanager
def docling_server():
    """Yields the server and its address; `stop` of the server ends it before."""
    scripted = DoclingServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = urlsplit(self.path).path
            stage = "health" if path == "/health" else "poll" if path.startswith("/v1/status/poll/") else "result"
            scripted.respond(self, stage)

        def do_POST(self):
            assert self.path == "/v1/convert/file/async"
            scripted.respond(self, "submit")

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            """A client that goes away is no fault of the test."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()

    def stop():
        server.shutdown()
        server.server_close()

    scripted.stop, scripted.url = stop, f"http://127.0.0.1:{server.server_port}"
    try:
        yield scripted
    finally:
        stop()
        thread.join()
