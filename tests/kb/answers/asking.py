"""What tests of questions and answers share, imported by a `conftest.py` before there are any models."""

import pytest

WARRANTY = "The warranty of the heater lasts two years."


@pytest.fixture(autouse=True)
def english_with_an_open_gate(settings):
    settings.LANGUAGE_CODE = "en"
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": 0.0}


@pytest.fixture
def llm(settings):
    from tests.kb.providers.language_model import language_model

    with language_model(settings) as server:
        yield server


@pytest.fixture
def owner():
    from tests.factories import make_user

    return make_user()
