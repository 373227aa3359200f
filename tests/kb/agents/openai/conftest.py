"""The fixtures of OpenAI's protocol."""

import pytest

from tests.kb.assistants.making import *  # noqa: F403


@pytest.fixture
def secret(owner):
    from tests.factories import make_api_key

    return make_api_key(owner)[1]


@pytest.fixture
def call(client, secret):
    """Posts a completion; the answer is its status and its JSON."""

    def post(model="heaters", question="How long does the warranty last?", key=None, **fields):
        body = {"model": model, "messages": [{"role": "user", "content": question}], **fields}
        headers = {"Authorization": f"Bearer {secret if key is None else key}"}
        answer = client.post("/v1/chat/completions", body, content_type="application/json", headers=headers)
        return answer.status_code, answer.json()

    return post
