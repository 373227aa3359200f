import pytest


@pytest.fixture(autouse=True)
def _without_held_indexes():
    from tests.kb.index.searching import new_process

    new_process()


@pytest.fixture
def kb():
    from tests.factories import make_document, make_kb

    kb = make_kb()
    make_document(kb, "智能温控器的保修期是两年", "安装前请先关闭电源", "thermostat warranty")
    return kb


@pytest.fixture(scope="module")
def _processes(django_db_setup):
    running = []
    yield running
    for process in running:
        process.close()


@pytest.fixture
def other_process(_processes, db_name):
    """Starts another process, or takes one that an earlier test has started."""
    from tests.kb.index.other_process import OtherProcess

    free = list(_processes)

    def take():
        if not free:
            free.append(OtherProcess(db_name))
            _processes.append(free[0])
        free[0].ask("forget")  # a new one answers once it has started, which may take long
        return free.pop(0)

    return take


@pytest.fixture
def db_name(db):
    from django.db import connection

    return connection.settings_dict["NAME"]
