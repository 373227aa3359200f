import sys
from importlib.util import find_spec

import pytest

from retrieval.errors import ModelUnavailable
from retrieval.model_files import open_local

pytestmark = pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs the 'models' extra")


def opened(model_id, open_folder=str):
    return open_local(model_id, open_folder, kind="reranker", otherwise="do without")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def test_the_folder_is_opened(folder):
    assert opened(str(folder)) == str(folder)


@pytest.mark.parametrize("package", ["sentence_transformers", "torch"])
def test_without_the_libraries_the_message_names_their_extra_and_the_way_without(folder, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelUnavailable, match=r"reranker .* needs .*zhiku\[models\].*, or do without"):
        opened(str(folder))


def test_without_the_files_the_message_names_the_command_that_fetches_them():
    with pytest.raises(ModelUnavailable, match=r"run `manage\.py download_model org/absent`, or do without"):
        opened("org/absent")


@pytest.mark.parametrize("error", [OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, EOFError])
def test_whatever_the_libraries_make_of_foreign_files_is_one_error(folder, error):
    def refuse(_path):
        raise error("what is this")

    with pytest.raises(ModelUnavailable, match=r"what is this.*: delete that folder"):
        opened(str(folder), refuse)


def test_progress_bars_are_as_before_when_it_has_failed(folder):
    from transformers.utils import logging

    logging.enable_progress_bar()

    def refuse(_path):
        assert not logging.is_progress_bar_enabled()
        raise OSError

    with pytest.raises(ModelUnavailable):
        opened(str(folder), refuse)
    assert logging.is_progress_bar_enabled()


def test_progress_bars_that_were_off_stay_off(folder):
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        assert opened(str(folder)) == str(folder)
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.enable_progress_bar()
