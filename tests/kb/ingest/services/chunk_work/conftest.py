import pytest


@pytest.fixture
def kb():
    from tests.factories import make_kb

    return make_kb()


@pytest.fixture
def document(kb):
    from tests.factories import make_document

    return make_document(kb, "苹果是红的。", "香蕉是黄的。", "橙子是橙的。", title="水果")
