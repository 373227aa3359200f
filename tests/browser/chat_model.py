"""The chat model of a walk's installation: a real server on the loopback."""

import pytest

from tests.servers import ModelServer


def variables_for(base_url):
    return {"LLM_BASE_URL": base_url, "LLM_MODEL": "test", "LLM_API_KEY": "none"}


@pytest.fixture(scope="module")
def model():
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def variables(model):
    return variables_for(model.base_url)
