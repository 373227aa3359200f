"""OpenTelemetry: spans of web, worker and MCP arrive at a collector, and hang together."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

pytestmark = pytest.mark.django_db(transaction=True)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SEARCH = {"name": "search", "arguments": {"query": "How long is the warranty?", "score_threshold": 0}}


class Collector:
    """A local receiver of OTLP over HTTP."""

    def __init__(self):
        collector = self
        self.spans = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                import gzip

                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                received = []
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    name = next(
                        each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
                    )
                    for scope in resource.scope_spans:
                        received += [(name, span) for span in scope.spans]
                collector.spans += received  # at once, so that whoever sees one of them sees all
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def of(self, trace):
        return [(name, span) for name, span in self.spans if span.trace_id.hex() == trace]


def call(stack, method, path, **more):
    headers = {"Authorization": f"Bearer {stack.key}", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    return stack.request(method, f"/api/v1/{path}", headers=headers, **more)


def test_spans_of_a_request_its_sql_its_task_and_the_stages_of_a_search_are_one_trace(servers):
    with Collector() as collector:
        exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        servers.start_web(**exporting)
        servers.start_worker(**exporting)
        kb = call(servers, "POST", "knowledge-bases/", json={"name": "traced", "language": "en"}).json()["id"]
        files = {"file": ("a.txt", b"The warranty lasts for two years.")}
        added = call(servers, "POST", f"knowledge-bases/{kb}/documents/", files=files)
        assert added.headers["X-Request-ID"] == TRACE
        path = f"documents/{added.json()['id']}/"
        servers.until(
            lambda: (
                servers.request("GET", f"/api/v1/{path}", headers={"Authorization": f"Bearer {servers.key}"}).json()[
                    "status"
                ]
                == "ready"
            ),
            "worker",
        )
        call(servers, "POST", "search/", json={"query": "How long is the warranty?", "knowledge_base_ids": [kb]})

        def tasks():
            told = collector.of(TRACE)
            return [span for service, span in told if service == "zhiku-worker" and "ingest_document" in span.name]

        def is_whole():  # a process sends its spans in several parts
            stages = {span.name for _, span in collector.of(TRACE)}
            return tasks() and {"search fusion", "search bm25", "search vector"} <= stages

        servers.until(is_whole, "worker")
        told = collector.of(TRACE)
        sql = [span for _, span in told if span.name in {"SELECT", "INSERT"} or "SELECT" in str(span.attributes)]
        assert sql
        assert tasks()[0].parent_span_id in {span.span_id for _, span in told}
        assert "warranty" not in str(told)
        servers.processes["worker"].terminate()
        servers.processes["web"].terminate()
        assert servers.processes["worker"].wait(60) == 0
        assert servers.processes["web"].wait(60) == 0


def test_a_call_of_a_tool_is_one_trace_with_its_sql_and_the_stages_of_its_search(servers):
    with Collector() as collector:
        servers.start_mcp(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="200")
        called = requests.post(
            f"http://127.0.0.1:{servers.ports['mcp']}/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": SEARCH},
            headers={
                "Host": "zhiku.example",
                "Accept": "application/json, text/event-stream",
                "Authorization": f"Bearer {servers.key}",
                "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
            },
            timeout=60,
        )
        assert "warranty lasts" in called.text

        def told():
            return {span.name: span for service, span in collector.of(TRACE) if service == "zhiku-mcp"}

        servers.until(lambda: "mcp" in told(), "mcp")
        spans = told()
        assert {"mcp", "tools/call search", "SELECT", "search fusion", "search bm25", "search vector"} <= set(spans)
        assert spans["mcp"].parent_span_id.hex() == "00f067aa0ba902b7"
        assert spans["tools/call search"].parent_span_id == spans["mcp"].span_id
        assert spans["search fusion"].parent_span_id == spans["tools/call search"].span_id
        assert "warranty" not in str(spans)
        servers.processes["mcp"].terminate()
        assert servers.processes["mcp"].wait(60) == 0


def test_without_an_endpoint_nothing_is_instrumented(servers):
    code = "import sys; import config.wsgi; print(any(name.startswith('opentelemetry.instrumentation') for name in sys.modules))"
    assert servers.manage("shell", "--no-imports", "--command", code).stdout.strip().endswith("False")
