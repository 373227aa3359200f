"""A visitor's browser: what a chat page's script sends."""

import json
import uuid

import pytest
from django.test import Client

QUESTION = "How long does the warranty last?"


class Browser:
    """Sends what a chat page sends; `token` is that of its visit."""

    def __init__(self, assistant, user=None, **headers):
        self.slug, self.token, self.headers = assistant.slug, "", headers
        self.client = Client(raise_request_exception=False)
        if user is not None:
            self.client.force_login(user)

    def send(self, method, path, body=None, **headers):
        given = {"X-Visit": self.token, "X-Language": "en", **self.headers, **headers}
        content = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        return self.client.generic(method, f"/chat/{self.slug}/{path}", **_body(content), headers=given)

    def get(self, path, **headers):
        return self.send("GET", path, **headers)

    def post(self, path, body, **headers):
        return self.send("POST", path, body, **headers)

    def enter(self, **body):
        response = self.post("enter/", {"visit": self.token, **body})
        if response.status_code == 200:
            self.token = response.json()["visit"]
        return response

    def ask(self, question=QUESTION, **body):
        return self.post("ask/", {"question": question, "sending_id": str(uuid.uuid4()), **body})

    def answered(self, question=QUESTION, **body):
        """The data of the event `done`."""
        response = self.ask(question, **body)
        assert response.status_code == 200, response.content
        return events(response)[-1][1]


def _body(content):
    return content or {"data": b"", "content_type": "application/octet-stream"}


def events(response):
    """Of a stream: (name, data)."""
    found = []
    for block in b"".join(response.streaming_content).decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((lines["event"], json.loads(lines["data"])))
    return found


@pytest.fixture
def browser(assistant):
    made = Browser(assistant)
    assert made.enter().status_code == 200
    return made
