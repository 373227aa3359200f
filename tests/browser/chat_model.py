"""The chat model of a walk's installation: a real server on the loopback."""

import pytest


def variables_for(base_url):
    return {"LLM_BASE_URL": base_url, "LLM_MODEL": "test", "LLM_API_KEY": "none"}


@pytest.fixture(scope="module")
def model(running_model):
    running_model.forget()
    return running_model


@pytest.fixture(scope="module")
def variables(running_model):
    return variables_for(running_model.base_url)
