"""A chat model behind the settings: a real server on the loopback."""

import itertools
from contextlib import contextmanager

from tests.servers import ModelServer

_numbers = itertools.count(1)


@contextmanager
def language_model(settings):
    """Yields the server; its model has a name of its own, and so a circuit breaker of its own."""
    with ModelServer() as server:
        settings.LLM_BASE_URL = server.base_url
        settings.LLM_BASE_URL_IS_SET = True
        settings.LLM_API_KEY = ""
        settings.LLM_MODEL = f"model-{next(_numbers)}"
        settings.LLM_SECONDS = 10.0
        yield server


def no_language_model(settings):
    settings.LLM_BASE_URL_IS_SET = False
    settings.LLM_API_KEY = ""


def prompts(server):
    """What the model was asked for an answer, oldest first: each a list of (role, text)."""
    bodies = [request.body for request in server.requests if "response_format" not in request.body]
    return [[(message["role"], message["content"]) for message in body["messages"]] for body in bodies]
