import pytest

# What needs the settings is imported late: this file is read before the test services are there.


@pytest.fixture(autouse=True)
def enqueued(monkeypatch):
    """What would go to the broker, which no worker of this test reads."""
    from kb import tasks

    sent = []
    monkeypatch.setattr(tasks, "enqueue", lambda task, *ids: sent.append((task.name.rpartition(".")[2], ids)))
    monkeypatch.setattr("kb.signals.enqueue", tasks.enqueue)
    return sent


@pytest.fixture
def kb(db):
    from tests.factories import make_document, make_kb

    kb = make_kb()
    make_document(kb, "石墨烯电池的保修期是两年", "安装前请先关闭电源")
    return kb
