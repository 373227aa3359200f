import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pytest

from config import embedded
from tests.serving import NOT_INHERITED, free_port


def _data_directory():
    """One to come, in a directory that PostgreSQL's user may pass through."""
    return Path(tempfile.mkdtemp(prefix="zhiku-serve-")) / "data"


def _begin_anew(directory):
    """Nothing is set but where the data lie and which model serves."""
    for name in NOT_INHERITED:
        os.environ.pop(name, None)
    os.environ |= {"ZHIKU_DATA_DIR": str(directory), "EMBEDDING_MODEL": "hashing", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def environment():
    """Of a first start: the data directory is empty."""
    directory = _data_directory()
    with mock.patch.dict(os.environ):
        _begin_anew(directory)
        yield os.environ
        embedded.stop()
    shutil.rmtree(directory.parent)


@pytest.fixture(scope="module")
def _used(first_start):
    """The environment of servers that run with what a first start has made."""
    directory = _data_directory()
    with mock.patch.dict(os.environ):
        _begin_anew(directory)
        first_start.copy_to(directory)
        embedded.ensure(durable=False)
        made = dict(os.environ)
    yield made
    with mock.patch.dict(os.environ, made, clear=True):
        embedded.stop()
    shutil.rmtree(directory.parent)


@pytest.fixture
def started_before(_used):
    """PostgreSQL and Redis run with what a first start has made, and go on to do so for the other tests of the file."""
    with mock.patch.dict(os.environ, _used, clear=True):
        yield os.environ


@pytest.fixture
def port():
    return free_port()
