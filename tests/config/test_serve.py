"""`manage.py serve` as its user runs it: a process of its own, whose data directory is empty or was used before."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from config import embedded
from config.__main__ import main, needs_services
from config.embedded.servers import Redis
from kb.management.commands.serve import MOST_ENDS
from tests.config.commands import run_in_turn
from tests.config.test_embedded import another_process, kill_postmaster, kill_redis
from tests.serving import READY, ROOT, SECONDS, free_port, interruptible, is_free, servers_run, serving, status


@pytest.fixture(autouse=True)
def _interruptible():
    with interruptible():
        yield


def manage(*arguments):
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def end(process):
    """What it printed from here on, and its exit code."""
    return process.communicate(timeout=SECONDS)[0], process.returncode


def children(process):
    return psutil.Process(process.pid).children(recursive=True)


def child(process, word):
    return next(found for found in psutil.Process(process.pid).children() if word in found.cmdline())


def test_a_first_start_serves_and_ctrl_c_ends_all_that_it_started(first_start):
    port = first_start.port
    assert "Preparing the database" in first_start.printed
    assert "password" in first_start.printed.lower()
    assert f"Zhiku is ready: http://127.0.0.1:{port}/admin/" in first_start.printed
    assert f"MCP server for agents: http://127.0.0.1:{port + 1}/mcp" in first_start.printed
    assert first_start.statuses == {"/admin/login/": 200, "/health": 200, "/mcp": 401}
    assert first_start.code == 0, first_start.output
    assert "Zhiku has stopped." in first_start.output
    assert first_start.left == []


def test_a_later_start_serves_begins_what_is_killed_again_and_a_signal_ends_all(environment, first_start, port):
    first_start.copy_to(Path(environment["ZHIKU_DATA_DIR"]))
    names = {
        "gunicorn": "web server",
        "mcp": "MCP server",
        "-B": "worker",
        "long,moves": "worker for long work",
    }
    with serving(port, environment) as (process, printed):
        assert "Preparing the database" not in printed
        assert f"password:  {first_start.password}" not in printed
        assert f"Zhiku is ready: http://127.0.0.1:{port}/admin/" in printed
        assert f"MCP server for agents: http://127.0.0.1:{port + 1}/mcp" in printed
        assert status(port, "/admin/login/") == 200
        assert (status(port + 1, "/health"), status(port + 1, "/mcp")) == (200, 401)
        started = children(process)
        for word in names:
            killed = child(process, word)
            killed.kill()
            revived = await_another(process, word, killed)
            await_status(port if word == "gunicorn" else port + 1, "/health" if word == "mcp" else "/")
            assert revived.is_running(), word
        started += children(process)
        process.send_signal(signal.SIGTERM)
        output, code = end(process)
    assert code == 0, output
    for name in names.values():
        assert output.count(f"The {name} ended with code -9, and is restarted.") == 1, output
    assert "Zhiku has stopped." in output
    assert not servers_run()
    assert not psutil.wait_procs(started, timeout=60)[1]
    assert is_free(port)
    assert is_free(port + 1)


def test_servers_that_are_killed_come_back_and_a_second_serve_is_refused(environment, first_start, port):
    data = Path(environment["ZHIKU_DATA_DIR"])
    first_start.copy_to(data)
    with serving(port, environment) as (process, _printed):
        second = manage("serve", "--port", str(free_port()))
        await_ready(port)
        kill_postmaster(data)
        await_ready(port)
        kill_redis(data)
        await_ready(port)
        stopped = manage("stop")
        process.send_signal(signal.SIGTERM)
        output, code = end(process)
    assert (code, second.returncode, stopped.returncode) == (0, 1, 1), output
    for refused in (second, stopped):
        assert f"`serve on port {port}` (process {process.pid})" in refused.stderr
    assert [output.count(f"{name} ended, and is restarted.") for name in ("Postgres", "Redis")] == [1, 1], output
    assert "worker ended" not in output
    assert not servers_run()


def await_ready(port):
    """Until all answer at once: the web process, PostgreSQL, Redis, and a worker, which has a broker again."""
    deadline = time.monotonic() + SECONDS
    while status(port, "/api/v1/ready/") != 200 or not worker_answers():
        assert time.monotonic() < deadline, "not everything answers again"
        time.sleep(0.2)


def worker_answers():
    with contextlib.suppress(OperationalError, RedisError, OSError):
        return bool(Celery(broker=Redis(embedded.data_dir() / "redis").url()).control.ping(timeout=1))
    return False


def test_a_child_that_ends_again_and_again_ends_all_but_the_servers_that_were_named(started_before, port):
    del started_before["ZHIKU_EMBEDDED"]
    with serving(port, started_before | {"ZHIKU_LOCAL": "true"}) as (process, printed):
        assert READY in printed
        started = children(process)
        doomed = child(process, "-B")
        for _time in range(MOST_ENDS):
            doomed.kill()
            doomed = await_another(process, "-B", doomed)
        doomed.kill()
        output, code = end(process)
    assert code == 1
    assert "The worker ended with code -9; its last messages are above." in output
    assert not psutil.wait_procs(started, timeout=60)[1]
    assert servers_run()


def await_another(process, word, former):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess, StopIteration):
            found = child(process, word)
            if found != former and found.status() != psutil.STATUS_ZOMBIE:
                return found
        time.sleep(0.1)
    pytest.fail(f"{word} was not begun again")


def await_status(port, path):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            return status(port, path)
        time.sleep(0.2)
    pytest.fail("nothing answers")


def test_the_scheduler_inside_a_worker_is_begun_again_where_it_was_killed(environment, tmp_path):
    """Without it nothing that was lost would be taken up again, and the worker would seem well."""
    embedded.ensure(durable=False)
    command = f"-m celery -A config worker -B --pool solo -l ERROR --schedule {tmp_path / 'schedule'}"
    process = subprocess.Popen([sys.executable, *command.split()], cwd=ROOT)
    try:
        worker = psutil.Process(process.pid)
        killed = _only_child(worker)
        killed.kill()
        assert _only_child(worker, other_than=killed).is_running()
    finally:
        process.terminate()
        process.wait(60)


def _only_child(worker, other_than=None):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended between two looks
            alive = [each for each in worker.children() if each.status() != psutil.STATUS_ZOMBIE]
            if len(alive) == 1 and alive[0] != other_than:
                return alive[0]
        time.sleep(0.2)
    pytest.fail("there is no scheduler")


def test_a_port_in_use_is_said_with_the_remedy_and_leaves_nothing_running(environment):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        done = manage("serve", "--port", str(taken))
    assert done.returncode == 1
    assert f"choose another port, such as --port {taken + 1}" in done.stderr
    assert not servers_run()


def test_a_serve_that_ends_says_who_still_uses_the_servers(environment, monkeypatch, capsys):
    with (
        another_process("embedded.ensure(durable=False, role='reindex')") as process,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        embedded.stop()  # the next command starts them again
        monkeypatch.setattr(sys, "argv", ["manage.py", "serve", "--port", str(other.getsockname()[1])])
        with pytest.raises(SystemExit, match="1"):
            main()
        assert (
            f"keep running for process {process.pid} (reindex): `manage.py stop` ends them" in capsys.readouterr().err
        )
        assert servers_run()


def test_a_command_that_starts_the_servers_says_how_to_stop_them(environment):
    done = manage("showmigrations", "kb")
    assert "manage.py stop" in done.stderr
    assert servers_run()
    stopped, again = run_in_turn(["stop"], ["stop"])
    assert not servers_run()
    assert "Stopped the servers" in stopped.stdout
    assert "No server was running" in again.stdout


def test_a_refusal_is_one_sentence_and_an_exit_code(environment):
    environment["DATABASE_URL"] = "postgres://db/zhiku"
    done = manage("migrate")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "set both" in done.stderr


@pytest.mark.parametrize(
    "line", ["", "help", "--help", "serve --help", "version", "check", "check --deploy", "makemessages", "stop"]
)
def test_commands_that_need_no_services(line):
    assert not needs_services(line.split())


@pytest.mark.parametrize("line", ["migrate", "serve", "check --database default", "check --database=default", "shell"])
def test_commands_that_need_services(line):
    assert needs_services(line.split())
