import pytest


@pytest.fixture
def kb(db):
    from tests.factories import make_kb

    return make_kb()


@pytest.fixture
def chunk(kb):
    """One of six that the query 保修期 finds, the last one in each channel."""
    from tests.factories import make_document

    for number in range(5):
        make_document(kb, f"保修期 保修期 {number}")
    document = make_document(
        kb,
        "安装说明书里写着许多关于电源和设备的事项，最后一页也提到保修期",
        title="说明书",
        tags=["manual"],
        metadata={"year": 2024},
        source_type="web",
    )
    return document.chunks.select_related("knowledge_base__owner").get()
