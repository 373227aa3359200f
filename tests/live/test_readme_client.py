"""The client of the documentation of the API, run as it stands, by itself, against the processes that an operator starts."""

import os
import re
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from tests.live.processes import ROOT, SECONDS, Server, environment, running
from tests.servers import ModelServer, Reply

BROKER_DATABASE = "7"  # tasks of other tests are about rows of another database
PAGES = {"docs/api.md": "From Python with requests", "docs/api.zh-CN.md": "用 Python 和 requests 调用"}


def code_of(page, heading):
    """The one block of Python under the heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(r"^#{2,3} ", text.partition(f"# {heading}\n")[2], flags=re.MULTILINE)[0]
    [code] = re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    return code


@pytest.fixture(scope="module")
def language_model():
    with ModelServer() as server:
        server.always("chat", Reply("Five days of paid leave a year [1]."))
        yield server


@pytest.fixture(scope="module")
def changed(language_model):
    """What the web server and the worker have in common beside the tests' environment."""
    broker = urlsplit(os.environ["REDIS_URL"])._replace(path=f"/{BROKER_DATABASE}").geturl()
    return {
        "CELERY_BROKER_URL": broker,
        "LLM_BASE_URL": language_model.base_url,
        "LLM_MODEL": "readme",
        "EMBEDDING_MODEL": "hashing",
    }


@pytest.fixture(scope="module")
def worker(world, changed):
    command = [sys.executable, "-m", "celery", "-A", "config", "worker", "--pool", "solo", "-l", "ERROR"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(**changed))
    yield process
    process.terminate()
    process.wait(SECONDS)


@pytest.fixture(scope="module")
def web(world, changed):
    gunicorn = ("gunicorn", "--config", "python:config.gunicorn", "--bind", "127.0.0.1:{port}")
    with running(Server(*gunicorn, probe="/api/v1/health/", **changed)) as server:
        yield server


@pytest.fixture(scope="module")
def key(world, committed):
    from django.db import connections

    from tests import factories

    with committed():
        secret = factories.make_api_key(world.owner, scope="write")[1]
        connections.close_all()
    return secret


def run(code, web, key, tmp_path):
    """In a process that has nothing of this project on its path."""
    script = tmp_path / "client.py"
    script.write_text(code, encoding="utf-8")
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**inherited, "ZHIKU_URL": web.url, "ZHIKU_KEY": key, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize(("page", "heading"), PAGES.items())
def test_the_client_does_what_it_says(world, worker, web, key, tmp_path, page, heading):
    done = run(code_of(page, heading), web, key, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    found, documents, answer, refused = done.stdout.splitlines()
    assert "five days of paid leave" in found
    assert documents == "Handbook ready"
    assert answer.startswith("Five days of paid leave a year [1].")
    assert refused.startswith("404 not_found: ")


def test_it_uses_requests_and_the_standard_library_only():
    for page, heading in PAGES.items():
        imported = re.findall(r"^(?:import|from) (\w+)", code_of(page, heading), flags=re.MULTILINE)
        assert "requests" in imported
        assert set(imported) - {"requests"} <= sys.stdlib_module_names


def test_both_languages_show_the_same_code():
    """But for the comments, which are for readers."""
    bare = [re.sub(r" *#[^\n]*", "", code_of(page, heading)) for page, heading in PAGES.items()]

    assert bare[0] == bare[1]


def test_a_key_that_is_none_ends_with_the_remedy(world, web, tmp_path):
    done = run(code_of(*next(iter(PAGES.items()))), web, "no-such-key", tmp_path)

    assert done.returncode != 0
    assert "401 authentication_failed" in done.stderr
