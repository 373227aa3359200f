import pytest


@pytest.fixture(autouse=True)
def _parser(request, monkeypatch):
    from tests.parser import run_in_process

    if request.node.get_closest_marker("sandbox") is None:
        run_in_process(monkeypatch)


@pytest.fixture(autouse=True)
def _no_builder_outlives_its_test():
    """A builder that still published would meet the emptying of the tables."""
    yield
    from tests.kb.index.searching import settle

    settle()


@pytest.fixture
def cut_at(monkeypatch, settings):
    """Puts the built-in cut of overlap, which refuses nothing, where a test needs it: it depends on the chunks otherwise."""
    from retrieval import selection

    def move(score):
        settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": None}
        monkeypatch.setattr(selection, "overlap_cut", lambda _chunk_count: score)
        monkeypatch.setattr(selection, "overlap_high", lambda _chunk_count: score + 0.01)

    return move


@pytest.fixture
def crowded():
    """As many requests wait for other servers as may."""
    from contextlib import ExitStack

    from kb.base.waits import MOST, waiting_outside

    with ExitStack() as waits:
        for _ in range(MOST):
            waits.enter_context(waiting_outside())
        yield
