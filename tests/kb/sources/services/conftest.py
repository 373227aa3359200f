import pytest


@pytest.fixture
def kb():
    from tests.factories import make_kb

    return make_kb(language="en")


@pytest.fixture
def place(monkeypatch):
    from tests.kb.sources.services.places import opened

    with opened(monkeypatch) as place:
        yield place
