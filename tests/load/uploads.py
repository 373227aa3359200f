"""Documents that an app uploads while a server is under load, and what has become of each."""

import http.client
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.load.client import TIMEOUT_S

PAUSE_S = 0.5
MOST_TRIES = 60


@dataclass
class Uploads:
    """Uploads one document after another until it is stopped; each is tried until it is taken, as a careful app does.

    Attributes:
        taken: the words that only one document holds, by the id that the server gave it.
        refusals: statuses other than 201 with their headers.
    """

    url: str
    key: str
    kb_id: int
    taken: dict[int, str] = field(default_factory=dict)
    refusals: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.given_up: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Uploads":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def documents(self) -> Iterator[Mapping[str, Any]]:
        """All documents of the knowledge base, page by page."""
        path = f"/api/v1/knowledge-bases/{self.kb_id}/documents/?page_size=200"
        while path:
            status, _headers, page = self._call("GET", path)
            if status != 200:
                raise RuntimeError(f"the documents could not be listed: {status} {page}")
            yield from page["results"]
            following = page["next"]
            path = f"{urlsplit(following).path}?{urlsplit(following).query}" if following else ""

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            try:
                self._upload(f"unique{uuid.uuid4().hex}", number)
            except RuntimeError as error:
                self.given_up.append(str(error))
            self._stopped.wait(PAUSE_S)

    def _upload(self, word: str, number: int) -> None:
        """Under one idempotency key, so that a second try is no second document."""
        body = {"title": f"document {number}", "text": f"第{number}条 本文件的编号是 {word} ，由负载脚本上传。"}
        for _attempt in range(MOST_TRIES):
            headers = {"Idempotency-Key": word}
            status, told, answer = self._call("POST", f"/api/v1/knowledge-bases/{self.kb_id}/documents/", body, headers)
            if status == 201:
                self.taken[answer["id"]] = word
                return
            self.refusals.append((status, told))
            time.sleep(min(float(told.get("retry-after", 1)), 2.0))
        raise RuntimeError(f"a document was not taken in {MOST_TRIES} tries: {status} {answer}")

    def _call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        place = urlsplit(self.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=TIMEOUT_S)
        sent = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **(headers or {})}
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), sent)
            response = connection.getresponse()
            data = response.read()
            told = {name.lower(): value for name, value in response.getheaders()}
            return response.status, told, json.loads(data) if data else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            return 0, {}, str(error)
        finally:
            connection.close()
