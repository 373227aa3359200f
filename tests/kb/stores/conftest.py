import pytest


@pytest.fixture(autouse=True)
def _no_builder_outlives_its_test():
    """A builder that still published would meet the emptying of the tables."""
    from tests.kb.stores.searching import new_process, settle

    new_process()
    yield
    settle()


@pytest.fixture
def kb():
    from tests.factories import make_document, make_kb

    kb = make_kb()
    make_document(kb, "智能温控器的保修期是两年", "安装前请先关闭电源", "thermostat warranty")
    return kb
