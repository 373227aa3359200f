import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pytest

from config import embedded
from tests.serving import NOT_INHERITED, free_port


@pytest.fixture
def environment():
    """Of a first start: nothing is set but where its data lie and which model serves, and the data directory is empty."""
    root = Path(tempfile.mkdtemp(prefix="zhiku-serve-"))
    with mock.patch.dict(os.environ):
        for name in NOT_INHERITED:
            os.environ.pop(name, None)
        os.environ |= {"ZHIKU_DATA_DIR": str(root / "data"), "EMBEDDING_MODEL": "hashing", "HF_HUB_OFFLINE": "1"}
        yield os.environ
        embedded.stop()
    shutil.rmtree(root)


@pytest.fixture
def started_before(environment, first_start):
    """PostgreSQL and Redis run with what a first start has made."""
    first_start.copy_to(Path(environment["ZHIKU_DATA_DIR"]))
    embedded.ensure(durable=False)


@pytest.fixture
def port():
    return free_port()
