import pytest


@pytest.fixture(autouse=True)
def _no_builder_outlives_its_test():
    """A builder that still published would meet the emptying of the tables."""
    yield
    from tests.kb.index.searching import settle

    settle()
