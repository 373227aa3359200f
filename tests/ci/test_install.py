""".ci/install.py, which `make run` and `make test` call, against indexes of packages on the loopback."""

import base64
import functools
import hashlib
import http.server
import importlib.metadata
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A backend that needs no download: the wheel of the editable project holds nothing but what it requires.
BACKEND = """
import base64, hashlib, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "zhiku-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{wheel_directory}/{name}", "w") as wheel:
        info = "zhiku-0.1.0.dist-info"
        requires = "Requires-Dist: torch==9.9.9; extra == 'models'\\nRequires-Dist: other; extra == 'models'\\n"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: zhiku\\nVersion: 0.1.0\\nProvides-Extra: models\\n{requires}")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "zhiku"
version = "0.1.0"
[project.optional-dependencies]
models = ["torch==9.9.9", "other"]
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Nothing is said of requests."""


class Index:
    """An index of packages."""

    def __init__(self, folder):
        self.folder = folder
        handler = functools.partial(_Quiet, directory=folder)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, name, version, built_by):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        file = f"{name}-{version}-py3-none-any.whl"
        files = {
            f"{name}.py": f"BUILT_BY = {built_by!r}\n",
            f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(
            f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}\n"
            for path, text in files.items()
        )
        with zipfile.ZipFile(folder / file, "w") as wheel:
            for path, text in (files | {f"{name}-{version}.dist-info/RECORD": record}).items():
                wheel.writestr(path, text)
        links = "".join(f'<a href="{each.name}">{each.name}</a>' for each in sorted(folder.glob("*.whl")))
        (folder / "index.html").write_text(f"<html><body>{links}</body></html>")

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def make_index(tmp_path):
    made = []

    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        made.append(Index(folder))
        return made[-1]

    yield make
    for index in made:
        index.close()


@pytest.fixture
def default(make_index):
    """Has torch in the build for GPUs, and everything else."""
    index = make_index("default")
    index.add("torch", "9.9.9", "default")
    index.add("other", "1.0", "default")
    return index


@pytest.fixture
def cpu(make_index):
    """Has torch in its CPU build; and another package in a newer version than there is, as one who took the index over would."""
    index = make_index("cpu")
    index.add("torch", "9.9.9+cpu", "cpu")
    index.add("other", "99.0", "cpu")
    return index


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """An environment in which pip, that of this one, is all that is installed, to be copied."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    ask = [folder / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    pip = importlib.metadata.distribution("pip")
    for name in {file.parts[0] for file in pip.files if ".." not in file.parts}:
        shutil.copytree(pip.locate_file(name), packages / name)
    return folder


@pytest.fixture
def project(tmp_path, bare):
    """A checkout with an environment of its own; returns how to run its installation."""
    root = tmp_path / "checkout"
    (root / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "install.py", root / ".ci")
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "backend.py").write_text(BACKEND)
    (root / "constraints.txt").write_text("torch==9.9.9\n")
    shutil.copytree(bare, root / ".venv", symlinks=True)
    python = root / ".venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "TORCH_"))}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}

    def install(**variables):
        command = [python, root / ".ci" / "install.py", "models"]
        done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        ask = "import torch, other; print(torch.BUILT_BY, other.BUILT_BY)"
        built = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.split()
        return built, done.stdout

    return install


def test_only_torch_comes_from_the_index_of_cpu_builds(project, default, cpu):
    built, said = project(TORCH_INDEX=cpu.url, PIP_INDEX_URL=default.url)
    assert built == ["cpu", "default"]
    assert f"installing the CPU build of torch==9.9.9 from {cpu.url}" in said


def test_an_index_without_the_build_leaves_that_of_the_default_index(project, default, make_index):
    built, said = project(TORCH_INDEX=make_index("empty").url, PIP_INDEX_URL=default.url)
    assert built == ["default", "default"]
    assert "taking torch from the default index" in said


def test_the_indexes_of_a_user_go_before(project, default):
    built, said = project(PIP_INDEX_URL=default.url)
    assert built == ["default", "default"]
    assert "CPU build of torch" not in said


@pytest.fixture
def script(monkeypatch):
    """On Linux without a GPU, where pip is told of nothing."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "TORCH_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    spec = importlib.util.spec_from_file_location("install", ROOT / ".ci" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "_has_gpu", lambda: False)
    monkeypatch.setattr(module.sys, "platform", "linux")
    return module


def test_the_index_of_cpu_builds_is_asked_first(script, cpu, monkeypatch):
    monkeypatch.setattr(script, "CPU_INDEX", cpu.url)
    assert script._cpu_index() == cpu.url


@pytest.mark.parametrize("kind", ["closed", "silent"])
def test_one_that_is_out_of_reach_is_given_up_with_a_sentence(script, monkeypatch, capsys, kind):
    with socket.create_server(("127.0.0.1", 0)) as server:
        if kind == "closed":
            server.close()
            address = "http://127.0.0.1:9"
        else:
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(script, "CPU_INDEX", address)
        monkeypatch.setattr(script, "PROBE_SECONDS", 0.2)
        assert script._cpu_index() == ""
    assert f"{address} is out of reach" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"])
def test_it_is_not_asked_where_pip_has_an_index_of_its_own(script, cpu, monkeypatch, name):
    monkeypatch.setattr(script, "CPU_INDEX", cpu.url)
    monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    assert script._cpu_index() == ""


def test_it_is_not_asked_with_a_gpu_nor_elsewhere_than_on_linux(script, cpu, monkeypatch):
    monkeypatch.setattr(script, "CPU_INDEX", cpu.url)
    monkeypatch.setattr(script, "_has_gpu", lambda: True)
    assert script._cpu_index() == ""
    monkeypatch.setattr(script, "_has_gpu", lambda: False)
    monkeypatch.setattr(script.sys, "platform", "darwin")
    assert script._cpu_index() == ""


@pytest.mark.parametrize("goal", [".venv/.installed-run", ".venv/.installed-dev"])
def test_make_installs_by_it(tmp_path, goal):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    done = subprocess.run(["make", "-n", goal], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ".venv/bin/python .ci/install.py embedded,models" in done.stdout
    assert "pip install" not in done.stdout
