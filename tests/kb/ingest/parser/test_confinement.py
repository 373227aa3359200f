"""A parser's child that a file has taken over: what it tries from inside the real sandbox, and what parsers still may."""

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection

from kb.ingest.parser import confinement, sandbox
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits, parse_file, run_job
from tests.kb.ingest.parser import attacks

REFUSALS = {"refused: Function not implemented", "refused: Permission denied"}
ROOT = Path(sandbox.__file__).parents[3]
# The child takes the attack as its job "parse"; everything else is as it always is.
BOOTSTRAP = (
    "import json, sys, types; sys.path[:] = json.loads(sys.argv[1]); attack = types.ModuleType('attack'); "
    "exec({source}, attack.__dict__); sys.modules['attack'] = attack; "
    "from kb.ingest.parser import confinement, sandbox; sandbox.JOBS['parse'] = 'attack.attack'; "
    "{weakened}; sandbox.{{child}}()"
)
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are Linux's")
pytestmark = [needs_linux, pytest.mark.sandbox]


def bootstrap(weakened="pass"):
    source = repr(Path(attacks.__file__).read_text()).replace("{", "{{").replace("}", "}}")
    return BOOTSTRAP.format(source=source, weakened=weakened)


@pytest.fixture
def stored(tmp_path):
    path = tmp_path / "stored"
    path.write_text("文")
    return path


