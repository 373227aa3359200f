"""A real gRPC server on the loopback that speaks the protocol of Vertex AI Search, and the same over HTTP with JSON.

Use it as a context manager::

    with VertexServer() as vertex:
        vertex.results = [page("Hours", "https://example.org/hours", "Open at nine.")]
        ...
        assert vertex.asked[0].query == "when open"
"""

import json
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import grpc
from google.cloud import discoveryengine_v1 as vertex
from google.protobuf import json_format

METHOD = "/google.cloud.discoveryengine.v1.SearchService/Search"


def page(title, link, snippet, *, name="", score=None, **struct):
    """A result as a website's data store gives it."""
    return vertex.SearchResponse.SearchResult(
        id=name or link,
        document=vertex.Document(
            id=name or link,
            derived_struct_data={
                "title": title,
                "link": link,
                "snippets": [{"snippet": snippet, "snippet_status": "SUCCESS"}],
            },
            struct_data=struct,
        ),
        model_scores={} if score is None else {"relevance_score": {"values": [score]}},
    )


class VertexServer:
    """See the module's description.

    Attributes:
        results: of every search.
        fails: a status code of gRPC that every search ends with instead, and its words.
        asked: the requests, oldest first.
        grants: the signed texts that a token was asked for with at `token_uri`, which gives none.
    """

    def __init__(self):
        self.results = []
        self.fails = None
        self.hangs = False
        self.asked = []
        self.grants = []
        self.released = threading.Event()
        self._grpc = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
        self._grpc.add_generic_rpc_handlers((_Rpc(self),))
        self.port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Http)
        self._http.vertex = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self._grpc.start()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self._grpc.stop(grace=0).wait()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def rest_endpoint(self):
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def token_uri(self):
        return f"{self.rest_endpoint}/token"

    def answer(self, request):
        self.asked.append(request)
        if self.hangs:
            self.released.wait(10)
        return vertex.SearchResponse(results=self.results[: request.page_size or None], total_size=len(self.results))


class _Rpc(grpc.GenericRpcHandler):
    def __init__(self, server):
        self._server = server

    def service(self, details):
        if details.method != METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(
            self._search,
            request_deserializer=vertex.SearchRequest.deserialize,
            response_serializer=vertex.SearchResponse.serialize,
        )

    def _search(self, request, context):
        if self._server.fails:
            self._server.asked.append(request)
            context.abort(*self._server.fails)
        return self._server.answer(request)


class _Http(BaseHTTPRequestHandler):
    STATUS = {grpc.StatusCode.PERMISSION_DENIED: 403, grpc.StatusCode.RESOURCE_EXHAUSTED: 429}

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/token":
            self.server.vertex.grants += parse_qs(content.decode())["assertion"]
            self._send(400, {"error": "invalid_grant"})
            return
        body = json.loads(content)
        body["servingConfig"] = urlsplit(self.path).path.removeprefix("/v1/").removesuffix(":search")
        request = vertex.SearchRequest.pb()()
        json_format.ParseDict(body, request)
        server = self.server.vertex
        if server.fails:
            self._send(self.STATUS.get(server.fails[0], 503), {"error": {"message": server.fails[1]}})
            return
        answered = server.answer(vertex.SearchRequest.wrap(request))
        self._send(200, json_format.MessageToDict(vertex.SearchResponse.pb(answered)))

    def _send(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        """Keeps the test output clean."""
