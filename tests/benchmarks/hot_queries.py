"""A search that is answered from the cache of responses, against a request that is only authenticated, in one run.

Run by `make bench`, or alone as `python -m tests.benchmarks.hot_queries`.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks.store import start_servers
from tests.benchmarks.table import note

REQUESTS = 300
WARM_UP = 30
QUERY = "年假可以休几天？"
TEXTS = [
    f"第{number}条 工作满{number}年的员工每年享有{number + 4}天带薪年假，须提前{number}周申请。"
    for number in range(1, 200)
]


@dataclass(frozen=True)
class Measured:
    """Median milliseconds of a request that is only authenticated, of a hit, and of the search that the hit saves."""

    empty: float
    hit: float
    search: float


def alternate(*requests: Callable[[], None], rounds: int) -> list[float]:
    """Median milliseconds of each request, all of them in turn, so that none has a quieter machine than the others."""
    taken: list[list[float]] = [[] for _ in requests]
    for number in range(WARM_UP + rounds):
        for request, times in zip(requests, taken, strict=True):
            started = time.perf_counter()
            request()
            if number >= WARM_UP:
                times.append((time.perf_counter() - started) * 1_000)
    return [statistics.median(times) for times in taken]


def with_an_empty_endpoint() -> type:
    """The URLs of the project, and one endpoint that authenticates the caller and answers nothing."""
    from django.urls import include, path
    from rest_framework.response import Response

    from kb.web.api.views import ApiView

    class Empty(ApiView):
        def get(self, request):
            return Response()

    class Urls:
        urlpatterns = [path("api/v1/empty/", Empty.as_view()), path("", include("config.urls"))]

    return Urls


def measure(rounds: int = REQUESTS) -> Measured:
    """Requests with an API key, through all of the application but the socket."""
    from django.test import override_settings
    from rest_framework.test import APIClient

    from tests.factories import make_api_key, make_document, make_kb

    kb = make_kb(name="hot queries")
    make_document(kb, *TEXTS)
    _, secret = make_api_key(kb.owner)
    client = APIClient(SERVER_NAME="localhost", headers={"Authorization": f"Bearer {secret}"})

    def empty():
        assert client.get("/api/v1/empty/").status_code == 200

    def search(**fields):
        body = {"query": QUERY, "knowledge_base_ids": [kb.pk], **fields}
        response = client.post("/api/v1/search/", body, format="json")
        assert response.status_code == 200
        return response

    with override_settings(ROOT_URLCONF=with_an_empty_endpoint()):
        assert not search().json()["cached"]
        assert search().json()["cached"]
        return Measured(*alternate(empty, search, lambda: search(explain=True), rounds=rounds))


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("RERANKER_MODEL", "")  # what is degraded because a model is not on the disk is not kept
    folder = start_servers()
    from config import embedded

    note(f"hot queries: {REQUESTS} requests of each kind ...")
    try:
        measured = measure()
    finally:
        embedded.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"A search that is answered from the cache: {measured.hit:.2f} ms, {measured.hit / measured.empty:.2f} times a "
        f"request that is only authenticated ({measured.empty:.2f} ms); the same search run, explained: {measured.search:.2f} ms"
    )


if __name__ == "__main__":
    main()