@pytest.fixture
def target(tmp_path, monkeypatch):
    """What there is to gain: the server's secrets, files and servers."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("secret_key", "victim"):
        (folder / name).write_text("top secret")
    redis = urlsplit(settings.REDIS_URL)
    database = connection.settings_dict
    host, port = database["HOST"], int(database["PORT"] or 5432)
    return {
        "parent": os.getpid(),
        "others": [os.getppid(), os.getpid()],
        "folder": str(folder),
        "secret": str(folder / "secret_key"),
        "victim": str(folder / "victim"),
        "settings": str(ROOT / "config" / "settings.py"),
        "code": sandbox.__file__,
        "redis": [redis.hostname, redis.port],
        "postgresql": f"{host}/.s.PGSQL.{port}" if host.startswith("/") else [host, port],
    }


def attack(stored, target, **limits):
    return run_job("parse", stored, limits=Limits(**limits), filename=json.dumps(target))


def successes(told):
    return {name: outcome for name, outcome in told.items() if outcome not in REFUSALS}


def test_the_attacks_work_where_nothing_confines_the_child(stored, target, monkeypatch):
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", bootstrap("sandbox.confine = lambda writable=None: None"))
    target["only"] = [
        "read a secret",
        "read the settings",
        "list the data directory",
        "list the root",
        "overwrite a file",
        "overwrite the application",
        "connect to Redis",
        "connect to PostgreSQL",
        "listen",
        "socket",
        "socketpair",
        "kill",
        "tkill",
        "memfd_create",
        "own the parent's signals of a pipe",
    ]
    told = attack(stored, target)
    assert [name for name, outcome in told.items() if not outcome.startswith("done")] == []


def test_a_child_that_is_taken_over_reaches_nothing(stored, target, monkeypatch):
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", bootstrap())
    told = attack(stored, target)
    assert len(told) > 70
    assert successes(told) == {}
    assert {path.name for path in Path(target["folder"]).iterdir()} == {"secret_key", "victim"}
    assert Path(target["secret"]).read_text() == "top secret"


def test_a_child_of_many_files_that_is_taken_over_reaches_nothing(stored, target, monkeypatch):
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", bootstrap())
    with closing(sandbox.WarmParser()) as parser:
        told = sandbox.decode_answer(parser._ask("parse", stored, {"filename": json.dumps(target)}))
    assert len(told) > 70
    assert successes(told) == {}


def test_a_child_that_unpacks_writes_into_its_folder_only(tmp_path, target, monkeypatch, stored):
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", bootstrap())
    own = tmp_path / "own"
    own.mkdir()
    limits = Limits(file_bytes=100)
    told = run_job("parse", stored, limits=limits, writable=own, filename=json.dumps(target))
    assert successes(told) == {}
    inside = target | {"folder": str(own), "only": ["create a file", "list the data directory", "mkdirat", "symlinkat"]}
    told = run_job("parse", stored, limits=limits, writable=own, filename=json.dumps(inside))
    assert successes(told) == {"create a file": "done: None"}


FILES_HELD_BY_LANDLOCK = {
    "read a secret",
    "read a secret through the root of the parent",
    "list the data directory",
    "list the root",
    "read the settings",
    "read the parent's environment",
    "read the parent's memory",
    "open the parent's pipe",
    "create a file",
    "overwrite a file",
    "empty a file",
    "mkdirat",
}


def test_without_seccomp_landlock_keeps_files_and_other_processes(stored, target, monkeypatch):
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", bootstrap("confinement.SECCOMP_LIBRARY = 'libnone.so'"))
    target["only"] = [*FILES_HELD_BY_LANDLOCK, "connect to Redis", "ptrace", "socket"]
    told = attack(stored, target)
    open_still = {"socket"} | ({"connect to Redis"} if told["connect to Redis"].startswith("done") else set())
    assert {name for name, outcome in told.items() if outcome.startswith("done")} == open_still
    assert told["read the parent's environment"] in REFUSALS


def test_without_landlock_seccomp_keeps_sockets_processes_and_writing(stored, target, monkeypatch):
    weakened = "confinement._LANDLOCK_CREATE_RULESET = 9999"
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", bootstrap(weakened))
    reading = set(attacks.reading(target))
    told = attack(stored, target)
    assert "read a secret" in successes(told)
    assert set(successes(told)) <= reading


@pytest.mark.parametrize(
    ("weakened", "expected"),
    [
        ("pass", (True, True)),
        ("confinement.SECCOMP_LIBRARY = 'libnone.so'", (False, True)),
        ("confinement._LANDLOCK_CREATE_RULESET = 9999", (True, False)),
    ],
)
def test_the_parent_learns_what_holds_its_children(monkeypatch, weakened, expected):
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", bootstrap(weakened))
    assert sandbox.confinement() == expected


@pytest.mark.parametrize(
    "weakened", ["confinement.SECCOMP_LIBRARY = 'libnone.so'", "confinement._LANDLOCK_ADD_RULE = 9999"]
)
def test_files_are_parsed_where_the_host_lacks_a_layer(stored, monkeypatch, weakened):
    kept = "; sandbox.JOBS['parse'] = 'kb.ingest.parser.sandbox.parse_job'"
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", bootstrap(weakened + kept))
    assert parse_file(stored, "a.txt").sections[0].text == "文"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the second instruction set of x86-64")
def test_the_system_calls_of_another_instruction_set_end_the_child(stored, monkeypatch):
    """By `int 0x80`, whose numbers are others: 359 is socket."""
    code = "b'\\xb8\\x67\\x01\\x00\\x00\\xcd\\x80\\xc3'"
    source = (
        "import ctypes, mmap\n"
        "def attack(file, filename):\n"
        "    page = mmap.mmap(-1, 4096, prot=7)\n"
        f"    page.write({code})\n"
        "    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\n"
    )
    free = BOOTSTRAP.format(source=repr(source), weakened="sandbox.confine = lambda writable=None: None")
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", free)
    assert isinstance(run_job("parse", stored, limits=Limits(), filename="a.txt"), int)
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", BOOTSTRAP.format(source=repr(source), weakened="pass"))
    with pytest.raises(ParseError) as ended:
        run_job("parse", stored, limits=Limits(), filename="a.txt")
    assert ended.value.code == "parser_crashed"


def test_no_folder_that_a_child_may_read_holds_settings_or_data():
    readable = [folder.resolve() for folder in confinement.readable_folders()]
    for path in (settings.DATA_DIR, ROOT / ".env", ROOT / "config", Path.home() / ".ssh"):
        assert not any(path.is_relative_to(folder) for folder in readable)


def test_a_folder_of_packages_may_be_read_and_another_of_the_import_path_not(monkeypatch, tmp_path):
    for name in ("packages", "application"):
        (tmp_path / name).mkdir()
    (tmp_path / "packages" / "lxml-6.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, *(str(tmp_path / name) for name in ("packages", "application"))])
    readable = confinement.readable_folders()
    assert tmp_path / "packages" in readable
    assert tmp_path / "application" not in readable


def test_a_process_of_the_same_user_cannot_read_the_environment_of_one_that_hides():
    script = (
        "import os, sys, ctypes; sys.path.insert(0, sys.argv[1]); from kb.ingest.parser.confinement import hide_from_siblings\n"
        "if os.getuid() == 0: os.setuid(65534); ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"
        "print(os.getpid(), flush=True); input(); hide_from_siblings(); print('hidden', flush=True); input()"
    )
    user = 65534 if os.getuid() == 0 else None

    def environment(pid):
        command = ["cat", f"/proc/{pid}/environ"]
        return subprocess.run(command, user=user, capture_output=True, check=False, env={}, cwd="/").stdout

    with subprocess.Popen(
        [sys.executable, "-c", script, str(ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"SECRET_KEY": "top-secret"},
    ) as process:
        pid = int(process.stdout.readline())
        assert b"top-secret" in environment(pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "hidden\n"
        assert environment(pid) == b""
        process.send_signal(signal.SIGKILL)


def test_processes_with_settings_hide():
    """PR_GET_DUMPABLE: every process that has loaded the application, as this one has."""
    assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0


def test_the_process_that_starts_web_processes_hides():
    """It loads no application, and has the secrets in its environment."""
    script = "import ctypes, config.gunicorn; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]
